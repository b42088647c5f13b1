"""Two places for a state, drawn; whole tensors to cut it from; and plans by brute force, relays too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from random import Random

import torch
from torch import Tensor

from hspmd_compiler.base.comm_plan import Box
from hspmd_compiler.base.dtypes import BYTES
from hspmd_compiler.program.boxes import flat_part, full_box, volume
from hspmd_compiler.program.program import Shard
from hspmd_compiler.program.state.part_places import in_view
from hspmd_compiler.program.state.state_elements import (
    StateExtent,
    element_type,
    has_copy,
    held,
    kinds_of,
    needed,
    pairs,
)
from hspmd_compiler.program.switch_plan import (
    COPY,
    GRAD,
    VALUE,
    Move,
    StatePart,
    SwitchClass,
    SwitchPlan,
    SwitchScope,
)
from hspmd_compiler.program.trained import started
from hspmd_compiler.runtime.shards import boxes_of, fill_kept, fill_shard
from hspmd_compiler.runtime.switching.carry import carrying
from hspmd_compiler.runtime.switching.held import HeldState, StateLayout, TensorKey

MOMENTS = ("exp_avg", "exp_avg_sq")
CPU = torch.device("cpu")
WIDEST_BYTES = 8
MANY = 200
"""Elements of which none is owned apart from its neighbours."""
Layouts = Mapping[int, StateLayout]
Letters = dict[tuple[int, int], list[list[Tensor]]]


@dataclass(frozen=True)
class Tensors:
    """A whole state. values, moments: by parameter, then by kind."""

    values: Mapping[str, Tensor]
    moments: Mapping[str, Mapping[str, Tensor]]
    gradients: Mapping[str, Tensor]


@dataclass(frozen=True)
class Parameter:
    name: str
    dtype: str
    view: tuple[int, ...]
    trainable: bool
    compute: str = ""


def drawn_parameters(random: Random) -> list[Parameter]:
    found = []
    for number in range(random.randint(1, 4)):
        view = tuple(random.choice((1, 2, 3, 4, 6)) for _ in range(random.randint(1, 3)))
        dtype, trainable = random.choice(
            [("float32", True), ("float64", True), ("complex64", True), ("bool", False), ("int64", False)]
        )
        compute = "bfloat16" if dtype == "float32" and random.random() < 0.5 else ""
        found.append(Parameter(f"p{number}", dtype, view, trainable, compute))
    return found


def drawn_layouts(random: Random, parameters: Sequence[Parameter], ranks: int) -> dict[int, StateLayout]:
    """One strategy: each parameter is cut over some ranks, a few times over; any level of ZeRO."""
    zero = random.randrange(4)
    shards: dict[int, list[Shard]] = {rank: [] for rank in range(ranks)}
    for each in parameters:
        order = random.sample(range(ranks), random.randint(1, ranks))
        copies = random.randint(1, len(order))
        groups = [order[number::copies] for number in range(copies)]
        for rank, shard in _cut(random, each, groups, zero if each.trainable else 0).items():
            shards[rank].append(shard)
    return {
        rank: StateLayout(
            {shard.name: shard for shard in of}, {shard.name: shard.dtype for shard in of if shard.trainable}
        )
        for rank, of in shards.items()
    }


def _cut(random: Random, each: Parameter, groups: list[list[int]], zero: int) -> dict[int, Shard]:
    size = prod(each.view)
    places = [_boxes(random, each.view, len(group)) for group in groups]
    owners: dict[tuple[int, int], list[Box]] = {}
    for element in range(size):
        (box,) = flat_part((full_box(each.view),), element, element + 1)
        is_apart = size < MANY and random.random() < 0.3
        copy = random.randrange(len(groups)) if is_apart else element * len(groups) // size
        number = next(n for n, boxes in enumerate(places[copy]) if any(_inside(box, one) for one in boxes))
        boxes = owners.setdefault((copy, number), [])
        joined = _joined(boxes[-1], box) if boxes else None
        is_one = joined is not None and any(_inside(joined, one) for one in places[copy][number])
        boxes[-1:] = [joined] if joined is not None and is_one else [*boxes[-1:], box]
    found = {}
    for copy, group in enumerate(groups):
        for number, rank in enumerate(group):
            found[rank] = _shard(each, places[copy][number], owners.get((copy, number), []), zero)
    return found


def _joined(box: Box, other: Box) -> Box | None:
    """Both as one, where the second goes on behind the first in the last dim."""
    if box[:-1] != other[:-1] or box[-1][1] != other[-1][0]:
        return None
    return (*box[:-1], (box[-1][0], other[-1][1]))


def _inside(box: Box, outer: Box) -> bool:
    return all(a <= low and high <= b for (low, high), (a, b) in zip(box, outer, strict=True))


def _boxes(random: Random, view: tuple[int, ...], count: int) -> list[list[Box]]:
    """The boxes of each of some ranks along one dim, perhaps none."""
    dim = random.randrange(len(view))
    bounds = sorted(random.randint(0, view[dim]) for _ in range(count - 1))
    found = []
    for low, high in zip([0, *bounds], [*bounds, view[dim]], strict=True):
        middle = random.choice((low, (low + high) // 2))
        ranges = [(a, b) for a, b in ((low, middle), (middle, high)) if a < b]
        found.append(
            [tuple(one if at == dim else (0, length) for at, length in enumerate(view)) for one in ranges]
        )
    random.shuffle(found)
    return found


def _shard(each: Parameter, boxes: list[Box], owned: list[Box], zero: int) -> Shard:
    """The local tensor has the boxes one behind the other along the first dim in which they are cut."""
    dims = [at for at in range(len(each.view)) if any(box[at] != (0, each.view[at]) for box in boxes)]
    dim = dims[0] if dims else 0
    placed: list[tuple[Box, Box]] = []
    start = 0
    for box in boxes:
        end = start + box[dim][1] - box[dim][0]
        placed.append((box, tuple((start, end) if at == dim else one for at, one in enumerate(box))))
        start = end
    view = tuple(start if at == dim else length for at, length in enumerate(each.view))
    return Shard(
        each.name,
        each.dtype,
        view,
        view,
        each.view,
        each.view,
        tuple(placed),
        tuple((box, _moved(box, next(pair for pair in placed if _inside(box, pair[0])))) for box in owned),
        each.trainable,
        not each.trainable,
        zero=zero,
        compute=each.compute,
    )


def _moved(box: Box, place: tuple[Box, Box]) -> Box:
    ends = zip(box, *place, strict=True)
    return tuple((low - a + at, high - a + at) for (low, high), (a, _), (at, _) in ends)


def drawn_tensors(random: Random, parameters: Sequence[Parameter]) -> Tensors:
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))

    def values(each: Parameter) -> Tensor:
        dtype = getattr(torch, each.dtype)
        if not each.trainable:
            return torch.randint(0, 2 if each.dtype == "bool" else 1000, each.view, generator=generator).to(
                dtype
            )
        return torch.randn(each.view, dtype=dtype, generator=generator)

    trained = [each for each in parameters if each.trainable]
    return Tensors(
        {each.name: values(each) for each in parameters},
        {each.name: {moment: values(each) for moment in MOMENTS} for each in trained},
        {each.name: values(each) for each in trained},
    )


def state_of(layout: StateLayout, tensors: Tensors, steps: bool = True, grads: bool = False) -> HeldState:
    """What a rank has of whole tensors."""
    shards = layout.shards.values()
    given = {
        shard.name: fill_shard(shard, boxes_of(shard, tensors.values[shard.name]), CPU) for shard in shards
    }
    found = HeldState(layout, started(shards, given))
    for shard in shards:
        for moment, whole in tensors.moments.get(shard.name, {}).items() if steps else ():
            value = fill_kept(shard, boxes_of(shard, whole), CPU)
            if value.numel():
                found.put((shard.name, moment), value)
        if grads and shard.name in layout.gradients:
            found.put((shard.name, GRAD), gradient_of(shard, tensors.gradients[shard.name]))
    return found


def read_by_segments(held_state: HeldState) -> HeldState:
    """The same without what is only trained, where segments read a copy."""
    for name, shard in held_state.layout.shards.items():
        if has_copy(shard):
            held_state.drop((name, VALUE))
    return held_state


def gradients_to_apply(layout: StateLayout, tensors: Tensors) -> HeldState:
    """What an update needs of whole gradients: those that the rank trains, zeros beside them."""
    found = HeldState(layout)
    for name, shard in layout.shards.items():
        if name in layout.gradients:
            trained = replace(shard, boxes=shard.owned) if shard.zero else shard
            gradient = gradient_of(trained, tensors.gradients[name])
            if gradient.numel():
                found.put((name, GRAD), gradient)
    return found


def gradient_of(shard: Shard, whole: Tensor) -> Tensor:
    local = replace(shard, zero=3 if shard.zero >= 2 else 0, compute="")
    return fill_shard(local, boxes_of(local, whole), CPU)


def brute_plan(
    random: Random, before: Layouts, after: Layouts, scope: SwitchScope = SwitchScope.STATE
) -> SwitchPlan:
    """Classes element by element; any holder gives, in pieces, and any needer may pass on what it got."""
    wholes = {
        name: shard
        for of in (before, after)
        for layout in of.values()
        for name, shard in layout.shards.items()
    }
    found: dict[tuple[object, ...], list[StatePart]] = {}
    for name, shard in wholes.items():
        for kind in kinds_of(scope, MOMENTS):
            for (holders, needers), part in _parts(name, kind, shard, before, after, scope):
                size = BYTES[element_type(shard, kind, {name: shard.dtype})]
                found.setdefault((kind, size, holders, needers), []).append(part)
    classes = []
    for (kind, size, holders, needers), parts in found.items():
        moves = _moves(random, holders, needers, sum(volume(part.boxes) for part in parts))  # type: ignore[arg-type]
        classes.append(SwitchClass((kind,), size, holders, needers, tuple(parts), moves))  # type: ignore[arg-type]
    random.shuffle(classes)
    return SwitchPlan("a", "b", scope, tuple(classes))


def _parts(
    name: str, kind: str, shard: Shard, before: Layouts, after: Layouts, scope: SwitchScope
) -> list[tuple[tuple[tuple[int, ...], tuple[int, ...]], StatePart]]:
    size = prod(shard.whole_shape)
    holders: list[list[int]] = [[] for _ in range(size)]
    needers: list[list[int]] = [[] for _ in range(size)]
    begins = {0}
    for side, layouts in ((holders, before), (needers, after)):
        for rank, layout in layouts.items():
            if name not in layout.shards:
                continue
            own = layout.shards[name]
            begins |= {element for extent in StateExtent for element in _begins(own, extent)}
            for element in _wanted(own, kind, scope, layout, side is needers):
                side[element].append(rank)
    by_ranks: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Box]] = {}
    for element in range(size):
        if needers[element]:
            boxes = by_ranks.setdefault((tuple(holders[element]), tuple(needers[element])), [])
            goes_on = boxes and boxes[-1][0][1] == element and element not in begins
            boxes.append(((boxes.pop()[0][0] if goes_on else element, element + 1),))
    return [(key, StatePart(name, (size,), tuple(boxes))) for key, boxes in by_ranks.items()]


def _wanted(shard: Shard, kind: str, scope: SwitchScope, layout: StateLayout, after: bool) -> set[int]:
    """Elements that a rank gives, or that are to come to it."""
    if not after:
        return _elements(shard, held(shard, kind, layout.gradients))
    found = _elements(shard, needed(shard, kind, scope, layout.gradients))
    if kind == COPY and scope is SwitchScope.STATE:
        found -= _elements(shard, needed(shard, VALUE, scope, layout.gradients))
    return found


def _elements(shard: Shard, extent: StateExtent) -> set[int]:
    return {element for low, high in _runs(shard, extent) for element in range(low, high)}


def _begins(shard: Shard, extent: StateExtent) -> set[int]:
    """Where what lies in one place begins, and what lies behind it."""
    return {end for run in _runs(shard, extent) for end in run}


def _runs(shard: Shard, extent: StateExtent) -> list[tuple[int, int]]:
    flat = (prod(shard.whole_view),)
    boxes = [box for whole, _ in pairs(shard, extent) for box in in_view(whole, shard.whole_view, flat)]
    return [run for (run,) in boxes]


def _moves(random: Random, holders: tuple[int, ...], needers: tuple[int, ...], size: int) -> tuple[Move, ...]:
    found: list[Move] = []
    served: list[int] = []
    for needer in needers:
        if needer in holders:
            continue
        bounds = sorted({0, size, *(random.randint(0, size) for _ in range(random.randrange(3)))})
        for low, high in pairwise(bounds):
            if served and random.random() < 0.4:
                found.append(Move(random.choice(served), needer, low, high, True))
            else:
                found.append(Move(random.choice(holders), needer, low, high))
        served.append(needer)
    random.shuffle(found)
    return tuple(found)


def carried(
    plan: SwitchPlan,
    before: Mapping[int, HeldState],
    after: Layouts,
    round_bytes: int,
    keep_source: bool = False,
    letters: Letters | None = None,
) -> dict[int, HeldState]:
    """All ranks' switches in this process, any rank first. letters: takes what went from whom to whom."""
    runs = {
        rank: carrying(plan, rank, before[rank], layout, CPU, round_bytes, keep_source)
        for rank, layout in after.items()
    }
    found: dict[int, HeldState] = {}
    waiting: dict[int, Mapping[int, Sequence[Tensor]]] = {}
    mail: Letters = {}
    while runs:
        moved = False
        for rank in list(runs):
            arriving = waiting.get(rank, {})
            if any(not mail.get((peer, rank)) for peer in arriving):
                continue
            for peer, into in arriving.items():
                for row, came in zip(into, mail[peer, rank].pop(0), strict=True):
                    row.copy_(came)
            moved = True
            waiting.pop(rank, None)
            try:
                messages = next(runs[rank])
            except StopIteration as end:
                found[rank] = end.value
                del runs[rank]
                continue
            for peer, rows in messages.leaving.items():
                for kept in (mail, {} if letters is None else letters):
                    kept.setdefault((rank, peer), []).append([row.clone() for row in rows])
            waiting[rank] = dict(messages.arriving)
            parcels = [*messages.leaving.values(), *messages.arriving.values()]
            size = sum(row.numel() for rows in parcels for row in rows)
            assert size <= max(round_bytes, len(parcels) * WIDEST_BYTES)
        assert moved, "ranks wait for each other"
    assert not any(mail.values()), "messages are left"
    return found


def differences(found: HeldState, wanted: HeldState) -> list[str]:
    """Tensors that are not the same in every bit."""
    wrong = [f"{key}: {key in found.tensor_keys()} here" for key in _apart(found, wanted)]
    for key in set(found.tensor_keys()) & set(wanted.tensor_keys()):
        one, other = found.tensor(key), wanted.tensor(key)
        if one.dtype != other.dtype or one.shape != other.shape or not torch.equal(one, other):
            wrong.append(f"{key}: {one} is not {other}")
    return wrong


def _apart(one: HeldState, other: HeldState) -> set[TensorKey]:
    return set(one.tensor_keys()) ^ set(other.tensor_keys())
