"""A switch while training, beside saving a checkpoint and loading it: 8 local ranks, 200 MB of state each.

    python benchmarks/switch_run.py [--mb 200] [--json OUT]

Parameters and both moments of AdamW in float32, from two pipelines of four devices that share each layer to
two of two stages of two devices, and back. A checkpoint is what `hspmd run --save-state` writes, with fsync,
and loads. Wall seconds of the slowest rank and CPU seconds of all ranks together, the least of some turns,
all in one run. Exit code 1 where a switch takes more than a tenth of a checkpoint.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.write_bundle import BundleContent, write_bundle
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.runtime.batches.data import BatchShape, FactoryData
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.optimizer import ShardOptimizer
from hspmd_compiler.runtime.saved.training_state import load_state, save_state
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.switching.links import links_of
from hspmd_compiler.switching.plan import plan_switch

MOST_OF_CHECKPOINT = 0.1
WIDTH, BATCH, TURNS = 2048, 8, 2
STATE_BYTES = 12
"""Of an element: itself and two moments."""
DEVICES = 8
SWITCHES = (("whole", "lost"), ("whole", "staged"))
"""Each is made there and back; the limit is for the first."""


class Stack(nn.Module):
    """Linear layers without anything between them."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def strategies(layers: int) -> dict[str, Strategy]:
    """`whole` has two pipelines of four devices that share each layer, `lost` one device less.

    `staged` has two stages of two devices in each pipeline: most of what a rank needs is elsewhere.
    """
    half, samples = layers // 2, (BATCH // 2,)

    def shared(*devices: int) -> PipelineSpec:
        return PipelineSpec((StageSpec(devices, (0, layers)),), samples)

    def staged(first: int) -> PipelineSpec:
        stages = (StageSpec((first, first + 1), (0, half)), StageSpec((first + 2, first + 3), (half, layers)))
        return PipelineSpec(stages, samples)

    return {
        "whole": Strategy((shared(0, 1, 2, 3), shared(4, 5, 6, 7))),
        "lost": Strategy((shared(0, 1, 2, 3), shared(4, 5, 6))),
        "staged": Strategy((staged(0), staged(4))),
    }


def write(directory: Path, layers: int) -> None:
    """The bundle, with the plans of both switches."""
    optimizer = OptimizerConfig(lr=1e-3)
    made = {
        name: hspmd.compile(
            lambda: (Stack(layers), {"x": torch.zeros(BATCH, WIDTH)}), strategy=each, optimizer=optimizer
        ).artifact
        for name, each in strategies(layers).items()
    }
    ranks = {name: {own.rank: own for own in each.program.ranks} for name, each in made.items()}
    moments = ShardOptimizer(optimizer).moments
    links = links_of(None, range(DEVICES))
    plans = [
        plan_switch(ranks[one], ranks[other], links, names=(one, other), moments=moments)
        for one, other in (*SWITCHES, *((other, one) for one, other in SWITCHES))
    ]
    write_bundle(directory, BundleContent(made, plans))


@dataclass(frozen=True, slots=True)
class Taken:
    """wall_s: of the slowest rank. cpu_s: of all together. moved_bytes: between ranks."""

    what: str
    wall_s: float
    cpu_s: float
    moved_bytes: int = 0


def timed(engine: Engine, what: str, work: Callable[[], object]) -> Taken:
    """One call that all ranks make, begun together."""
    engine.transport.gather_objects(None)
    wall, cpu = time.perf_counter(), time.process_time()
    made = work()
    own = (time.perf_counter() - wall, time.process_time() - cpu)
    all_of = cast(list[tuple[float, float]], engine.transport.gather_objects(own))
    return Taken(
        what,
        max(each[0] for each in all_of),
        sum(each[1] for each in all_of),
        getattr(made, "moved_bytes", 0),
    )


def measured(directory: Path, layers: int) -> dict[str, object]:
    """The state of a rank, and what was timed."""
    write(directory / "bundle", layers)
    records: list[dict[str, object]] = []

    def batches() -> Iterator[dict[str, Tensor]]:
        yield {"x": torch.ones(BATCH, WIDTH)}

    def job(engine: Engine, emit: Emit) -> None:
        data = FactoryData(batches, BatchShape.of(engine.program))
        engine.step(next(iter(data)))
        state = sum(each.nbytes for each in engine.params.values())
        state += sum(each.nbytes for of in engine.optimizer.state.values() for each in of.values())
        emit({"state_bytes": state})
        file = directory / "state.safetensors"
        for _ in range(TURNS):
            for source, target in SWITCHES:
                for name in (target, source):
                    emit(asdict(timed(engine, f"switch {target}", lambda name=name: engine.switch_to(name))))  # type: ignore[misc]
            emit(asdict(timed(engine, "save", lambda: save_state(engine, data, file))))
            emit(asdict(timed(engine, "load", lambda: load_state(engine, data, file))))

    launch(directory / "bundle", job, StartOptions(), on_record=lambda record: records.append(dict(record)))
    first, *taken = records
    return {**first, "taken": taken}


def least(taken: list[dict[str, object]], what: str, of: str) -> float:
    return min(float(str(each[of])) for each in taken if each["what"] == what)


def section(size_mb: float = 200.0) -> list[dict[str, Any]]:
    """Run it, and say what each switch takes beside a checkpoint."""
    layers = max(2, round(size_mb * 1e6 * 4 / STATE_BYTES / WIDTH**2 / 2) * 2)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), layers)
    taken = cast(list[dict[str, object]], found["taken"])
    rows = []
    for source, target in SWITCHES:
        row: dict[str, Any] = {"switch": f"{source} and {target}", "state_bytes": found["state_bytes"]}
        what = f"switch {target}"
        row["moved_bytes"] = max(int(str(each["moved_bytes"])) for each in taken if each["what"] == what)
        for unit in ("wall_s", "cpu_s"):
            switch, save, load = (least(taken, one, unit) for one in (what, "save", "load"))
            row |= {f"switch_{unit}": switch, f"save_{unit}": save, f"load_{unit}": load}
            row[f"of_checkpoint_{unit}"] = switch / (save + load)
        rows.append(row)
    return rows


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=200.0, help="state of a rank")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = section(args.mb)
    table = Table(
        "8 local ranks", *(str(row["switch"]) for row in rows), title="a switch beside a checkpoint"
    )
    for name in list(rows[0])[1:]:
        table.add_row(
            name, *(f"{row[name]:,.3f}" if name.endswith("_s") else f"{row[name]:,}" for row in rows)
        )
    Console().print(table)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    shares = [float(str(rows[0][f"of_checkpoint_{unit}"])) for unit in ("wall_s", "cpu_s")]
    return 0 if max(shares) <= MOST_OF_CHECKPOINT else 1


if __name__ == "__main__":
    sys.exit(main())
