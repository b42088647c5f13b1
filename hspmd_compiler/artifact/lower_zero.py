"""What ZeRO changes of the ranks' tables: who owns what, and how sums and parameters move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from ..comm_plan import CommStep, GradBucket, ParamBucket
from ..passes.grad_sync import GradLayout, Holder
from ..passes.resolve_comm import CommResolver
from ..passes.zero import Ownership, Trained, share_out
from ..passes.zero_buckets import ZeroBuckets
from .lower_params import ParamLowering
from .program import ZERO_GRADS, ZERO_PARAMS, Shard

UNIT_ELEMENTS = 1 << 25
"""Most elements of parameters that move together, unless a single one has more."""


@dataclass(frozen=True, slots=True)
class ZeroTables:
    """By rank. steps: what the buckets do, by slot; more than the rank's other ones."""

    shards: dict[int, list[Shard]]
    grads: dict[int, list[GradBucket]]
    gathers: dict[int, list[ParamBucket]] = field(default_factory=dict)
    steps: dict[int, list[CommStep]] = field(default_factory=dict)


@dataclass(slots=True)
class ZeroLowering:
    """zero: the strategy's. inside: parameters that are gathered where they are used."""

    params: ParamLowering
    zero: int
    inside: frozenset[str]
    resolver: CommResolver
    trained: list[Trained] = field(init=False)
    ownership: Ownership = field(init=False)
    buckets: ZeroBuckets = field(init=False)
    local: dict[str, dict[int, CommStep]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layouts = self.params.grad_layouts()
        units = self._units(layouts)
        self.trained = [
            Trained(name, layout, units[name], *self.params.types(name)) for name, layout in layouts.items()
        ]
        self.ownership = share_out(self.trained)
        holders = {name: _by_rank(layout.holders) for name, layout in layouts.items()}
        sources = {
            name: _by_rank(holder for term in layout.terms for holder in term.holders)
            for name, layout in layouts.items()
        }
        dtypes = {each.name: each.dtype for each in self.trained}
        self.buckets = ZeroBuckets(self.ownership, sources, holders, dtypes, self.resolver)

    def _units(self, layouts: Mapping[str, GradLayout]) -> dict[str, int]:
        """What is gathered alone is shared out alone, so that every holder gives as much; other parameters
        go together up to a size, so that no second copy of all of them is made to be moved."""
        units: dict[str, int] = {}
        first, together = 0, 0
        for index, (name, layout) in enumerate(layouts.items()):
            if name in self.inside:
                units[name] = index
                continue
            size = prod(layout.shape)
            if together + size > UNIT_ELEMENTS or not together:
                first, together = index, 0
            units[name] = first
            together += size
        return units

    @property
    def shared(self) -> frozenset[str]:
        """Trained parameters of which some element has several holders: what ZeRO is about."""
        return frozenset(each.name for each in self.trained if self.ownership.is_shared(each.name))

    def gather(self, name: str) -> dict[int, CommStep]:
        """The step of each holder that gathers a parameter where it is used."""
        if name not in self.local:
            self.local[name] = self.buckets.local_gather(name)
        return self.local[name]

    def tables(self) -> ZeroTables:
        """Everything by rank."""
        shared = self.shared
        owned = {name: self.ownership.owned(name) for name in shared}
        shards = self.params.shards(owned, self.zero)
        if self.zero >= ZERO_GRADS:
            reduced = [each for each in self.trained if each.name in shared]
            rest = [each for each in self.trained if each.name not in shared]
            grads = self.buckets.reductions(reduced)
            grads = self.params.grad_buckets([each.name for each in rest], grads)
        else:
            grads = self.params.grad_buckets([each.name for each in self.trained], {})
        gathers = self.buckets.gathers(shared - self.inside, self.zero == ZERO_PARAMS)
        return ZeroTables(shards, grads, gathers, self.buckets.steps)


def _by_rank(holders: Iterable[Holder]) -> Mapping[int, Holder]:
    return {holder.rank: holder for holder in holders}
