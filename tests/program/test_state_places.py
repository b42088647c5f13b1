"""Elements of state and where they lie: of any view, box and run, against a tensor of their numbers."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.base.comm_plan import Box
from hspmd_compiler.options import Precision
from hspmd_compiler.program.boxes import pack, slices
from hspmd_compiler.program.program import RankProgram, Shard
from hspmd_compiler.program.state.part_places import (
    common_view,
    in_view,
    part_places,
    parts_between,
    read_places,
    write_places,
)
from hspmd_compiler.program.state.state_elements import (
    StateExtent,
    gradients_of,
    has_copy,
    held,
    is_run,
    kinds_of,
    needed,
    pairs,
    source_kind,
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
from hspmd_compiler.program.trained import started, trained_value
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

from ..training.test_memory_savers import LAYERS, graph_of
from ..training.training_cases import program_for

PRIMES = st.sampled_from((1, 2, 2, 3, 5))
MOMENT = "exp_avg"


@st.composite
def box_of(draw: st.DrawFn, view: tuple[int, ...]) -> Box:
    ends = [draw(st.tuples(st.integers(0, size - 1), st.integers(1, size))) for size in view]
    return tuple((min(low, high - 1), max(low + 1, high)) for low, high in ends)


@st.composite
def views_of_one(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two groupings of the same factors, the second perhaps in another order."""
    factors = draw(st.lists(PRIMES, max_size=5))
    return tuple(tuple(grouped(draw, part)) for part in (factors, draw(st.permutations(factors))))  # type: ignore[return-value]


def grouped(draw: st.DrawFn, factors: list[int]) -> list[int]:
    view: list[int] = []
    for factor in factors:
        if view and draw(st.booleans()):
            view[-1] *= factor
        else:
            view.append(factor)
    return view


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_boxes_keep_elements_and_order_in_another_view(data: st.DataObject) -> None:
    view, into = data.draw(views_of_one())
    box = data.draw(box_of(view))
    numbers = torch.arange(prod(view))
    wanted = numbers.view(view)[slices(box)].reshape(-1)
    assert torch.equal(pack(numbers, into, in_view(box, view, into)), wanted)
    common = common_view([view, into])
    assert prod(common) == prod(view)
    assert torch.equal(pack(numbers, common, in_view(box, view, common)), wanted)


def test_a_common_view_is_the_coarsest_that_is_fine_enough() -> None:
    assert common_view([(6, 4), (6, 4)]) == (6, 4)
    assert common_view([(6, 4), (2, 12)]) == (2, 3, 4)
    assert common_view([(12,), (3, 4), (3, 2, 2)]) == (3, 2, 2)
    assert common_view([(2, 3), (3, 2)]) == (6,)


