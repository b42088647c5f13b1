"""AMP's published trials: a strategy on 16 devices, AMP's prediction, and what was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hspmd_compiler.errors import EstimateError
from truth.json_file import count, number, read_json

MODEL = re.compile(r"GPT-2 h=1024 L=24 s=1024 V=52256 gbs=(\d+)")
"""The model of which there are costs; the file describes each cluster's so."""
DEVICES = 16


@dataclass(frozen=True, slots=True)
class Trial:
    """bounds: of the stages, in layers of AMP's cost vectors, first 0. measured_s: None where it failed."""

    number: int
    batch: int
    bounds: tuple[int, ...]
    mbs: int
    tp: int
    dp: int
    pp: int
    predicted_s: float
    measured_s: float | None

    @property
    def name(self) -> str:
        return f"mbs {self.mbs} tp {self.tp} dp {self.dp} pp {self.pp}"

    @property
    def micro_batches(self) -> int:
        return self.batch // (self.mbs * self.dp)


def read_trials(path: Path) -> tuple[dict[str, list[Trial]], list[str]]:
    """cluster -> its trials, and a line for each row that can't be read."""
    content = read_json(path)
    if not isinstance(content, Mapping) or not isinstance(content.get("trials"), Mapping):
        raise EstimateError(f"{path}: no `trials` by cluster")
    found: dict[str, list[Trial]] = {}
    failed = []
    for cluster, rows in content["trials"].items():
        text = str(content.get("model", {}).get(cluster, "not described"))
        model = MODEL.fullmatch(text.strip())
        if model is None:
            failed.append(
                f"{path.name}: {cluster}, {len(rows)} rows: model {text}: no layer sizes, not priced"
            )
            continue
        found[cluster] = []
        for place, row in enumerate(rows):
            try:
                found[cluster].append(_trial(place, row, int(model[1])))
            except EstimateError as error:
                failed.append(f"{path.name}: {cluster}, row {place}: {error.what}")
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                failed.append(f"{path.name}: {cluster}, row {place}: {type(error).__name__}: {error}")
    return found, failed


def _trial(place: int, row: Mapping[str, Any], batch: int) -> Trial:
    bounds = row["layer_partition"]
    bounds = tuple(json.loads(bounds) if isinstance(bounds, str) else bounds)
    trial = Trial(
        place,
        batch,
        bounds,
        count(row, "mbs"),
        count(row, "tp"),
        count(row, "dp"),
        count(row, "pp"),
        number(row, "predicted_s"),
        None if row.get("measured_s") is None else number(row, "measured_s"),
    )
    if list(bounds) != sorted(set(bounds)) or len(bounds) != trial.pp + 1 or bounds[0] != 0:
        raise EstimateError(f"`layer_partition` {list(bounds)} is not of {trial.pp} stages")
    if trial.tp * trial.dp * trial.pp != DEVICES:
        raise EstimateError(f"tp {trial.tp} x dp {trial.dp} x pp {trial.pp} is not {DEVICES} devices")
    if trial.micro_batches * trial.mbs * trial.dp != batch:
        raise EstimateError(f"{batch} samples do not come out even at mbs {trial.mbs}, dp {trial.dp}")
    return trial
