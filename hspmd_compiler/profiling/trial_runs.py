"""What ranks of trial runs hold beyond their tensors: blocks that an allocator keeps, code that is read late.

Resident bytes above the platform's are modelled bytes x (1 + share) + fixed, both parts not negative, by
least squares over what each rank of a few small trainings held at most, and what the memory model says of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..artifact.write import write
from ..base.devices import DeviceKind
from ..base.trace_file import read_timeline
from ..cluster.calibration import HeldMemory
from ..compiler import compile_model
from ..cost_models.steps.memory import rank_memory
from ..cost_models.steps.rank_shapes import ShapeTable
from ..errors import RunError
from ..options import OptimizerConfig
from ..program.program import Program
from ..strategy.strategy import PipelineSpec, StageSpec, Strategy
from .fits import non_negative
from .layer_models import LayerKind, LayerModel
from .trial_data import LENGTH

Stages = tuple[tuple[int, int], ...]
"""(first, past the last) layer of each stage, of one rank each."""
STEPS, TRACED = "4", "2"


@dataclass(frozen=True, slots=True)
class Trial:
    """A training of a few steps. pipelines: stages of each. sizes: of each pipeline's micro-batches."""

    model: LayerModel
    pipelines: tuple[Stages, ...]
    sizes: tuple[int, ...]

    def strategy(self) -> Strategy:
        """Ranks in the order of pipelines and their stages."""
        made, first = [], 0
        for stages in self.pipelines:
            devices = range(first, first + len(stages))
            specs = [StageSpec((device,), layers) for device, layers in zip(devices, stages, strict=True)]
            made.append(PipelineSpec(tuple(specs), self.sizes))
            first += len(stages)
        return Strategy(tuple(made))


TRIALS = (
    Trial(LayerModel(LayerKind.DECODER, 384, LENGTH, 4), (((0, 4),),), (8, 8)),
    Trial(LayerModel(LayerKind.ENCODER, 320, LENGTH, 5), (((0, 3), (3, 5)),), (4, 4, 4)),
    Trial(LayerModel(LayerKind.DECODER, 256, LENGTH, 3), (((0, 3),), ((0, 3),)), (8,)),
    Trial(LayerModel(LayerKind.ENCODER, 448, LENGTH, 4), (((0, 4),),), (6, 6)),
)
QUICK = 2


@dataclass(frozen=True, slots=True)
class Held:
    """The most that one rank held: as the memory model counts its tensors, and resident in all."""

    modelled_bytes: int
    resident_bytes: int


def held_memory(quick: bool, platform_bytes: int) -> HeldMemory:
    """The trials, one after the other, each in processes of its own that have not compiled."""
    found = [held for trial in TRIALS[: QUICK if quick else None] for held in _held(trial)]
    return fit_held(found, platform_bytes)


def fit_held(found: list[Held], platform_bytes: int) -> HeldMemory:
    """What comes nearest to the trials, in parts of what each held."""
    above = np.array([float(held.resident_bytes - platform_bytes) for held in found])
    modelled = np.array([float(held.modelled_bytes) for held in found])
    columns = np.stack([np.ones_like(modelled), modelled], axis=1)
    scales = columns.max(axis=0)
    weights = 1 / np.maximum(above, 1.0)
    wanted = np.maximum(above - modelled, 0.0)
    fixed, share = non_negative(columns / scales * weights[:, None], wanted * weights) / scales
    off = np.abs((modelled * (1 + share) + fixed) * weights - 1)
    return HeldMemory(int(fixed), float(share), float(np.median(off)))


def _held(trial: Trial) -> Iterator[Held]:
    factory = trial.model.factory()
    made = compile_model(factory, None, trial.strategy(), OptimizerConfig(), DeviceKind.CPU)
    program = made.artifact.program
    with TemporaryDirectory() as folder:
        write(Path(folder) / "artifact", made.artifact)
        peaks = _peaks(Path(folder), "tokens" if trial.model.kind is LayerKind.DECODER else "images")
    for rank, modelled in enumerate(_modelled(program)):
        yield Held(modelled, peaks[rank])


def _modelled(program: Program) -> list[int]:
    table = ShapeTable(program)
    return [rank_memory(program, table.of(own), OptimizerConfig()).peak.total for own in program.ranks]


def _peaks(folder: Path, data: str) -> dict[int, int]:
    """Of each rank of `hspmd run`."""
    trace = folder / "trace.json"
    flags = ["--data", f"{__package__}.trial_data:{data}", "--steps", STEPS, "--trace-steps", TRACED]
    command = [sys.executable, "-m", "hspmd_compiler", "run", str(folder / "artifact"), *flags]
    kept = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run(
        [*command, "--trace", str(trace)],
        env={**kept, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RunError(
            f"a trial run of the profile ended with {done.returncode}", details=[("it said", done.stderr)]
        )
    timeline = read_timeline(trace, "measured")
    return {
        rank: max(point.bytes for point in timeline.memory if point.rank == rank) for rank in timeline.ranks
    }
