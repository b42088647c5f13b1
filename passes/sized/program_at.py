"""The program of a strategy at sizes that can't be compiled, from compiles of it at three others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...base.comm_plan import CommStep
from ...program.program import Program, RankProgram
from ...program.sized.comm_numbers import placed
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import MicroSizes
from .refusals import Unlike, unexplained_size
from .unify import OF_RANK, Unifier


def program_at(programs: Sequence[Program], sizes: SizeRange, asked: Sequence[MicroSizes]) -> Program:
    """The program in which each pipeline has the sizes that are asked for, but for the bytes that it keeps.

    programs: by `sizes.probes`. AmbiguousSize where these do not tell what a number is.
    """
    return _Asked(programs, sizes, counts_all=False, asked=asked).run()


@dataclass(slots=True)
class _Asked(Unifier):
    """Numbers that differ become those of the sizes asked for. asked: of each pipeline."""

    asked: Sequence[MicroSizes] = ()

    def run(self) -> Program:
        return replace(Unifier.run(self), sizes=None)

    def ranked(self, ranks: list[RankProgram]) -> list[RankProgram]:
        return ranks  # of one size: their instructions tell it already

    def number(self, given: Sequence[int], pipeline: int, place: Unlike) -> Any:
        size = self.explainers[pipeline].size(tuple(given))
        if size is None:
            raise unexplained_size(self.sizes, place, given, self.lines)
        return size.at(self.asked[pipeline])

    def rank(self, given: Sequence[RankProgram]) -> RankProgram:
        first = given[0]
        where = f"rank {first.rank}"
        for name in (*OF_RANK, "instructions", "rows"):
            self.alike([getattr(each, name) for each in given], Unlike(where, f"its {name}"))
        literals = self.argument(
            [each.literals for each in given], first.pipeline, Unlike(where, "a literal")
        )
        comms = self._steps([each.comms for each in given], first.pipeline, Unlike(where, "its comms"))
        moves = [each.transfers for each in given]
        transfers = self._steps(moves, first.pipeline, Unlike(where, "its transfers"))
        return replace(first, literals=list(literals), comms=comms, transfers=transfers)

    def _steps(self, given: Sequence[Sequence[CommStep]], pipeline: int, place: Unlike) -> list[CommStep]:
        self.alike([len(each) for each in given], place)
        found = []
        for each in zip(*given, strict=True):
            numbers: Any = self.overlay(each, pipeline)  # numbers in place of sizes
            found.append(placed(each[0], numbers, self.asked[pipeline]))
        return found
