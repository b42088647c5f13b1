"""Ways of communication are compared once, at the end of the range: programs of all sizes take the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from ...base.comm_plan import CommKind, CostModel, GatherForm, Traffic

T = TypeVar("T")


class ToldCosts:
    """A cost model that keeps what it told, in order, and tells it again to compiles at other sizes.

    Compiles that differ in sizes only ask the same in the same order; where one asks otherwise, it is told
    what is true of it, and its program differs in more than sizes.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._told: list[object] = []
        self._again: Iterator[object] | None = None

    def again(self) -> ToldCosts:
        """For another size."""
        other = ToldCosts(self._cost)
        other._again = iter(tuple(self._told))
        return other

    def comm_s(self, traffic: Sequence[Traffic]) -> float:
        """See CostModel."""
        told = self._next(float)
        return self._tell(self._cost.comm_s(traffic)) if told is None else told

    def unequal_forms_s(
        self, kind: CommKind, group: Sequence[int], sizes: Sequence[float]
    ) -> Mapping[GatherForm, float]:
        """See CostModel."""
        told = self._next(dict)
        return self._tell(dict(self._cost.unequal_forms_s(kind, group, sizes))) if told is None else told

    def near(self, rank: int) -> frozenset[int] | None:
        """See CostModel."""
        return self._cost.near(rank)

    def _next(self, kind: type[T]) -> T | None:
        told = None if self._again is None else next(self._again, None)
        return told if isinstance(told, kind) else None

    def _tell(self, value: T) -> T:
        self._told.append(value)
        return value
