"""Carries one rank's state out of the places of one strategy into those of another, bit for bit.

The driver of `carrying` moves bytes between ranks; nothing here knows how. Elements are cast only where a
rank has the trained value of what is needed as a copy in the type of segments.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from ...program.state.part_places import TensorPlace, part_places, place_in, read_places, write_places
from ...program.state.state_elements import source_kind
from ...program.switch_plan import SwitchPlan
from .held import HeldState, StateLayout, TensorKey
from .stages import ROUND_BYTES, CarryStages, moments_in, stages_of
from .streams import MovedPart, Parcel

if TYPE_CHECKING:
    from ..transport import Transport


@dataclass(frozen=True, slots=True)
class CarryRound:
    """Messages of one rank: bytes that leave, and memory for those that arrive, by the other world rank."""

    leaving: Mapping[int, Tensor]
    arriving: Mapping[int, Tensor]


Carrying: TypeAlias = Generator[CarryRound, None, HeldState]


def carry(
    plan: SwitchPlan,
    world_rank: int,
    before: HeldState,
    after: StateLayout,
    mover: Transport,
    round_bytes: int = ROUND_BYTES,
    keep_source: bool = False,
    sent: Callable[[int], None] = lambda size: None,
) -> HeldState:
    """What this rank goes on with; every rank that the plan names calls it. See `carrying`.

    sent: hears the bytes of each round that this rank has sent.
    """
    run = carrying(plan, world_rank, before, after, mover.device, round_bytes, keep_source)
    try:
        while True:
            messages = next(run)
            mover.swap_runs(messages.leaving, messages.arriving)
            sent(sum(row.numel() for row in messages.leaving.values()))
            del messages  # before the next ones are made
    except StopIteration as end:
        held: HeldState = end.value
        return held


def carrying(
    plan: SwitchPlan,
    world_rank: int,
    before: HeldState,
    after: StateLayout,
    device: torch.device,
    round_bytes: int = ROUND_BYTES,
    keep_source: bool = False,
) -> Carrying:
    """The rounds of a switch, each over before the next one is asked for.

    round_bytes: of all messages of a rank in a round. Tensors of `before` are let go as soon as nothing reads
    them, unless `keep_source`; those that stay where they are belong to both then. `CarryStages.peak_bytes`
    says the memory that this takes at most.
    """
    stages = prepared(plan, world_rank, before, after, device, round_bytes)
    found = HeldState(after)
    for key in stages.kept:
        found.put(key, before.tensor(key))
    for stage in stages.stages:
        for key in stage.makes:
            found.make(key, device)
        for each in stage.copies:
            _copy(each, before, found, stages.kept)
        if stage.sends or stage.receives:
            source = found if stage.relays else before
            arriving = {peer: _empty(found, parcel, device) for peer, parcel in stage.receives.items()}
            yield CarryRound(
                {peer: _packed(source, parcel, device) for peer, parcel in stage.sends.items()}, arriving
            )
            for peer, parcel in stage.receives.items():
                _unpack(arriving.pop(peer), found, parcel)
        for key in stage.frees if not keep_source else ():
            before.drop(key)
    found.cast_copies(stages.kept)
    return found


def prepared(
    plan: SwitchPlan,
    world_rank: int,
    before: HeldState,
    after: StateLayout,
    device: torch.device,
    round_bytes: int = ROUND_BYTES,
) -> CarryStages:
    """The stages of a rank. A moment that is moved and isn't there yet is made of zeros, as by an update."""
    for key, _ in before.layout.needs(plan.scope, moments_in(plan)):
        if key[1] in moments_in(plan) and not before.holds(key):
            before.make(key, device)
    return stages_of(plan, world_rank, before.layout, after, before.tensor_keys(), round_bytes)


def _copy(each: MovedPart, before: HeldState, found: HeldState, kept: Sequence[TensorKey]) -> None:
    """Elements that the rank has before and needs after."""
    name = each.part.name
    for kind in each.kinds:
        if (name, kind) in kept:
            continue
        origin = source_kind(before.layout.shards[name], kind)
        read = _places(each, before.layout, origin)
        written = _places(each, found.layout, kind)
        source, target = before.tensor((name, origin)), found.tensor((name, kind))
        if len(read) == len(written) == 1:
            values, into = place_in(source, read[0]), place_in(target, written[0])
            if values.shape == into.shape:
                into.copy_(values)
                continue
        write_places(target, written, read_places(source, read, target.dtype))


def _places(each: MovedPart, layout: StateLayout, kind: str) -> tuple[TensorPlace, ...]:
    return part_places(each.part, each.low, each.high, layout.shards[each.part.name], kind)


@dataclass(frozen=True, slots=True)
class _Entry:
    """Elements of one kind in a message: its bytes [start, end), of a type."""

    moved: MovedPart
    kind: str
    dtype: torch.dtype
    start: int
    end: int


def _entries(layout: StateLayout, parcel: Parcel) -> Iterator[_Entry]:
    """What a message holds, wide types first, so that each element begins at a multiple of its size."""
    found = [(each, kind, layout.dtype((each.part.name, kind))) for each in parcel for kind in each.kinds]
    start = 0
    for each, kind, dtype in sorted(found, key=lambda entry: -entry[2].itemsize):
        end = start + each.size * dtype.itemsize
        yield _Entry(each, kind, dtype, start, end)
        start = end


def _empty(found: HeldState, parcel: Parcel, device: torch.device) -> Tensor:
    size = max(entry.end for entry in _entries(found.layout, parcel))
    return torch.empty(size, dtype=torch.uint8, device=device)


def _packed(source: HeldState, parcel: Parcel, device: torch.device) -> Tensor:
    entries = list(_entries(source.layout, parcel))
    message = torch.empty(entries[-1].end, dtype=torch.uint8, device=device)
    for entry in entries:
        name = entry.moved.part.name
        origin = source_kind(source.layout.shards[name], entry.kind)
        tensor, row = source.tensor((name, origin)), message[entry.start : entry.end].view(entry.dtype)
        start = 0
        for place in _places(entry.moved, source.layout, origin):
            seen = place_in(tensor, place)
            row[start : start + seen.numel()].view(seen.shape).copy_(seen)
            start += seen.numel()
    return message


def _unpack(message: Tensor, found: HeldState, parcel: Parcel) -> None:
    for entry in _entries(found.layout, parcel):
        target = found.tensor((entry.moved.part.name, entry.kind))
        row = message[entry.start : entry.end].view(entry.dtype)
        write_places(target, _places(entry.moved, found.layout, entry.kind), row)
