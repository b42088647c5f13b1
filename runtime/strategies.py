"""The strategies that a run may take steps under, as one process takes part in each; plans of switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..artifact.proved_loss import ProvedLoss
from ..errors import RunError
from ..program.program import Program, RankProgram
from ..program.switch_plan import SwitchPlan, SwitchScope
from .members import ProgramMembers
from .switching.stages import ROUND_BYTES


class PlanOf(Protocol):
    """The plan of a switch from one strategy to another, as a bundle gives it."""

    def __call__(self, source: str, target: str, scope: SwitchScope = ..., /) -> SwitchPlan: ...


@dataclass(frozen=True, slots=True)
class StrategyProgram:
    """own: the program of this process's rank, None where the strategy doesn't use the process.

    Of `program` only that one needs to be there.
    """

    program: Program
    own: RankProgram | None
    members: ProgramMembers

    @classmethod
    def only(cls, program: Program, rank: int) -> StrategyProgram:
        """The program of a run that has no other one."""
        own = next(each for each in program.ranks if each.rank == rank)
        return cls(program, own, ProgramMembers.all_of(program.world_size))


def _no_plan(source: str, target: str, scope: SwitchScope = SwitchScope.STATE) -> SwitchPlan:
    raise RunError(
        f"there is no plan of a switch from {source or 'this strategy'} to {target}",
        rule="a switch needs its compiled plan",
        fix="compile several strategies together: hspmd compile MODEL --strategy A.yaml --strategy B.yaml",
    )


@dataclass(frozen=True, slots=True)
class Strategies:
    """By name; "" is that of an artifact of one strategy. plan: of a switch from one to another.

    round_bytes: of messages that a rank sends and gets at a time in a switch.
    loss: what it is over samples, with a home.
    """

    programs: Mapping[str, StrategyProgram]
    plan: PlanOf = _no_plan
    round_bytes: int = ROUND_BYTES
    loss: ProvedLoss | None = None

    def named(self, name: str) -> StrategyProgram:
        """One of them; RunError for any other name."""
        if name not in self.programs:
            known = [each for each in self.programs if each]
            raise RunError(
                f"there is no strategy {name!r} to switch to",
                details=[("strategies", ", ".join(known) or "the only one has no name")],
                rule="a run takes steps under the strategies that were compiled together",
                fix="name one of them"
                if known
                else "compile several with --strategy A.yaml --strategy B.yaml",
            )
        return self.programs[name]


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """A switch. step: the first under the target. moved_bytes: between ranks, all of them together."""

    step: int
    source: str
    target: str
    moved_bytes: int
    seconds: float
