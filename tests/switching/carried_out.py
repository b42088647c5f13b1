"""A plan carried out in one process, tensor by tensor, by the places of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from hspmd_compiler.program.boxes import slices, volume
from hspmd_compiler.program.program import RankProgram, Shard
from hspmd_compiler.program.state.part_places import part_places, parts_between, read_places, write_places
from hspmd_compiler.program.state.state_elements import (
    StateExtent,
    element_type,
    gradients_of,
    has_copy,
    held,
    is_run,
    kinds_of,
    needed,
    pairs,
    source_kind,
)
from hspmd_compiler.program.switch_plan import COPY, VALUE, SwitchClass, SwitchPlan

Programs = Mapping[int, RankProgram]
State = dict[tuple[int, str, str], Tensor]
"""By world rank, parameter and kind: a local tensor or a run."""
Wholes = Mapping[tuple[str, str], Tensor]
"""By parameter and kind."""


def wholes_of(programs: Iterable[RankProgram], kinds: tuple[str, ...]) -> Wholes:
    """Numbers of their own for every element of every kind; a copy is the value in its type."""
    generator = torch.Generator().manual_seed(0)
    found: dict[tuple[str, str], Tensor] = {}
    for program in programs:
        for shard in program.shards:
            for kind in kinds:
                if (shard.name, kind) not in found:
                    made = torch.randn(shard.whole_view, generator=generator, dtype=torch.float64)
                    found[shard.name, kind] = found[shard.name, VALUE] if kind == COPY else made
    return found


def filled(
    programs: Programs, wholes: Wholes, plan: SwitchPlan, moments: tuple[str, ...], after: bool
) -> State:
    """What ranks hold before, or need after."""
    state: State = {}
    for rank, program in programs.items():
        gradients = gradients_of(program)
        for shard in program.shards:
            for kind in kinds_of(plan.scope, moments):
                extent = needed(shard, kind, plan.scope, gradients) if after else held(shard, kind, gradients)
                if extent is not StateExtent.NONE and source_kind(shard, kind) == kind:
                    dtype = getattr(torch, element_type(shard, kind, gradients))
                    state[rank, shard.name, kind] = tensor_of(shard, kind, extent, wholes, dtype)
    return state


def tensor_of(shard: Shard, kind: str, extent: StateExtent, wholes: Wholes, dtype: torch.dtype) -> Tensor:
    """Zeros where nothing is held or needed."""
    whole = wholes[shard.name, kind].to(getattr(torch, shard.dtype)).to(dtype)
    if is_run(shard, kind):
        rows = [whole[slices(there)].reshape(-1) for there, _ in pairs(shard, extent)]
        return torch.cat([whole.new_empty(0), *rows])
    local = torch.zeros(shard.view, dtype=dtype)
    for there, here in pairs(shard, extent):
        local[slices(here)] = whole[slices(there)]
    return local


def carried_out(plan: SwitchPlan, before: Programs, after: Programs, given: State, empty: State) -> State:
    """The state after all moves, and after copies are cast of values that are there."""
    found = {key: torch.zeros_like(tensor) for key, tensor in empty.items()}
    for each in plan.classes:
        for rank in each.needers:
            if rank in each.holders:
                copy(each, 0, elements(each), (rank, before, given), (rank, after, found))
        for is_relay in (False, True):
            for move in each.moves:
                if move.is_relay is is_relay:
                    source = (move.source, after, found) if is_relay else (move.source, before, given)
                    copy(each, move.low, move.high, source, (move.target, after, found))
    cast_copies(after, found)
    return found


def elements(each: SwitchClass) -> int:
    return sum(volume(part.boxes) for part in each.parts)


def copy(
    each: SwitchClass,
    low: int,
    high: int,
    source: tuple[int, Programs, State],
    target: tuple[int, Programs, State],
) -> None:
    """All kinds of some elements of a class, from one rank's tensors to another's."""
    shards = [
        {shard.name: shard for shard in programs[rank].shards} for rank, programs, _ in (source, target)
    ]
    for part, start, stop in parts_between(each, low, high):
        mine, theirs = (held[part.name] for held in shards)
        for kind in each.kinds:
            read = source_kind(mine, kind)
            into = target[2][target[0], part.name, kind]
            places = part_places(part, start, stop, mine, read)
            row = read_places(source[2][source[0], part.name, read], places, into.dtype)
            write_places(into, part_places(part, start, stop, theirs, kind), row)


def cast_copies(programs: Programs, state: State) -> None:
    """Of what a rank trains the copy is the value, cast."""
    for rank, program in programs.items():
        for shard in program.shards:
            copied, value = state.get((rank, shard.name, COPY)), state.get((rank, shard.name, VALUE))
            if has_copy(shard) and copied is not None and value is not None:
                start = 0
                for box in shard.kept:
                    target = copied.view(shard.view)[slices(box)]
                    row = value.reshape(-1)[start : start + target.numel()]
                    target.copy_(row.view(target.shape))
                    start += target.numel()
