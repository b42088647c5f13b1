"""Every rank's pieces of parameters, and the buckets that reduce their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ..annotations.layout import Layout, whole
from ..comm_plan import Box, GradBucket
from ..graph.annotated import PipelineGraph
from ..graph.ir import LogicalGraph, ParamInfo
from ..passes.grad_sync import (
    GradLayout,
    Holder,
    Region,
    buckets,
    make_holders,
    make_term,
    owned_boxes,
    shard_boxes,
)
from .arrays import NARROW_TYPES
from .program import Shard
from .strategy_ranks import StrategyRanks

Owned = Mapping[int, tuple[Box, ...]]
Place = tuple[Layout, tuple[int, ...]]
Alike = tuple[Holder, tuple[tuple[Box, Box], ...], list[int]]


@dataclass(slots=True)
class ParamLowering:
    """Where parameters lie, over all pipelines; parameters that lie alike share their tables.

    places: layout and ranks of every stage that holds a parameter.
    """

    graph: LogicalGraph
    pipelines: Sequence[PipelineGraph]
    ranks: StrategyRanks
    places: dict[str, tuple[Place, ...]] = field(init=False)
    holders: dict[tuple[Place, ...], tuple[Holder, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = self._find_places()

    def _find_places(self) -> dict[str, tuple[Place, ...]]:
        """Layout and ranks of each stage with a parameter; unused ones are whole in the first stages."""
        found: dict[str, list[Place]] = {name: [] for name in self.graph.params}
        for p, graph in enumerate(self.pipelines):
            used = set()
            for (name, stage), value in sorted(graph.params.items(), key=lambda item: item[0]):
                found[name].append((value.layout, self.ranks.of_stage(p, stage)))
                used.add(name)
            for name in self.graph.params.keys() - used:
                found[name].append((whole(self.graph.params[name].shape), self.ranks.of_stage(p, 0)))
        return {name: tuple(places) for name, places in found.items()}

    def grad_buckets(
        self, names: Sequence[str], before: dict[int, list[GradBucket]]
    ) -> dict[int, list[GradBucket]]:
        """The gradient buckets of each rank, in the order in which they are reduced: those `before`, then
        the all-reduces of these parameters."""
        layouts = self.grad_layouts()
        dtypes = {name: self.types(name)[1] for name in names}
        first = 1 + max((bucket.id for held in before.values() for bucket in held), default=-1)
        made = buckets({name: layouts[name] for name in names}, dtypes, first)
        return {rank: [*before.get(rank, ()), *made.get(rank, ())] for rank in before.keys() | made.keys()}

    def types(self, name: str) -> tuple[str, str]:
        """The types that a parameter is read and its gradients are summed in."""
        info = self.graph.params[name]
        read = dtype_name(info.dtype)
        summed = torch.float32 if info.dtype in NARROW_TYPES else info.dtype
        return read, dtype_name(summed)

    def grad_layouts(self) -> dict[str, GradLayout]:
        """What each parameter's reduction depends on; equal ones are one object."""
        terms: dict[str, list[Place]] = {}
        for p, graph in enumerate(self.pipelines):
            for term in graph.grads:
                place = (term.value.layout, self.ranks.of_stage(p, term.stage))
                terms.setdefault(term.param, []).append(place)
        known: dict[object, GradLayout] = {}
        for name, places in terms.items():
            key = (tuple(places), self.places[name])
            if key not in known:
                made = tuple(make_term(layout, ranks) for layout, ranks in places)
                known[key] = GradLayout(self.graph.params[name].shape, made, self._holders(name))
        return {
            name: known[tuple(terms[name]), self.places[name]] for name in self.graph.params if name in terms
        }

    def shards(self, shared: Mapping[str, Owned], zero: int) -> dict[int, list[Shard]]:
        """What each rank holds of each parameter, in the model's order.

        shared: boxes by rank of parameters that are owned in shares; zero: what is owned of these.
        """
        result: dict[int, list[Shard]] = {}
        alike: dict[int, list[Alike]] = {}
        for name, info in self.graph.params.items():
            holders = self._holders(name)
            if name in shared:
                for rank, shard in _in_shares(info, holders, shared[name], zero):
                    result.setdefault(rank, []).append(shard)
                continue
            if id(holders) not in alike:
                alike[id(holders)] = _alike(holders)
            for holder, owned, ranks in alike[id(holders)]:
                shard = _shard(info, holder, owned)
                for rank in ranks:
                    result.setdefault(rank, []).append(shard)
        return result

    def _holders(self, name: str) -> tuple[Holder, ...]:
        """Every rank's piece of a parameter; parameters that are held alike have one tuple."""
        places = self.places[name]
        if places not in self.holders:
            self.holders[places] = tuple(
                holder for layout, ranks in places for holder in make_holders(layout, ranks)
            )
        return self.holders[places]


def _alike(holders: tuple[Holder, ...]) -> list[Alike]:
    """Holders of one piece that own the same elements of it: the first, what they own, and the ranks."""
    owned = owned_boxes(holders)
    found: dict[object, Alike] = {}
    for holder in holders:
        own = owned[holder.rank]
        found.setdefault((holder.region, own), (holder, own, []))[2].append(holder.rank)
    return list(found.values())


def _in_shares(
    info: ParamInfo, holders: tuple[Holder, ...], owned: Owned, zero: int
) -> Iterator[tuple[int, Shard]]:
    """A shard per holder of a parameter that is owned in shares; those of one piece differ in these only."""
    bare: dict[Region, Shard] = {}
    for holder in holders:
        if holder.region not in bare:
            bare[holder.region] = _shard(info, holder, (), zero)
        boxes = owned.get(holder.rank, ())
        own = tuple(zip(boxes, holder.local(boxes), strict=True))
        yield holder.rank, replace(bare[holder.region], owned=own)


def dtype_name(dtype: torch.dtype) -> str:
    """A torch element type by name."""
    return str(dtype).removeprefix("torch.")


def _shard(info: ParamInfo, holder: Holder, owned: tuple[tuple[Box, Box], ...], zero: int = 0) -> Shard:
    stored = info.dtype if info.stored is None else info.stored
    return Shard(
        name=info.name,
        dtype=dtype_name(stored),
        shape=holder.view,
        view=holder.view,
        whole_shape=info.shape,
        whole_view=info.shape,
        boxes=shard_boxes(holder),
        owned=owned,
        trainable=info.trainable,
        is_buffer=info.is_buffer,
        persistent=info.persistent,
        zero=zero,
        compute="" if stored == info.dtype else dtype_name(info.dtype),
    )
