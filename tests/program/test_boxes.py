from __future__ import annotations

import random
from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.base.comm_plan import Box, Combine, CommKind, CommStep, Piece
from hspmd_compiler.program import boxes


def bounds(draw: st.DrawFn, size: int, parts: int) -> list[tuple[int, int]]:
    """Consecutive intervals, some of them perhaps empty."""
    cuts = sorted(draw(st.lists(st.integers(0, size), min_size=parts - 1, max_size=parts - 1)))
    return list(pairwise([0, *cuts, size]))


@st.composite
def redistributions(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box], list[Box]]:
    """(shape, box of each rank before, box of each rank after); ranks split some dim unevenly."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    ranks = draw(st.integers(1, 4))
    held = []
    for _ in range(2):
        dim = draw(st.integers(0, len(shape) - 1))
        mine = bounds(draw, shape[dim], ranks)
        whole = [(0, size) for size in shape]
        held.append([(*whole[:dim], part, *whole[dim + 1 :]) for part in mine])
    return shape, [tuple(box) for box in held[0]], [tuple(box) for box in held[1]]


def inside(box: Box, outer: Box) -> Box:
    return tuple((low - start, high - start) for (low, high), (start, _) in zip(box, outer, strict=True))


def common(one: Box, two: Box) -> Box | None:
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, two, strict=True))
    return both if all(low < high for low, high in both) else None


def size(box: Box) -> tuple[int, ...]:
    return tuple(high - low for low, high in box)


def steps_of(before: list[Box], after: list[Box]) -> list[CommStep]:
    ranks = tuple(range(len(before)))
    steps = []
    for me in ranks:
        sends = [(peer, common(before[me], after[peer])) for peer in ranks]
        recvs = [(peer, common(before[peer], after[me])) for peer in ranks]
        steps.append(
            CommStep(
                0,
                CommKind.ALL_TO_ALL,
                ranks,
                src_view=size(before[me]),
                dst_view=size(after[me]),
                dst_shape=size(after[me]),
                sends=tuple(Piece(peer, (inside(box, before[me]),)) for peer, box in sends if box),
                recvs=tuple(Piece(peer, (inside(box, after[me]),)) for peer, box in recvs if box),
            )
        )
    return steps


@settings(max_examples=150, deadline=None)
@given(redistributions())
def test_an_exchange_of_boxes_equals_slicing(case: tuple[tuple[int, ...], list[Box], list[Box]]) -> None:
    shape, before, after = case
    whole = torch.randn(shape)
    steps = steps_of(before, after)
    parts = [boxes.cut(step, whole[boxes.slices(box)]) for step, box in zip(steps, before, strict=True)]
    for me, step in enumerate(steps):
        arrived = {peer: cut[me] for peer, cut in enumerate(parts) if me in cut}
        got = boxes.paste(step, arrived, whole.new_empty(0))
        assert torch.equal(got, whole[boxes.slices(after[me])])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([Combine.COPY, Combine.SUM]))
def test_pack_and_unpack_random_boxes(seed: int, combine: Combine) -> None:
    chance = random.Random(seed)
    view = tuple(chance.randint(1, 5) for _ in range(chance.randint(1, 3)))
    chosen = []
    for _ in range(chance.randint(0, 4)):
        low = [chance.randint(0, n) for n in view]
        chosen.append(tuple((a, chance.randint(a, n)) for a, n in zip(low, view, strict=True)))
    x = torch.randn(view).double()
    flat = boxes.pack(x, view, chosen)
    assert flat.numel() == boxes.volume(chosen)
    out, expected = torch.zeros_like(x), torch.zeros_like(x)
    boxes.unpack(flat, out, chosen, combine)
    for box in chosen:
        where = boxes.slices(box)
        expected[where] = x[where] if combine is Combine.COPY else expected[where] + x[where]
    assert torch.equal(out, expected)


def test_one_full_box_moves_no_memory() -> None:
    x = torch.randn(4, 6)
    box = ((0, 2), (0, 2), (0, 6))
    flat = boxes.pack(x, (2, 2, 6), (box,))
    back = boxes.assemble([(flat, (box,))], (2, 2, 6), (4, 6), Combine.COPY, x.new_empty(0))
    assert back.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(back, x)


def test_boxes_of_a_value_that_is_not_contiguous() -> None:
    x = torch.randn(3, 4).t()
    assert torch.equal(boxes.pack(x, (4, 3), (((1, 3), (0, 2)),)), x[1:3, :2].reshape(-1))


def test_a_destination_without_pieces_is_zero() -> None:
    step = CommStep(0, CommKind.SEND_RECV, (0,), dst_view=(2, 0), dst_shape=(2, 0))
    assert boxes.paste(step, {}, torch.empty(0)).shape == (2, 0)


@given(st.data())
def test_one_run_of_memory_is_packed_without_a_copy(data: st.DataObject) -> None:
    view = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    box = tuple(
        (low, data.draw(st.integers(low + 1, size)))
        for size in view
        for low in [data.draw(st.integers(0, size - 1))]
    )
    tensor = torch.arange(boxes.volume([boxes.full_box(view)])).view(view)
    packed = boxes.pack(tensor, view, [box])
    shares = packed.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    assert boxes.in_one_run(view, [box]) == (shares and packed.is_contiguous())
    assert not boxes.in_one_run(view, [box, box])
