"""Every rank's pieces of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...base.comm_plan import Box
from ...ir.graph import ParamInfo
from ...ir.type_text import dtype_name
from ...program.program import Shard
from ..grad_buckets import Holder, Region, owned_boxes, shard_boxes
from ..param_places import ParamPlaces
from ..zero.zero import Ownership

Owned = Mapping[int, tuple[Box, ...]]
AlikeGradient = tuple[Holder, tuple[tuple[Box, Box], ...], list[int]]


def lower_shards(places: ParamPlaces, ownership: Ownership | None, zero: int) -> dict[int, list[Shard]]:
    """What each rank holds of each parameter, in the model's order. zero: what is owned in shares."""
    shared = {} if ownership is None else {name: ownership.owned(name) for name in ownership.shared}
    result: dict[int, list[Shard]] = {}
    alike: dict[int, list[AlikeGradient]] = {}
    for name, info in places.graph.params.items():
        holders = places.holders(name)
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


def _alike(holders: tuple[Holder, ...]) -> list[AlikeGradient]:
    """Holders of one piece that own the same elements of it: the first, what they own, and the ranks."""
    owned = owned_boxes(holders)
    found: dict[object, AlikeGradient] = {}
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
