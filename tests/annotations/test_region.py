"""Boxes against sets of points."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.annotations import region
from hspmd_compiler.comm_plan import Box

SIDE = st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda pair: (min(pair), max(pair)))
BOX = st.tuples(SIDE, SIDE)
BOXES = st.lists(BOX, max_size=4)


def points(boxes: list[Box] | tuple[Box, ...]) -> set[tuple[int, ...]]:
    return {point for box in boxes for point in product(*(range(low, high) for low, high in box))}


@given(BOX, BOX)
def test_intersect_and_subtract_are_those_of_sets(first: Box, second: Box) -> None:
    common = region.intersect(first, second)
    assert points([common] if common else []) == points([first]) & points([second])
    left = region.subtract(first, second)
    assert points(left) == points([first]) - points([second])
    assert region.volume(left) == len(points(left))


@given(BOXES, BOXES)
def test_subtract_all_and_intersect_all_are_those_of_sets(first: list[Box], second: list[Box]) -> None:
    assert points(region.subtract_all(first, second)) == points(first) - points(second)
    assert points(region.intersect_all(first, second)) == points(first) & points(second)


@given(BOXES, BOXES)
def test_union_is_a_normal_form(first: list[Box], second: list[Box]) -> None:
    merged = region.union(first)
    assert points(merged) == points(first)
    assert region.volume(merged) == len(points(first))
    assert region.union(reversed(merged)) == merged
    assert (region.union(second) == merged) == (points(second) == points(first))


@given(BOXES)
def test_cover_checks(boxes: list[Box]) -> None:
    whole = ((0, 3), (1, 4))
    separate = sum(len(points([box])) for box in boxes) == len(points(boxes))
    assert region.disjoint(boxes) == separate
    assert region.covers(boxes, whole) == (points([whole]) <= points(boxes))
    assert region.covers_exactly(boxes, whole) == (separate and points(boxes) == points([whole]))


def test_scalars_have_one_box() -> None:
    assert region.whole_box(()) == ()
    assert region.union([(), ()]) == ((),)
    assert region.covers_exactly([()], ())
    assert not region.covers([], ())
    assert region.product_boxes(()) == ((),)


def test_product_boxes_are_in_normal_form() -> None:
    boxes = region.product_boxes((((0, 2), (4, 6)), ((1, 2), (3, 5))))
    assert boxes == region.union(boxes)
