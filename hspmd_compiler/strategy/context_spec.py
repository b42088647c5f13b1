"""Pipelines that share sequences: which tokens of each sample every member runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..base.comm_plan import Interval
from ..base.context import ContextCut, member_runs, row_pieces


class ContextChoice(Enum):
    """A form of attention by its name, or AUTO: the cheapest on the machines, GATHER where none are told."""

    AUTO = "auto"
    RING = "ring"
    GATHER = "gather"
    HEADS = "heads"


@dataclass(frozen=True, slots=True)
class ContextSpec:
    """Pipelines, members in the order of tokens, that run the same samples, each some tokens of every one.

    lengths: tokens of each member; none: even, the first members taking what remains. padding: tokens at the
    end of each sample that no member runs: they bear no label.
    """

    pipelines: tuple[int, ...]
    lengths: tuple[int, ...] = ()
    padding: int = 0
    form: ContextChoice = ContextChoice.AUTO
    cut: ContextCut = ContextCut.CONTIGUOUS

    def lengths_of(self, tokens: int) -> tuple[int, ...]:
        """Tokens of each member, of samples of so many."""
        if self.lengths:
            return self.lengths
        each, more = divmod(tokens - self.padding, len(self.pipelines))
        return tuple(each + (member < more) for member in range(len(self.pipelines)))

    def runs(self, tokens: int) -> tuple[tuple[Interval, ...], ...]:
        """The runs of tokens that each member has, ascending."""
        return member_runs(row_pieces(self.lengths_of(tokens), self.cut), len(self.pipelines))
