"""Elements that are held and needed alike: what a plan of sending is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwitchDemand:
    """So many elements, of so many bytes each. holders, needers: world ranks, ascending.

    A needer that is a holder keeps its own.
    """

    elements: int
    element_bytes: int
    holders: tuple[int, ...]
    needers: tuple[int, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Needers that hold nothing of it."""
        holders = frozenset(self.holders)
        return tuple(rank for rank in self.needers if rank not in holders)
