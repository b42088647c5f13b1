"""What ranks of trial runs hold beyond their tensors: blocks that an allocator keeps, code that is read late.

Resident bytes above the platform's are modelled bytes x (1 + share) + fixed, both parts not negative, by
least squares over what each rank of a few small trainings held at most, and what the memory model says of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
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
from .fits import non_negative
from .layer_models import LayerKind
from .trials import Trial

STEPS, TRACED = "4", "2"


@dataclass(frozen=True, slots=True)
class Held:
    """The most that one rank held: as the memory model counts its tensors, and resident in all."""

    modelled_bytes: int
    resident_bytes: int


def run_trial(trial: Trial) -> list[Held]:
    """What each rank held, in processes of their own that have not compiled."""
    factory = trial.model.factory()
    made = compile_model(factory, None, trial.strategy(), OptimizerConfig(), DeviceKind.CPU)
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "artifact", made.artifact)
        peaks = _peaks(folder, "tokens" if trial.model.kind is LayerKind.DECODER else "images")
    return [Held(modelled, peaks[rank]) for rank, modelled in enumerate(_modelled(made.artifact.program))]


def fit_held(found: Sequence[Held], platform_bytes: int) -> HeldMemory:
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
