"""Every rank's pieces of parameters, and the buckets that reduce their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..annotations.layout import Layout, whole
from ..comm_plan import Box, GradBucket
from ..graph.annotated import PipelineGraph
from ..graph.ir import LogicalGraph, ParamInfo
from ..passes.grad_sync import (
    GradLayout,
    Holder,
    buckets,
    make_holders,
    make_term,
    owned_boxes,
    shard_boxes,
)
from .program import Shard
from .strategy_ranks import StrategyRanks

Place = tuple[Layout, tuple[int, ...]]


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

    def grad_buckets(self) -> dict[int, list[GradBucket]]:
        """The gradient buckets of each rank, in the order in which they are reduced."""
        dtypes = {name: str(info.dtype).removeprefix("torch.") for name, info in self.graph.params.items()}
        return buckets(self._grad_layouts(), dtypes)

    def _grad_layouts(self) -> dict[str, GradLayout]:
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

    def shards(self) -> dict[int, list[Shard]]:
        """What each rank holds of each parameter, in the model's order."""
        result: dict[int, list[Shard]] = {}
        owners: dict[int, dict[int, tuple[tuple[Box, Box], ...]]] = {}
        for name, info in self.graph.params.items():
            holders = self._holders(name)
            if id(holders) not in owners:
                owners[id(holders)] = owned_boxes(holders)
            made: dict[object, Shard] = {}
            for holder in holders:
                owned = owners[id(holders)][holder.rank]
                key = (holder.region, owned)
                if key not in made:
                    made[key] = _shard(info, holder, owned)
                result.setdefault(holder.rank, []).append(made[key])
        return result

    def _holders(self, name: str) -> tuple[Holder, ...]:
        """Every rank's piece of a parameter; parameters that are held alike have one tuple."""
        places = self.places[name]
        if places not in self.holders:
            self.holders[places] = tuple(
                holder for layout, ranks in places for holder in make_holders(layout, ranks)
            )
        return self.holders[places]


def _shard(info: ParamInfo, holder: Holder, owned: tuple[tuple[Box, Box], ...]) -> Shard:
    return Shard(
        name=info.name,
        dtype=str(info.dtype).removeprefix("torch."),
        shape=holder.view,
        view=holder.view,
        whole_shape=info.shape,
        whole_view=info.shape,
        boxes=shard_boxes(holder),
        owned=owned,
        trainable=info.trainable,
        is_buffer=info.is_buffer,
        persistent=info.persistent,
    )
