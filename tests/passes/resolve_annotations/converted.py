"""Runs the steps of a resolved pair: of one rank as requests, of all ranks in lockstep."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from torch import Tensor

from hspmd_compiler.base.comm_plan import CommStep
from hspmd_compiler.program.arrays import TorchArrays
from hspmd_compiler.program.execute import RankPlan, RankState
from hspmd_compiler.program.program import ClassProgram, RankProgram
from hspmd_compiler.program.requests import Request, comm_request
from hspmd_compiler.verify.lockstep.blocked import RankRun
from hspmd_compiler.verify.lockstep.lockstep import Lockstep


def run_steps(
    steps: Sequence[CommStep], value: Tensor | None
) -> Generator[Request[Tensor], Tensor | None, Tensor | None]:
    """The steps in their order, each with what the one before has left; returns what the last one leaves.

    value: this rank's tensor, None where it holds nothing; it is not changed.
    """
    for step in steps:
        value = yield comm_request(step, value, False)
    return value


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
