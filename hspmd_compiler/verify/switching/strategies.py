"""Strategies of a bundle as proofs of switches take them: programs by world rank, and plans to follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...program.program import Program, RankProgram
from ...program.switch_plan import SwitchPlan, SwitchScope
from ...runtime.switching.held import StateLayout


@dataclass(frozen=True, slots=True)
class ProvenStrategies:
    """programs: of each strategy. world: the devices of all, by world rank."""

    programs: Mapping[str, Program]
    world: tuple[int, ...]

    @classmethod
    def of(cls, programs: Mapping[str, Program]) -> ProvenStrategies:
        used = {own.device for program in programs.values() for own in program.ranks}
        return cls(programs, tuple(sorted(used)))

    def placed(self, name: str) -> dict[int, RankProgram]:
        """The programs of a strategy by world rank."""
        index = {device: rank for rank, device in enumerate(self.world)}
        return {index[own.device]: own for own in self.programs[name].ranks}

    def at(self, name: str, world_rank: int) -> RankProgram | None:
        """The program of a world rank; None where the strategy doesn't use it."""
        return self.placed(name).get(world_rank)

    def layouts(self, name: str) -> dict[int, StateLayout]:
        """Where each world rank keeps its state under a strategy, idle ones too."""
        placed = self.placed(name)
        return {rank: StateLayout.of(placed.get(rank)) for rank in range(len(self.world))}


def tour(plans: Sequence[SwitchPlan]) -> Iterator[tuple[SwitchPlan, bool]]:
    """Every plan of state once, each from where the last one ended if one is left there; whether it is so."""
    left = [plan for plan in plans if plan.scope is SwitchScope.STATE]
    here: str | None = None
    while left:
        plan = next((each for each in left if each.source == here), left[0])
        yield plan, plan.source == here or here is None
        left.remove(plan)
        here = plan.target
