"""How gradients are summed, and how parameters that ZeRO stores in shares come to all of their holders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..base.comm_plan import CommStep, CostModel, GradBucket, ParamBucket
from ..base.dtypes import BYTES
from ..program.program import ZERO_GRADS, ZERO_PARAMS
from .compile_state import Shared, Synced, grown
from .grad_buckets import Holder, LayoutReduction, buckets, reductions_of
from .gradients.bucket_size import bucket_size
from .gradients.waves import BackwardOrders, Waves, cut_runs, find_waves, same_runs, waves_lines
from .param_places import ParamPlaces
from .pass_chain import Pass
from .resolve_comm import CommResolver
from .texts.cells import Line, joined, ranks_text
from .zero.collectives import ZeroBuckets
from .zero.zero import Ownership

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
    buckets_of: BucketMaker,
) -> Reductions:
    """The buckets of all ranks; parameters that are not stored in shares are all-reduced."""
    if ownership is None:
        return Reductions(buckets_of(places.gradients, {}))
    made = _zero_buckets(places, ownership, resolver)
    shared = ownership.shared
    grads: Grads = {}
    rest: Iterable[str] = places.gradients
    if zero >= ZERO_GRADS:
        grads = made.reductions([each for each in ownership.trained if each.name in shared])
        rest = [name for name in places.gradients if name not in shared]
    grads = buckets_of(rest, grads)
    gathers = made.gathers(shared - inside, zero == ZERO_PARAMS)
    return Reductions(grads, gathers, made.steps, made)


@dataclass(frozen=True, slots=True)
class BucketMaker:
    """All-reduces of gradients, in waves where these start before the end. known: how layouts are reduced."""

    places: ParamPlaces
    known: Mapping[int, LayoutReduction]
    waves: Waves

    @classmethod
    def of(cls, state: Shared, cost: CostModel | None) -> BucketMaker:
        """With the waves that a strategy leads to."""
        known = reductions_of(state.places.gradients)
        return cls(state.places, known, _waves(state, known, cost))

    def __call__(self, names: Iterable[str], before: Grads) -> Grads:
        """The buckets `before`, then those of these parameters."""
        layouts = {name: self.places.gradients[name] for name in names}
        dtypes = {name: self.places.types(name)[1] for name in layouts}
        first = 1 + max((bucket.id for held in before.values() for bucket in held), default=-1)
        made = buckets(layouts, dtypes, first, self.waves.of, self.known)
        return {rank: [*before.get(rank, ()), *made.get(rank, ())] for rank in before.keys() | made.keys()}


def _waves(state: Shared, known: Mapping[int, LayoutReduction], cost: CostModel | None) -> Waves:
    """What is summed while backward goes on: gradients of which each rank keeps all that it holds."""
    strategy, layouts = state.strategy, state.places.gradients
    if strategy.zero >= ZERO_GRADS:
        return Waves(note=f"with zero {strategy.zero} gradients are handed over behind backward passes")
    if strategy.has_lanes:
        return Waves(note="devices run several stages of a pipeline")
    if any(
        strategy.splits_backward(number, stage)
        for number, pipeline in enumerate(strategy.pipelines)
        for stage in range(len(pipeline.stages))
    ):
        return Waves(note="a schedule leaves gradients of weights to later")
    if strategy.bucket_bytes == 0:
        return Waves(note="bucket_bytes is 0")
    if state.sum_groups:  # stages come to these at other places of a pass, the same ranks to both
        return Waves(note="sums over the batch are made within passes")
    summed = {name: known[id(layout)] for name, layout in layouts.items() if known[id(layout)].groups}
    rows = {name: state.graph.params[name].grad or 0 for name in summed}
    orders = BackwardOrders(sorted(summed, key=rows.__getitem__), state.pipelines, state.live)
    if strategy.same_buckets:
        return find_waves(orders, same_runs(orders, strategy.same_buckets))
    sizes = {name: it.local_size * BYTES[state.places.types(name)[1]] for name, it in summed.items()}
    group = max((group for it in summed.values() for group in it.groups), key=len, default=())
    size = bucket_size(strategy.bucket_bytes, cost, group, sum(sizes.values()))
    return find_waves(orders, cut_runs(orders, sizes, size.first, size.most))


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


def reductions_text(made: Reductions) -> str:
    """Per bucket its ranks, what it sums, and how."""
    buckets: dict[int, GradBucket] = {}
    for _, held in sorted(made.grads.items()):
        for bucket in held:
            if bucket.id not in buckets or not buckets[bucket.id].given:
                buckets[bucket.id] = bucket
    lines: list[Line] = []
    for number, bucket in sorted(buckets.items()):
        names = ", ".join(dict.fromkeys(piece.param for piece in bucket.given))
        how = "kept" if len(bucket.group) == 1 else "all_reduce" if bucket.slot < 0 else "reduce_scatter"
        how += f", wave {bucket.wave}" if bucket.wave >= 0 else ""
        size = sum(piece.length for piece in bucket.given)
        lines.append(
            (f"bucket {number}", how, f"ranks {ranks_text(bucket.group)}", bucket.dtype, f"{size}", names)
        )
    gathers = {bucket.id: bucket for _, held in sorted(made.gathers.items()) for bucket in held}
    for number, gather in sorted(gathers.items()):
        names = ", ".join(dict.fromkeys(piece.param for piece in gather.pieces))
        lines.append((f"gather {number}", "", f"ranks {ranks_text(gather.group)}", gather.dtype, "", names))
    return joined(lines)


@dataclass(frozen=True, slots=True)
class GradSync(Pass[Shared, Synced]):
    """Elements with the same contributors and holders share a bucket, up to its size.

    cost: what ways of conversions, forms of gathers and sizes of buckets are compared by.
    """

    cost: CostModel | None = None

    def run(self, state: Shared) -> Synced:
        resolver = CommResolver(self.cost)
        maker = BucketMaker.of(state, self.cost)
        zero = state.strategy.zero
        made = reductions(state.places, state.ownership, state.inside, zero, resolver, maker)
        return grown(Synced, state, resolver=resolver, reductions=made, waves=maker.waves)

    def text(self, before: Shared, after: Synced) -> str:
        return reductions_text(after.reductions) + joined([*waves_lines(after.waves)])

    def problems(self, before: Shared, after: Synced) -> Iterator[str]:
        """Every gradient is summed, by ranks that are members of its bucket."""
        buckets = {id(bucket): bucket for held in after.reductions.grads.values() for bucket in held}
        summed = {piece.param for bucket in buckets.values() for piece in bucket.pieces}
        trained = {name for name, layout in after.places.gradients.items() if 0 not in layout.shape}
        if trained - summed:
            yield f"no bucket sums the gradients of {sorted(trained - summed)}"
        for rank, held in after.reductions.grads.items():
            yield from (
                f"rank {rank} is not in the group {bucket.group} of its bucket {bucket.id}"
                for bucket in held
                if rank not in bucket.group
            )
        started = {bucket.wave for bucket in buckets.values()} - {-1}
        if started - {*after.waves.of.values()}:
            yield f"buckets of waves {sorted(started)}, of which no stage starts some"
