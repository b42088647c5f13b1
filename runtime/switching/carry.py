"""Carries one rank's state out of the places of one strategy into those of another, bit for bit.

The driver of `carrying` moves bytes between ranks; nothing here knows how. Elements are cast only where a
rank has the trained value of what is needed as a copy in the type of segments.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from ...program.state.part_places import place_in, read_places, write_places
from ...program.state.state_elements import source_kind
from ...program.switch_plan import SwitchPlan
from .held import HeldState, StateLayout, TensorKey
from .messages import arriving_rows, leaving_rows, places_of, take_rows
from .stages import ROUND_BYTES, CarryStages, moments_in, stages_of
from .streams import MovedPart

if TYPE_CHECKING:
    from ..transport import Transport


@dataclass(frozen=True, slots=True)
class CarryRound:
    """Messages of one rank: rows that leave, and memory for those that arrive, by the other world rank."""

    leaving: Mapping[int, Sequence[Tensor]]
    arriving: Mapping[int, Sequence[Tensor]]


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
            sent(sum(row.numel() for rows in messages.leaving.values() for row in rows))
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
            found.make(key, device, key in stages.filled)
        for each in stage.copies:
            copy_moved(each, before, found, stages.kept)
        if stage.sends or stage.receives:
            source = found if stage.relays else before
            arriving = {peer: arriving_rows(found, parcel, device) for peer, parcel in stage.receives.items()}
            yield CarryRound(
                {peer: leaving_rows(source, parcel, device) for peer, parcel in stage.sends.items()}, arriving
            )
            for peer, parcel in stage.receives.items():
                take_rows(found, parcel, arriving.pop(peer))
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


def copy_moved(each: MovedPart, before: HeldState, found: HeldState, kept: Sequence[TensorKey] = ()) -> None:
    """Elements that the rank has before and needs after."""
    name = each.part.name
    for kind in each.kinds:
        if (name, kind) in kept:
            continue
        origin = source_kind(before.layout.shards[name], kind)
        read = places_of(each, before.layout, origin)
        written = places_of(each, found.layout, kind)
        source, target = before.tensor((name, origin)), found.tensor((name, kind))
        if len(read) == len(written) == 1:
            values, into = place_in(source, read[0]), place_in(target, written[0])
            if values.shape == into.shape:
                into.copy_(values)
                continue
        write_places(target, written, read_places(source, read, target.dtype))
