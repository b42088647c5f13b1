"""Each marker becomes, per rank, the steps that move what it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..compile_state import Resolved, Segmented, grown
from ..pass_chain import Pass
from ..stage_comm import StageResolver
from ..texts.plan_text import stage_comm_text


@dataclass(frozen=True, slots=True)
class ResolveComm(Pass[Segmented, Resolved]):
    """Equal requests share their steps."""

    name: ClassVar[str] = "resolve_comm"

    def run(self, state: Segmented) -> Resolved:
        made = StageResolver(
            state.ranks, state.resolver, state.reductions, state.step_groups, state.sum_groups
        )
        return grown(Resolved, state, comms=[made.of(plan) for plan in state.stages])

    def text(self, before: Segmented, after: Resolved) -> str:
        return stage_comm_text(after.stages, after.comms)

    def problems(self, before: Segmented, after: Resolved) -> Iterator[str]:
        """Every rank of a stage takes part in each of its steps."""
        for plan, comm in zip(after.stages, after.comms, strict=True):
            where = f"pipeline {plan.pipeline}, stage {plan.stage}"
            if sum(comm.rounds) + len(comm.reduced) != len(comm.steps):
                yield f"{where} has {len(comm.steps)} steps for {sum(comm.rounds)} rounds and its sums"
            for step in {id(step): step for step in (*comm.steps, *comm.transfers)}.values():
                missing = [rank for rank in plan.ranks if rank not in step]
                if missing and step in comm.steps:
                    yield f"{where} has a step without its ranks {missing}"
