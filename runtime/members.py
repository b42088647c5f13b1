"""The processes of a run that one program uses: the only place where its ranks become those of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.comm_plan import CommStep, Piece
from ..errors import InternalError
from ..program.sized.recent import Recent

MOST_STEPS = 4096
"""Steps of which a rank keeps what it made of them: more than a rank has, but where their sizes change."""


class ProgramMembers:
    """ranks: the world rank of each rank of a program, ascending.

    shortcuts: ids of exchanges for which all members agreed on the collective of ExchangePlan.
    """

    def __init__(self, ranks: Sequence[int], shortcuts: frozenset[int] = frozenset()) -> None:
        if list(ranks) != sorted(set(ranks)):
            raise InternalError(f"world ranks {list(ranks)} of a program are not ascending")
        self.ranks = tuple(ranks)
        self.shortcuts = shortcuts
        self._steps: Recent[int, tuple[CommStep, CommStep]] = Recent(MOST_STEPS)

    @classmethod
    def all_of(cls, count: int, shortcuts: frozenset[int] = frozenset()) -> ProgramMembers:
        """A program that uses every process."""
        return cls(range(count), shortcuts)

    def rank_at(self, world_rank: int) -> int | None:
        """The rank of the program that runs on a process, None where it is idle."""
        return self.ranks.index(world_rank) if world_rank in self.ranks else None

    def group(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Ranks of the program as world ranks."""
        return tuple(self.ranks[rank] for rank in ranks)

    def step(self, step: CommStep) -> CommStep:
        """A step with world ranks; the same one each time, by identity, while it is in use."""
        if self.ranks == tuple(range(len(self.ranks))):
            return step
        return self._steps.get(id(step), lambda: (step, self._made(step)))[1]

    def _made(self, step: CommStep) -> CommStep:
        sends, recvs = self._pieces(step.sends), self._pieces(step.recvs)
        return replace(step, group=self.group(step.group), sends=sends, recvs=recvs)

    def _pieces(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        return tuple(replace(piece, peer=self.ranks[piece.peer]) for piece in pieces)
