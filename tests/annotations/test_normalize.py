"""Equal layouts have one form, and that form means the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.annotations import (
    DUPLICATE,
    PARTIAL,
    Annotation,
    DeviceGroup,
    DistributedStates,
    Split,
    Unsplit,
    normalize,
    parse_annotation,
    same_layout,
)
from tests.annotations.strategies import annotated

Case = tuple[Annotation, tuple[int, ...]]


@given(annotated())
@settings(max_examples=300, deadline=None)
def test_regions_and_addends_are_preserved(case: Case) -> None:
    annotation, shape = case
    assert same_layout(annotation, normalize(annotation), shape)
    assert same_layout(annotation, normalize(annotation, shape), shape)


@given(annotated())
@settings(max_examples=300, deadline=None)
def test_idempotent(case: Case) -> None:
    annotation, shape = case
    once = normalize(annotation)
    assert normalize(once) == once
    fitted = normalize(annotation, shape)
    assert normalize(fitted, shape) == fitted


def test_addends_of_a_subgroup_without_elements() -> None:
    annotation = parse_annotation("[0 | 1,2,3,4 | 5]  <R | S0(0:1,0:2) Px2 | R>  hetero=1(0,0,1)")
    once = normalize(annotation)
    assert normalize(once) == once
    assert same_layout(annotation, once, (2, 1)) and same_layout(
        annotation, normalize(annotation, (2, 1)), (2, 1)
    )


@given(annotated(), st.data())
@settings(max_examples=250, deadline=None)
def test_rewritten_annotations_have_one_form(case: Case, data: st.DataObject) -> None:
    annotation, shape = case
    other = data.draw(rewritten(annotation, shape))
    assert same_layout(annotation, other, shape)
    assert normalize(other, shape) == normalize(annotation, shape)


@st.composite
def rewritten(draw: st.DrawFn, annotation: Annotation, shape: tuple[int, ...]) -> Annotation:
    """The same layout with other placement orders, subgroup orders and explicit shares."""
    pairs = [
        draw(reordered(group, spelled_out(annotation, u, shape) if draw(st.booleans()) else states))
        for u, (group, states) in enumerate(zip(annotation.groups, annotation.states, strict=True))
    ]
    if not isinstance(annotation.hetero, int):
        pairs = draw(st.permutations(pairs))
    groups, states = zip(*pairs, strict=True)
    return replace(annotation, groups=groups, states=states)


@st.composite
def reordered(
    draw: st.DrawFn, group: DeviceGroup, states: DistributedStates
) -> tuple[DeviceGroup, DistributedStates]:
    order = draw(st.sampled_from(list(permutations(states.placements))))
    other = DistributedStates(order)
    walk = (
        dict(zip(other.order, digits, strict=True)) for digits in product(*(range(p.parts) for p in order))
    )
    return DeviceGroup(tuple(group.devices[states.index(place)] for place in walk)), other


def spelled_out(annotation: Annotation, u: int, shape: tuple[int, ...]) -> DistributedStates:
    """Even splits with their shares written."""
    found = []
    for placement in annotation.states[u].placements:
        if isinstance(placement, Split) and placement.shares is None and not placement.blocks:
            low, high = annotation.extent(u, placement.dim, shape[placement.dim])
            rows = [sum(b - a for a, b in piece) for piece in placement.pieces(high - low)]
            placement = Split(placement.dim, placement.parts, shares=tuple(rows))
        found.append(placement)
    return DistributedStates(tuple(found))


@given(annotated(), st.integers(2, 3), st.sampled_from([DUPLICATE, PARTIAL]), st.data())
@settings(max_examples=200, deadline=None)
def test_equal_subgroups_fold(case: Case, count: int, key: Unsplit, data: st.DataObject) -> None:
    """H equal subgroups and one group with an outer factor H are one layout."""
    annotation, shape = case
    states = annotation.states[0]
    summed_copies = key is DUPLICATE and states.factor(PARTIAL) > 1
    if summed_copies or states.factor(key) > 1 or annotation.hetero is not None:
        return
    kept = tuple(placement for placement in states.placements if placement.key != key)
    inner, size = DistributedStates(kept), DistributedStates(kept).size
    devices = data.draw(st.permutations(range(size * count)))
    outer = DistributedStates.of({key: count}).placements + kept
    folded = Annotation.single(devices, *outer)
    groups = tuple(DeviceGroup(tuple(devices[u * size : (u + 1) * size])) for u in range(count))
    apart = Annotation(groups, (inner,) * count, key)
    assert same_layout(folded, apart, shape)
    assert normalize(folded) == normalize(apart)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[0,1,2,3]  <Dx2 S0x2>", "[0,2,1,3]  <S0x2 Dx2>"),
        ("[0,1 | 2,3]  <S0x2 | S0x2>  hetero=dup", "[2,3,0,1]  <Dx2 S0x2>"),
        ("[0,1 | 2,3]  <S1x2 | S1x2>  hetero=0", "[0,1,2,3]  <S0x2 S1x2>"),
        ("[0,1 | 2,3]  <S0(3,1) | S0(1,1)>  hetero=0(4,2)", "[0,1,2,3]  <S0(3,1,1,1)>"),
        ("[0 | 1 | 2,3]  <R | R | Dx2>  hetero=0(1,2,3)", "[0,1 | 2,3]  <S0(1,2) | Dx2>  hetero=0(3,3)"),
        ("[0,1 | 2,3 | 4]  <S0x2 | S0x2 | R>  hetero=dup", "[4 | 0,1,2,3]  <R | Dx2 S0x2>  hetero=dup"),
        ("[0 | 1 | 2,3]  <R | R | S0x2>  hetero=partial", "[0,1 | 2,3]  <Px2 | S0x2>  hetero=partial"),
        ("[0,1,2,3]  <S0x2 Px2>", "[1,0,2,3]  <S0x2 Px2>"),
        ("[0,1]  <S0(3,3)>", "[0,1]  <S0x2>"),
        ("[0,1]  <S0(3,1)/8>", "[0,1]  <S0(24,8)>"),
        ("[0,1]  <S0x2{4,4(1,1)/2}>", "[0,1]  <S0x2{4,4}>"),
        ("[0,1]  <S0x2{6(6,0),2(0,2)}>", "[0,1]  <S0(6,2)>"),
        ("[0,1,2,3]  <S0(0:1,0:1,1:2,1:2)>", "[0,1,2,3]  <S0x2 Dx2>"),
        ("[0,1,2]  <S0(2,0,1)>", "[0,2,1]  <S0(2,1,0)>"),
        ("[0]  <S0x1 Dx1 Px1>", "[0]  <R>"),
    ],
)
def test_one_form(one: str, other: str) -> None:
    assert normalize(parse_annotation(one)) == normalize(parse_annotation(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[0,1,2,3]  <Dx2 S0x2>", "[0,1,2,3]  <S0x2 Dx2>"),
        ("[0,1]  <Px2>", "[0,1]  <Dx2>"),
        ("[0,1 | 2,3]  <Px2 | Px2>  hetero=dup", "[0,1,2,3]  <Dx2 Px2>"),
        ("[0,1]  <S0x2>", "[1,0]  <S0x2>"),
        ("[0 | 1]  <R | R>  hetero=0(2,4)", "[0 | 1]  <R | R>  hetero=0(4,2)"),
    ],
)
def test_other_layouts_keep_other_forms(one: str, other: str) -> None:
    first, second = parse_annotation(one), parse_annotation(other)
    assert normalize(first) != normalize(second)
    assert not same_layout(first, second, (6,))


def test_a_shape_shows_more_to_be_equal() -> None:
    apart, whole = (
        parse_annotation("[0,1 | 2,3]  <S0x2 | S0x2>  hetero=0"),
        Annotation.single(range(4), Split(0, 4)),
    )
    assert normalize(apart) != normalize(whole)
    assert normalize(apart, (7,)) == normalize(whole, (7,)) == whole
    assert str(normalize(apart, (6,))) == "[0,1,2,3]  <S0(2,1,2,1)>"


def test_same_layout_sees_what_the_normal_form_does_not() -> None:
    one = parse_annotation("[0,1,2,3]  <S0(1,0) S1x2>")
    other = parse_annotation("[0,1,2,3]  <S1(1,1,0,0)>")
    assert normalize(one, (1, 2)) != normalize(other, (1, 2))
    assert same_layout(one, other, (1, 2))


def test_many_devices_are_quick() -> None:
    groups = tuple(DeviceGroup(tuple(range(u * 8, u * 8 + 8))) for u in range(64))
    annotation = Annotation(groups, (DistributedStates((Split(0, 8),)),) * 64, DUPLICATE)
    assert str(normalize(annotation).states[0]) == "Dx64 S0x8"
