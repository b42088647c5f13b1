"""Which parameters of ZeRO-3 come by one gather: those of a layer, of one type and with the same holders.

What no layer has goes together as it is used, up to a size. A parameter that several layers read comes alone:
its memory would keep that of all others. Of a group a rank gets one flat run: so each parameter has to be one
run of memory in the local tensors of all of its holders, in the order in which its elements are shared out.
Others come alone, box by box.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from ...base.comm_plan import Box, box_volume
from ...base.dtypes import BYTES
from ...ir.annotated import PipelineGraph
from ...ir.graph import LogicalGraph
from ...program.boxes import in_one_run
from ..grad_buckets import GradLayout
from ..gradients.bucket_size import bucket_size
from ..liveness import LivePipeline
from ..param_places import ParamPlaces
from ..recompute import layers_of
from .zero import Ranks, parts_of

Uses = dict[str, set[tuple[int | None, int]]]
"""Per parameter, in the order of first uses, the layers that read it; outside of layers, behind how many."""
NOT_JOINED = frozenset[Ranks]()


@dataclass(frozen=True, slots=True)
class GatherGroup:
    """names: in the order of the model. is_flat: they come as one run, else there is one, box by box."""

    names: tuple[str, ...]
    is_flat: bool

    def __str__(self) -> str:
        return ", ".join(self.names)


def gather_groups(
    logical: LogicalGraph,
    graphs: Sequence[PipelineGraph],
    live: Sequence[LivePipeline],
    places: ParamPlaces,
    inside: Collection[str],
) -> list[list[GatherGroup]]:
    """The groups of each stage, in the order in which the first pipeline uses them."""
    joining = _Joining(places)
    layers = layers_of(graphs[0], logical)
    return [
        joining.groups(_uses(number, graphs[0], live[0], layers, inside))
        for number in range(len(live[0].stages))
    ]


def _uses(
    stage: int,
    graph: PipelineGraph,
    live: LivePipeline,
    layers: Mapping[int, int | None],
    inside: Collection[str],
) -> Uses:
    names = {value.id: name for (name, at), value in graph.params.items() if at == stage and name in inside}
    uses: Uses = {}
    seen: set[int] = set()
    for row in live.stages[stage].forward:
        layer = layers.get(row.out.id)
        seen |= set() if layer is None else {layer}
        for value in row.reads:
            if value.id in names:
                place = (None, len(seen)) if layer is None else (layer, 0)
                uses.setdefault(names[value.id], set()).add(place)
    return uses | {name: set() for name in names.values() if name not in uses}


@dataclass(slots=True)
class _Joining:
    """known: by layout, the sets of ranks that exchange it as one run."""

    places: ParamPlaces
    known: dict[int, frozenset[Ranks]] = field(default_factory=dict)

    def groups(self, uses: Uses) -> list[GatherGroup]:
        """Of one stage."""
        most = bucket_size(None, None, (), sum(map(self._bytes, uses))).most
        found: dict[object, list[str]] = {}
        filled: dict[object, tuple[int, int]] = {}
        for name, layers in uses.items():
            key: object = (*layers, self._holders(name), self._types(name))
            if len(layers) != 1 or not self._holders(name):
                key = name
            elif None in {layer for layer, _ in layers}:
                part, size = filled.get(key, (0, 0))
                part, size = (part + 1, 0) if size and size + self._bytes(name) > most else (part, size)
                filled[key] = part, size + self._bytes(name)
                key = (key, part)
            found.setdefault(key, []).append(name)
        return [self._group(names) for names in found.values()]

    def _group(self, names: Sequence[str]) -> GatherGroup:
        order = [name for name in self.places.gradients if name in {*names}]
        return GatherGroup(tuple(order), bool(self._holders(order[0])))

    def _types(self, name: str) -> tuple[object, ...]:
        return (*self.places.types(name), self.places.graph.params[name].stored)

    def _bytes(self, name: str) -> int:
        layout = self.places.gradients[name]
        held = max((prod(holder.view) for holder in layout.holders), default=0)
        return held * BYTES[self.places.types(name)[0]]

    def _holders(self, name: str) -> frozenset[Ranks]:
        layout = self.places.gradients[name]
        if id(layout) not in self.known:
            self.known[id(layout)] = exchanging_as_one_run(layout)
        return self.known[id(layout)]


def exchanging_as_one_run(layout: GradLayout) -> frozenset[Ranks]:
    """The sets of ranks of which each exchanges its elements as one run; none where they can't."""
    parts = parts_of(layout)
    sets = frozenset(part.holders for part in parts)
    ranks = [rank for of in sets for rank in of]
    if len(ranks) != len({*ranks}) or {*ranks} != {holder.rank for holder in layout.holders}:
        return NOT_JOINED
    for holder in layout.holders:
        boxes = [box for part in parts if holder.rank in part.holders for box in part.boxes]
        if not _one_behind_the_other(holder.view, holder.local(boxes)):
            return NOT_JOINED
    return sets


def _one_behind_the_other(view: tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Whether boxes, in order, are all of a tensor as it lies in memory."""
    strides = [*accumulate(reversed(view[1:]), lambda size, more: size * more, initial=1)][::-1]
    at = 0
    for box in boxes:
        low = sum(first * stride for (first, _), stride in zip(box, strides, strict=True))
        if low != at or not in_one_run(view, (box,)):
            return False
        at += box_volume(box)
    return at == prod(view)
