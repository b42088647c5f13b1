"""Sailor's validation points: a plan, and what was measured of it, one file each.

A place is one node with `gpus` devices of a kind, all of one tensor-parallel group. A pipeline's replica d
takes the d-th place of each stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hspmd_compiler.errors import EstimateError
from truth.json_file import count, number, read_json

DEFAULT_MODEL = "OPT-350"
THREE_TYPES = {"Titan-RTX", "RTX-2080", "RTX-3090"}
GH200 = "GH-96"
MOST_PLACES = 1 << 16
MOST_TURNS = 1 << 17


@dataclass(frozen=True, slots=True)
class Place:
    """Where one replica of a stage runs: devices of one node, tp of them at work."""

    kind: str
    gpus: int
    zone: str
    tp: int


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """layers: of each stage. replicas: of each, the place of every stage."""

    layers: tuple[tuple[int, ...], ...]
    replicas: tuple[tuple[Place, ...], ...]

    @property
    def stages(self) -> int:
        return len(self.layers)


@dataclass(frozen=True, slots=True)
class Point:
    """One measured plan. name: its path below the folder of points. notes: what was repaired in reading."""

    name: str
    model: str
    data_set: str
    mbs: int
    gbs: int
    pipelines: tuple[PipelinePlan, ...]
    step_s: float
    reduction_s: float | None
    peak_bytes: float | None
    notes: tuple[str, ...] = ()

    @property
    def replicas(self) -> int:
        """Data-parallel copies of the model, over all pipelines."""
        return sum(len(pipeline.replicas) for pipeline in self.pipelines)

    @property
    def micro_batches(self) -> int:
        """Of each replica; samples that do not come out even make one more."""
        return -(-self.gbs // (self.mbs * self.replicas))

    @property
    def stages(self) -> int:
        """Of the longest pipeline."""
        return max(pipeline.stages for pipeline in self.pipelines)


def read_points(folder: Path, layers_of: Mapping[str, int]) -> tuple[list[Point], list[str]]:
    """The points of a folder, and a line for each file that can't be read. layers_of: of known models."""
    if not folder.is_dir():
        raise EstimateError(f"{folder}: no such folder of points")
    points, failed = [], []
    for path in sorted(folder.rglob("*.json")):
        name = str(path.relative_to(folder))
        try:
            points.append(_point(name, read_json(path), _model(path, folder, layers_of), layers_of))
        except EstimateError as error:
            failed.append(f"{name}: {error.what.removeprefix(f'{path}: ')}")
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            failed.append(f"{name}: not laid out as a plan ({type(error).__name__}: {error})")
    return points, failed


def _model(path: Path, folder: Path, layers_of: Mapping[str, int]) -> str:
    """The known model that a folder of the path is named after, the last such; none: OPT-350."""
    parts = [*folder.resolve().parts[-3:], *path.relative_to(folder).parts[:-1]]
    for part in reversed(parts):
        for model in layers_of:
            if len(part) > 3 and _plain(model).startswith(_plain(part)):
                return model
    return DEFAULT_MODEL


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _point(name: str, row: Mapping[str, Any], model: str, layers_of: Mapping[str, int]) -> Point:
    if not isinstance(row, Mapping):
        raise EstimateError("not an object")
    listed = row.get("pipeline_list")
    if not isinstance(listed, Sequence) or not listed:
        raise EstimateError("`pipeline_list` is missing or empty")
    if model not in layers_of:
        raise EstimateError(f"no layer table of model {model}; known: {', '.join(sorted(layers_of))}")
    notes: list[str] = []
    point = _read(name, row, model, layers_of[model], notes)
    turns = point.micro_batches * point.stages
    if turns > MOST_TURNS:
        raise EstimateError(f"{turns:,} micro-batches over all stages: at most {MOST_TURNS:,} are priced")
    return point


def _read(name: str, row: Mapping[str, Any], model: str, layers: int, notes: list[str]) -> Point:
    listed = row["pipeline_list"]
    pipelines = tuple(_pipeline(one, layers, notes) for one in listed)
    return Point(
        name,
        model,
        _data_set(model, pipelines),
        count(row, "mbs"),
        count(row, "gbs"),
        pipelines,
        _positive(row, "real"),
        number(row, "red_grads") if row.get("red_grads") is not None else None,
        _positive(row, "max_mem") if row.get("max_mem") is not None else None,
        tuple(notes),
    )


def _positive(row: Mapping[str, Any], key: str) -> float:
    value = number(row, key)
    if not value:
        raise EstimateError(f"`{key}` is 0")
    return value


def _pipeline(row: Mapping[str, Any], layers: int, notes: list[str]) -> PipelinePlan:
    stages = row["layers_per_stage"]
    if row.get("num_stages", len(stages)) != len(stages):
        raise EstimateError(f"`num_stages` is {row['num_stages']}, and {len(stages)} stages have layers")
    places = [[_place(one) for one in stage] for stage in row["tmp_per_stage"]]
    if len(places) != len(stages):
        raise EstimateError(f"{len(stages)} stages have layers, {len(places)} have devices")
    degrees = {len(stage) for stage in places}
    if list(row.get("dp", map(len, places))) != [len(stage) for stage in places]:
        raise EstimateError(f"`dp` is {row['dp']}, the stages have {[len(one) for one in places]} places")
    if len(degrees) != 1:
        raise EstimateError(
            f"stages of one pipeline have {sorted(degrees)} replicas: not described by a plan"
        )
    if not 0 < degrees.pop() * len(stages) <= MOST_PLACES:
        raise EstimateError("no places, or more than can be read")
    return PipelinePlan(_layers(stages, layers, notes), tuple(zip(*places, strict=True)))


def _layers(stages: Sequence[Sequence[int]], layers: int, notes: list[str]) -> tuple[tuple[int, ...], ...]:
    """Every layer once, in order; a list that has the right length is repaired by position."""
    named = [layer for stage in stages for layer in stage]
    if len(named) != layers or any(not stage for stage in stages):
        each = [len(stage) for stage in stages]
        raise EstimateError(f"its stages have {each} layers, {sum(each)} in all; the model has {layers}")
    if named != list(range(layers)):
        odd = [f"{one} for {place}" for place, one in enumerate(named) if one != place]
        notes.append(f"layers repaired by position: {', '.join(odd[:5])}")
    found, first = [], 0
    for stage in stages:
        found.append(tuple(range(first, first + len(stage))))
        first += len(stage)
    return tuple(found)


def _place(row: Any) -> Place:
    machines, tp = row
    if len(machines) != 1:
        raise EstimateError(f"a tensor-parallel group of {len(machines)} machines: not priced")
    kind, gpus, zone = machines[0]
    if not isinstance(kind, str) or not all(isinstance(one, int) and one > 0 for one in (gpus, tp)):
        raise EstimateError(f"a place reads {row!r}")
    return Place(kind, gpus, str(zone), tp)


def _data_set(model: str, pipelines: Iterable[PipelinePlan]) -> str:
    """What the point belongs to: told by its devices, so that folders may be named as they like."""
    kinds = {place.kind for pipeline in pipelines for replica in pipeline.replicas for place in replica}
    if kinds <= THREE_TYPES:
        return f"three-type cluster, {model}"
    return f"GH200, {model}" if kinds == {GH200} else f"{' + '.join(sorted(kinds))}, {model}"
