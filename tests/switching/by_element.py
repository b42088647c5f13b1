"""What every element of a plan goes through, one by one: who has it, who needs it, who gets it from whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from hspmd_compiler.base.comm_plan import Box
from hspmd_compiler.base.dtypes import BYTES
from hspmd_compiler.program.boxes import slices
from hspmd_compiler.program.program import RankProgram
from hspmd_compiler.program.state.state_elements import (
    element_type,
    gradients_of,
    held,
    kinds_of,
    needed,
    pairs,
)
from hspmd_compiler.program.switch_plan import COPY, VALUE, SwitchClass, SwitchPlan, SwitchScope

Programs = Mapping[int, RankProgram]
Mask = NDArray[np.bool_]
Masks = dict[tuple[str, str, int], Mask]
"""By parameter, kind and world rank: which elements, flat."""


def check_plan(
    plan: SwitchPlan, before: Programs, after: Programs, moments: tuple[str, ...], lost_ok: bool = False
) -> None:
    """Every needer gets every element that it lacks once, from a rank that has it by then."""
    given, wanted = held_masks(before, plan.scope, moments), needed_masks(after, plan.scope, moments)
    seen = {key: np.zeros_like(mask) for key, mask in wanted.items()}
    for each in plan.classes:
        assert each.needers and (each.holders or lost_ok) and each.parts
        elements = elements_of(each)
        for kind in each.kinds:
            check_ranks(each.holders, given, before, kind, elements)
            check_ranks(each.needers, wanted, after, kind, elements)
            for rank in each.needers:
                for name, indices in elements.items():
                    assert not seen[name, kind, rank][indices].any(), "an element is in one class"
                    seen[name, kind, rank][indices] = True
        check_bytes(each, after, elements)
        check_moves(each, sum(map(len, elements.values())))
    for key, mask in wanted.items():
        assert np.array_equal(seen[key], mask), key


def held_masks(programs: Programs, scope: SwitchScope, moments: tuple[str, ...]) -> Masks:
    found: Masks = {}
    for rank, program in programs.items():
        gradients = gradients_of(program)
        for shard in program.shards:
            for kind in kinds_of(scope, moments):
                boxes = [whole for whole, _ in pairs(shard, held(shard, kind, gradients))]
                found[shard.name, kind, rank] = mask_of(shard.whole_view, boxes)
    return found


def needed_masks(programs: Programs, scope: SwitchScope, moments: tuple[str, ...]) -> Masks:
    """A COPY of what the rank needs the VALUE of is cast there."""
    found: Masks = {}
    for rank, program in programs.items():
        gradients = gradients_of(program)
        for shard in program.shards:
            for kind in kinds_of(scope, moments):
                boxes = [whole for whole, _ in pairs(shard, needed(shard, kind, scope, gradients))]
                mask = mask_of(shard.whole_view, boxes)
                found[shard.name, kind, rank] = mask
                if kind == COPY:
                    found[shard.name, kind, rank] = mask & ~found[shard.name, VALUE, rank]
    return found


def mask_of(view: Sequence[int], boxes: Sequence[Box]) -> Mask:
    mask = np.zeros(view, dtype=bool)
    for box in boxes:
        mask[slices(box)] = True
    return mask.reshape(-1)


def elements_of(each: SwitchClass) -> dict[str, NDArray[np.int64]]:
    """Flat indices of the whole, in the order of the class, by parameter."""
    found: dict[str, list[NDArray[np.int64]]] = {}
    for part in each.parts:
        numbers = np.arange(prod(part.view)).reshape(part.view)
        found.setdefault(part.name, []).extend(numbers[slices(box)].reshape(-1) for box in part.boxes)
    return {name: np.concatenate(rows) for name, rows in found.items()}


def check_ranks(
    ranks: Sequence[int],
    masks: Masks,
    programs: Programs,
    kind: str,
    elements: Mapping[str, NDArray[np.int64]],
) -> None:
    """These ranks have all of the elements, and the others none."""
    assert list(ranks) == sorted(set(ranks))
    for name, indices in elements.items():
        for rank in programs:
            mask = masks.get((name, kind, rank))
            inside = mask is not None and mask[indices]
            assert np.all(inside) if rank in ranks else not np.any(inside), (name, kind, rank)


def check_bytes(each: SwitchClass, after: Programs, elements: Mapping[str, object]) -> None:
    program = after[each.needers[0]]
    for shard in program.shards:
        if shard.name in elements:
            types = [element_type(shard, kind, gradients_of(program)) for kind in each.kinds]
            assert each.element_bytes == sum(BYTES[name] for name in types)


def check_moves(each: SwitchClass, count: int) -> None:
    """A source has what it sends, a relay by then; a target gets all that it lacks once, and nothing more."""
    lacking = set(each.needers) - set(each.holders)
    got = {rank: np.zeros(count, dtype=int) for rank in lacking}
    for is_relay in (False, True):
        entered = {rank: row.copy() for rank, row in got.items()}
        for move in each.moves:
            if move.is_relay is is_relay:
                assert 0 <= move.low < move.high <= count
                if is_relay:
                    assert move.source not in each.holders
                    assert entered[move.source][move.low : move.high].all()
                else:
                    assert move.source in each.holders
                got[move.target][move.low : move.high] += 1
    assert all((row == (1 if each.holders else 0)).all() for row in got.values())
