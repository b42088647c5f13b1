"""How gradients are summed, and how parameters that ZeRO stores in shares come to all of their holders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..base.comm_plan import CommStep, GradBucket, ParamBucket
from ..program.program import ZERO_GRADS, ZERO_PARAMS
from .grad_sync import Holder, buckets
from .param_places import ParamPlaces
from .resolve_comm import CommResolver
from .zero.zero import Ownership
from .zero.zero_buckets import ZeroBuckets

Grads = dict[int, list[GradBucket]]


@dataclass(frozen=True, slots=True)
class Reductions:
    """By rank, in the order in which they are done. steps: what the buckets do, by slot; more than the
    rank's other ones. zero: what gathers parameters where they are used."""

    grads: Mapping[int, list[GradBucket]]
    gathers: Mapping[int, list[ParamBucket]] = field(default_factory=dict)
    steps: Mapping[int, list[CommStep]] = field(default_factory=dict)
    zero: ZeroBuckets | None = None


def reductions(
    places: ParamPlaces,
    ownership: Ownership | None,
    inside: frozenset[str],
    zero: int,
    resolver: CommResolver,
) -> Reductions:
    """The buckets of all ranks; parameters that are not stored in shares are all-reduced."""
    if ownership is None:
        return Reductions(_all_reduces(places, places.gradients, {}))
    made = _zero_buckets(places, ownership, resolver)
    shared = ownership.shared
    grads: Grads = {}
    rest: Iterable[str] = places.gradients
    if zero >= ZERO_GRADS:
        grads = made.reductions([each for each in ownership.trained if each.name in shared])
        rest = [name for name in places.gradients if name not in shared]
    grads = _all_reduces(places, rest, grads)
    gathers = made.gathers(shared - inside, zero == ZERO_PARAMS)
    return Reductions(grads, gathers, made.steps, made)


def _all_reduces(places: ParamPlaces, names: Iterable[str], before: Grads) -> Grads:
    """Those `before`, then the all-reduces of these parameters."""
    layouts = {name: places.gradients[name] for name in names}
    dtypes = {name: places.types(name)[1] for name in layouts}
    first = 1 + max((bucket.id for held in before.values() for bucket in held), default=-1)
    made = buckets(layouts, dtypes, first)
    return {rank: [*before.get(rank, ()), *made.get(rank, ())] for rank in before.keys() | made.keys()}


def _zero_buckets(places: ParamPlaces, ownership: Ownership, resolver: CommResolver) -> ZeroBuckets:
    layouts = places.gradients
    holders = {name: _by_rank(layout.holders) for name, layout in layouts.items()}
    sources = {
        name: _by_rank(holder for term in layout.terms for holder in term.holders)
        for name, layout in layouts.items()
    }
    dtypes = {each.name: each.dtype for each in ownership.trained}
    return ZeroBuckets(ownership, sources, holders, dtypes, resolver)


def _by_rank(holders: Iterable[Holder]) -> Mapping[int, Holder]:
    return {holder.rank: holder for holder in holders}
