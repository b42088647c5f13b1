"""Runs the steps of a resolved pair on all ranks in lockstep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ...base.comm_plan import CommStep
from ...program.arrays import TorchArrays
from ...program.execute import RankPlan, RankState
from ...program.program import ClassProgram, RankProgram
from ...program.run_steps import run_steps
from .blocked import RankRun
from .lockstep import Lockstep


def convert_in_lockstep(
    steps: Mapping[int, Sequence[CommStep]], held: Mapping[int, Tensor]
) -> dict[int, Tensor]:
    """What each rank holds after its steps. held: what ranks hold before; ranks without steps keep it.

    Raises VerifyError where the ranks' steps don't fit together.
    """
    runs = [_run(rank, steps.get(rank, ()), held.get(rank)) for rank in sorted({*steps, *held})]
    Lockstep(runs).run()
    return {run.rank: run.loss for run in runs if run.loss is not None}


def _run(rank: int, steps: Sequence[CommStep], value: Tensor | None) -> RankRun[Tensor]:
    """A rank whose whole program is these steps."""
    program = RankProgram(
        rank=rank,
        device=rank,
        pipeline=0,
        stage=0,
        coordinate=0,
        class_name="",
        device_kind="cpu",
        rows=[],
        literals=[],
        comms=list(steps),
        transfers=[],
        shards=[],
        grad_buckets=[],
        instructions=[],
    )
    shared = ClassProgram("", [])
    plan = RankPlan(program, shared, [], frozenset(), [], [], {})
    return RankRun(plan, RankState({}), TorchArrays(), run_steps(steps, value))