@st.composite
def cut_shards(draw: st.DrawFn) -> tuple[Shard, Box]:
    """A shard of several intervals of its first dim, some of it owned, and a box of one of its boxes."""
    view = (draw(st.integers(2, 8)), *draw(st.lists(st.integers(1, 4), max_size=2)))
    bounds = sorted(draw(st.sets(st.integers(0, view[0]), min_size=2, max_size=5)))
    bounds = bounds[: len(bounds) // 2 * 2]
    boxes, at = [], 0
    for low, high in zip(bounds[::2], bounds[1::2], strict=True):
        rest = tuple((0, size) for size in view[1:])
        boxes.append((((low, high), *rest), ((at, at + high - low), *rest)))
        at += high - low
    local = (at, *view[1:])
    owned = tuple(pair for pair in boxes if draw(st.booleans())) or tuple(boxes[:1])
    zero = draw(st.integers(0, 3))
    compute = draw(st.sampled_from(("", "bfloat16")))
    shard = Shard(
        "w", "float32", local, local, view, view, tuple(boxes), owned, True, False, zero=zero, compute=compute
    )
    inner = draw(st.sampled_from([whole for whole, _ in owned]))
    part = draw(box_of(tuple(high - low for low, high in inner)))
    return shard, tuple((a + low, b + low) for (a, b), (low, _) in zip(part, inner, strict=True))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_places_read_and_write_the_elements_of_a_part(data: st.DataObject) -> None:
    shard, box = data.draw(cut_shards())
    kind = data.draw(st.sampled_from((VALUE, COPY, GRAD, MOMENT)))
    view = data.draw(
        st.sampled_from((shard.whole_view, common_view([shard.whole_view, (prod(shard.whole_view),)])))
    )
    part = StatePart("w", view, in_view(box, shard.whole_view, view))
    elements = prod(high - low for low, high in box)
    low = data.draw(st.integers(0, elements - 1))
    high = data.draw(st.integers(low + 1, elements))
    whole = torch.arange(prod(shard.whole_view), dtype=torch.float32).view(shard.whole_view)
    tensor = tensor_of(shard, kind, whole)
    places = part_places(part, low, high, shard, source_kind(shard, kind))
    wanted = whole[slices(box)].reshape(-1)[low:high]
    assert torch.equal(read_places(tensor, places, torch.float64), wanted.double())
    write_places(tensor, places, -wanted)
    assert torch.equal(read_places(tensor, places, torch.float32), -wanted)
    assert (tensor < 0).sum() == (wanted > 0).sum(), "no other element is written"


def tensor_of(shard: Shard, kind: str, whole: torch.Tensor) -> torch.Tensor:
    """What a rank keeps of a kind, whose elements are those of the whole."""
    local = torch.zeros(shard.shape)
    for there, here in shard.boxes:
        local[slices(here)] = whole[slices(there)]
    if is_run(shard, source_kind(shard, kind)):
        return torch.cat([whole[slices(there)].reshape(-1) for there, _ in shard.owned])
    return local


def test_elements_of_a_class_are_found_in_its_parts() -> None:
    parts = tuple(StatePart(name, (4,), (((0, 2),), ((3, 4),))) for name in "abc")
    each = SwitchClass((VALUE,), 4, (0,), (1,), parts, (Move(0, 1, 0, 9),))
    assert list(parts_between(each, 2, 7)) == [(parts[0], 2, 3), (parts[1], 0, 3), (parts[2], 0, 1)]
    assert list(parts_between(each, 3, 6)) == [(parts[1], 0, 3)]
    assert SwitchPlan("A", "B", SwitchScope.STATE, (each,)).orphans() == ()


def strategy(zero: int) -> Strategy:
    """Three devices that share one layer and two that share the next, beside a pipeline of one."""
    stages = (StageSpec((0, 1, 2), (0, 1)), StageSpec((3, 4), (1, LAYERS)))
    return Strategy(
        (PipelineSpec(stages, (4, 2)), PipelineSpec((StageSpec((5,), (0, LAYERS)),), (4,))), zero=zero
    )


@pytest.mark.parametrize(("zero", "precision"), [*product(range(4), (Precision.MODEL, Precision.BFLOAT16))])
def test_extents_are_what_a_rank_keeps(zero: int, precision: Precision) -> None:
    program = program_for(graph_of("odd", precision), strategy(zero))
    for rank in program.ranks:
        gradients = gradients_of(rank)
        whole = {shard.name: torch.zeros(shard.shape) for shard in rank.shards}
        state = started(rank.shards, {s.name: row_of(s, whole[s.name]) for s in rank.shards})
        for shard in rank.shards:
            for kind in kinds_of(SwitchScope.STATE, (MOMENT,)):
                count = elements(shard, held(shard, kind, gradients))
                assert needed(shard, kind, SwitchScope.STATE, gradients) is held(shard, kind, gradients) or (
                    kind == COPY and not has_copy(shard)
                )
                if kind == VALUE:
                    assert count == trained_value(shard, state).numel() or not shard.is_flat
                if kind == COPY and has_copy(shard):
                    assert count == state.params[shard.name].numel()
                    assert state.params[shard.name].dtype == torch.bfloat16
                if kind == MOMENT:
                    assert count == (trained_value(shard, state).numel() if shard.name in gradients else 0)
            assert elements(shard, held(shard, GRAD, gradients)) == grad_elements(shard, rank)


def row_of(shard: Shard, local: torch.Tensor) -> torch.Tensor:
    """What `trained.store` takes."""
    return pack(local, shard.view, shard.kept) if shard.zero == 3 else local


def elements(shard: Shard, extent: StateExtent) -> int:
    return sum(prod(high - low for low, high in whole) for whole, _ in pairs(shard, extent))


def grad_elements(shard: Shard, rank: RankProgram) -> int:
    """What gradient buckets leave in a rank's synchronised gradients."""
    boxes = [
        box
        for bucket in rank.grad_buckets
        for piece in bucket.kept
        if piece.param == shard.name
        for box in piece.dst_boxes or ()
    ]
    return sum(prod(high - low for low, high in box) for box in boxes)
