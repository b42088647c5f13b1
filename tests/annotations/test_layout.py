"""Layouts against enumeration: what each coordinate holds, counted element by element."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hspmd_compiler.errors import InternalError
from hspmd_compiler.layout.intervals import (
    Intervals,
    Sets,
    covers,
    intersect,
    is_exact,
    placed,
    subtract,
    union,
    within,
)
from hspmd_compiler.layout.layout import (
    Axis,
    Coordinate,
    Dim,
    Factor,
    Layout,
    canonical_dim,
    dim_size,
    make_layout,
    placement,
)
from hspmd_compiler.layout.refine import cut_factor, refine, refine_dim
from hspmd_compiler.layout.view_maps import flat_factor, map_view

SOME = settings(max_examples=40, deadline=None)
RANKS, BATCHES = 3, 2
AXES = {Axis.TENSOR: RANKS, Axis.SEQUENCE: RANKS, Axis.BATCH: BATCHES}
COORDINATES = [Coordinate(rank, batch) for rank in range(RANKS) for batch in range(BATCHES)]


@st.composite
def intervals(draw: st.DrawFn, size: int) -> Intervals:
    bounds = draw(st.lists(st.integers(0, size), max_size=4))
    ordered = sorted(bounds[: len(bounds) // 2 * 2])
    return union(zip(ordered[::2], ordered[1::2], strict=True))


@st.composite
def factors(draw: st.DrawFn, axis: Axis | None) -> Factor:
    size = draw(st.integers(1, 6))
    if axis is None:
        return Factor(size)
    sets = tuple(draw(intervals(size)) for _ in range(AXES[axis]))
    return Factor(size, axis, sets, draw(st.booleans()) and axis is not Axis.BATCH)


@st.composite
def dims(draw: st.DrawFn) -> Dim:
    """Up to four factors; the ranks and the batch cut at most one each."""
    axes: list[Axis | None] = [None] * draw(st.integers(0, 3))
    for axis in draw(st.sampled_from([(), (Axis.TENSOR,), (Axis.BATCH,), (Axis.BATCH, Axis.SEQUENCE)])):
        axes.insert(draw(st.integers(0, len(axes))), axis)
    dim = tuple(draw(factors(axis)) for axis in axes)
    assume(dim_size(dim) <= 60)
    return dim


def points(held: Intervals) -> list[int]:
    return [i for low, high in held for i in range(low, high)]


def elements(dim: Dim, at: Coordinate) -> list[int]:
    """Elements of a dim in the order in which the local tensor stores them."""
    sizes = [factor.size for factor in dim]
    held = [points(factor.held(at)) for factor in dim]
    return [int(np.ravel_multi_index(place, sizes)) if place else 0 for place in product(*held)]


def pieces(dim: Dim) -> list[list[int]]:
    return [elements(dim, at) for at in COORDINATES]


@SOME
@given(dims())
def test_the_canonical_form_holds_the_same_and_is_final(dim: Dim) -> None:
    canonical = canonical_dim(dim)
    assert canonical_dim(canonical) == canonical
    assert dim_size(canonical) == dim_size(dim)
    assert pieces(canonical) == pieces(dim)


@SOME
@given(dims(), dims())
def test_a_placement_says_where_elements_lie(dim: Dim, other: Dim) -> None:
    """That a cut is one of tokens is left out, nothing else is."""

    def relabelled(axis: Axis) -> Layout:
        factors = (
            replace(f, axis=axis) if f.axis is not None and f.axis.on_ranks else f for f in (*dim, *other)
        )
        return make_layout((tuple(factors),))

    tokens, features = relabelled(Axis.SEQUENCE), relabelled(Axis.TENSOR)
    assert placement(tokens) is placement(features) is features
    assert [pieces(d) for d in placement(tokens).dims] == [pieces(d) for d in tokens.dims]


@SOME
@given(dims())
def test_a_layout_keeps_addends_apart_from_copies(dim: Dim) -> None:
    """Addends that everybody holds whole are a pending sum; that each has once, plain pieces."""
    layout = make_layout((dim,))
    before = next((f for f in dim if f.contrib), None)
    after = next((f for f in layout.dims[0] if f.contrib), None)
    if before is None:
        assert after is None and not layout.partial
        return
    everyone = all(len(elements((before,), at)) == before.size for at in COORDINATES)
    assert (Axis.TENSOR in layout.partial) == everyone
    if after is None and not everyone:
        flat = sorted(i for rank in range(RANKS) for i in elements((before,), Coordinate(rank, 0)))
        assert flat == list(range(before.size))


@SOME
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 2), st.data())
def test_equal_cuts_are_equal_values(sizes: list[int], position: int, data: st.DataObject) -> None:
    """One factor cut, spelled as factors side by side or as one factor with many intervals."""
    position = min(position, len(sizes) - 1)
    parts = [Factor(size) for size in sizes]
    sets = tuple(data.draw(intervals(sizes[position])) for _ in range(RANKS))
    parts[position] = Factor(sizes[position], Axis.TENSOR, sets)
    size = prod(sizes)
    flat = Factor(
        size, Axis.TENSOR, tuple(as_intervals(elements(tuple(parts), Coordinate(r, 0))) for r in range(RANKS))
    )
    assert canonical_dim((flat,)) == canonical_dim(tuple(parts))
    assert flat_factor(canonical_dim(tuple(parts))).size == size


def as_intervals(found: list[int]) -> Intervals:
    return union((i, i + 1) for i in found)


@SOME
@given(factors(Axis.TENSOR), st.integers(1, 6))
def test_a_cut_factor_holds_the_same(factor: Factor, outer: int) -> None:
    cut = cut_factor(factor, outer)
    if cut is not None:
        assert [part.size for part in cut] == [outer, factor.size // outer]
        assert pieces(cut) == pieces((factor,))
    else:
        assert factor.size % outer or not cuttable(factor, factor.size // outer)


def cuttable(factor: Factor, inner: int) -> bool:
    """Whether each piece is a product of outer and inner elements, with one of them whole."""
    held = [
        np.isin(np.arange(factor.size), elements((factor,), Coordinate(r, 0))).reshape(-1, inner)
        for r in range(RANKS)
    ]
    rows = all((piece.all(1) | ~piece.any(1)).all() for piece in held)
    columns = all((piece == piece[:1]).all() for piece in held)
    return rows or columns


@SOME
@given(dims(), dims())
def test_two_dims_refined_hold_what_they_held(first: Dim, second: Dim) -> None:
    """It ends for whatever dims: of unequal sizes with an error, and never by cutting ones off for ever."""
    if dim_size(first) != dim_size(second):
        with pytest.raises(InternalError, match="can't be converted"):
            refine_dim(first, second)
        rest = Factor(dim_size(first))
        second = (*second, rest) if dim_size(first) == dim_size((*second, rest)) else (rest,)
    pairs = refine_dim(first, second)
    if pairs is not None:
        assert [a.size for a, _ in pairs] == [b.size for _, b in pairs]
        assert pieces(tuple(a for a, _ in pairs)) == pieces(first)
        assert pieces(tuple(b for _, b in pairs)) == pieces(second)


@SOME
@given(st.lists(dims(), min_size=1, max_size=2), st.data())
def test_a_view_is_numpys_reshape(parts: list[Dim], data: st.DataObject) -> None:
    """What a coordinate holds of the view, in order, is what it held before (or zeros, if enlarged)."""
    ranks = [f for dim in parts for f in dim if f.axis is not None and f.axis.on_ranks]
    batch = [f for dim in parts for f in dim if f.axis is Axis.BATCH]
    assume(len(ranks) <= 1 and len(batch) <= 1)
    source = make_layout(tuple(parts))
    shape = data.draw(shapes(prod(source.shape)))
    mapped = map_view(source, shape)
    if mapped is None:
        return
    assert mapped.target.shape == shape and mapped.source.shape == source.shape
    for at in COORDINATES:
        assert flat_elements(mapped.source, at) == flat_elements(mapped.target, at)
        held = set(flat_elements(source, at))
        assert held <= set(flat_elements(mapped.source, at))


def flat_elements(layout: Layout, at: Coordinate) -> list[int]:
    """Elements of the whole tensor, flat, in local order."""
    held = [elements(dim, at) for dim in layout.dims]
    return [int(np.ravel_multi_index(place, layout.shape)) if place else 0 for place in product(*held)]


@st.composite
def shapes(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """A random shape with `size` elements."""
    shape = []
    while size > 1:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        shape.append(draw(st.sampled_from(divisors)))
        size //= shape[-1]
    return tuple(shape)


@SOME
@given(dims(), st.data())
def test_a_refinement_holds_the_same_on_both_sides(first: Dim, data: st.DataObject) -> None:
    sizes = data.draw(shapes(dim_size(first)))
    cut = data.draw(st.integers(0, 3))
    other = tuple(
        Factor(size, Axis.TENSOR, tuple(data.draw(intervals(size)) for _ in range(RANKS)))
        if i == cut
        else Factor(size)
        for i, size in enumerate(sizes)
    )
    refined = refine(Layout((first,)), Layout((other,)))
    if refined is not None:
        left, right = (tuple(pair[side] for pair in refined.pairs) for side in (0, 1))
        assert pieces(left) == pieces(first) and pieces(right) == pieces(other)
        assert [f.size for f in left] == [f.size for f in right]


@SOME
@given(intervals(12), intervals(12))
def test_interval_sets_are_sets(first: Intervals, second: Intervals) -> None:
    a, b = set(points(first)), set(points(second))
    assert set(points(intersect(first, second))) == a & b
    assert set(points(subtract(first, second))) == a - b
    assert set(points(union((*first, *second)))) == a | b
    local = [points(first).index(i) for i in points(intersect(first, second))]
    assert points(within(first, intersect(first, second))) == local
    assert points(placed(first, intersect(first, second))) == local


@SOME
@given(st.lists(intervals(8), min_size=1, max_size=3))
def test_cover_and_exact_cover(held: list[Intervals]) -> None:
    sets: Sets = tuple(held)
    flat = sorted(i for piece in held for i in points(piece))
    assert covers(8, sets) == (set(flat) == set(range(8)))
    assert is_exact(8, sets) == (flat == list(range(8)))


def test_pieces_beyond_the_dim_are_no_layout() -> None:
    """Five rows in pieces of two would be six, in three ranks."""
    padded = Factor(5, Axis.SEQUENCE, (((0, 2),), ((2, 4),), ((4, 6),)))
    with pytest.raises(InternalError, match="of a dim of 5"):
        make_layout(((padded,),))


def test_a_cut_dim_without_elements_meets_a_whole_one() -> None:
    cut, plain = (Factor(0, Axis.TENSOR, ((), ())),), (Factor(0),)
    assert refine_dim(cut, plain) == [(cut[0], plain[0])] and refine_dim(plain, cut) == [(plain[0], cut[0])]
