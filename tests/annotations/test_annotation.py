"""Regions and addends of annotations against a direct reading, and the texts of errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from hspmd_compiler.annotations import (
    DUPLICATE,
    PARTIAL,
    Addend,
    Annotation,
    DeviceGroup,
    DistributedStates,
    Duplicate,
    Split,
    parse_annotation,
)
from hspmd_compiler.errors import AnnotationError
from hspmd_compiler.layout.intervals import union
from tests.annotations.boxes import times_held
from tests.annotations.strategies import annotated


@given(annotated())
@settings(max_examples=150, deadline=None)
def test_each_device_has_one_normal_region_of_its_local_shape(
    case: tuple[Annotation, tuple[int, ...]],
) -> None:
    annotation, shape = case
    regions = annotation.regions(shape)
    assert set(regions) == set(annotation.devices)
    for device, boxes in regions.items():
        assert all(rows == union(rows) for rows in annotation.intervals(shape)[device])
        assert boxes == tuple(sorted(boxes))
        held = times_held(boxes, shape)
        assert held.max(initial=0) <= 1
        assert held.sum() == np.prod(annotation.local_shape(shape, device), dtype=int)


@given(annotated())
@settings(max_examples=150, deadline=None)
def test_subgroups_hold_what_the_hetero_dim_says(case: tuple[Annotation, tuple[int, ...]]) -> None:
    annotation, shape = case
    regions = annotation.regions(shape)
    held = [
        times_held([box for device in group for box in regions[device]], shape) > 0
        for group in annotation.groups
    ]
    if isinstance(annotation.hetero, int):
        assert (np.sum(held, axis=0) == 1).all()
    else:
        assert np.all(held)


@given(annotated())
@settings(max_examples=150, deadline=None)
def test_addends_of_every_alternative_add_up_to_the_value(case: tuple[Annotation, tuple[int, ...]]) -> None:
    """Addend i is 1 + i on the elements that its holders have; copies are counted once."""
    annotation, shape = case
    regions, addends = annotation.regions(shape), annotation.addends()
    for alternative in {addend.alternative for addend in addends.values()}:
        indices = {a.index for a in addends.values() if a.alternative == alternative}
        held = [np.zeros(shape, dtype=int) for _ in indices]
        for place, index in enumerate(sorted(indices)):
            for device in (d for d, a in addends.items() if a == Addend(alternative, index)):
                for box in regions[device]:
                    held[place][tuple(slice(*side) for side in box)] = 1
        assert np.all(sum(held) >= 1)
        assert annotation.is_partial or np.all(sum(held) == 1)


def test_uneven_subgroups_with_shares() -> None:
    annotation = parse_annotation("[0,1 | 2,3,4]  <S1(3,1) | S1x3>  hetero=0(4,2)")
    assert annotation.regions((6, 4)) == {
        0: (((0, 4), (0, 3)),),
        1: (((0, 4), (3, 4)),),
        2: (((4, 6), (0, 2)),),
        3: (((4, 6), (2, 3)),),
        4: (((4, 6), (3, 4)),),
    }
    assert annotation.local_shape((6, 4), 2) == (2, 2)
    assert annotation.subgroup_of(3) == 1
    assert annotation.subgroup_of(9) is None


def test_fused_rows_are_several_boxes() -> None:
    annotation = Annotation.single((4, 5, 6), Split.by_blocks(0, 3, (48, 24, 24), unit=8))
    assert annotation.regions((96, 2))[5] == (((16, 32), (0, 2)), ((56, 64), (0, 2)), ((80, 88), (0, 2)))
    assert annotation.local_shape((96, 2), 5) == (32, 2)


def test_a_rank_beyond_the_length_holds_nothing() -> None:
    annotation = Annotation.single((0, 1, 2), Split(0, 3))
    assert annotation.regions((1, 4)) == {0: (((0, 1), (0, 4)),), 1: (), 2: ()}
    assert annotation.local_shape((1, 4), 2) == (0, 4)


def test_scalars_are_whole() -> None:
    assert Annotation.single((3, 1)).regions(()) == {3: ((),), 1: ((),)}
    assert str(Annotation.single((3, 1))) == "[3,1]  <Dx2>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[0,1 | 2]  <Px2 | R>  hetero=partial", {0: (0, 0), 1: (0, 1), 2: (0, 2)}),
        ("[0,1 | 2]  <Px2 | R>  hetero=0", {0: (0, 0), 1: (0, 1), 2: (0, 0)}),
        ("[0,1 | 2 | 3]  <Px2 | R | R>  hetero=dup", {0: (1, 0), 1: (1, 1), 2: (0, 0), 3: (0, 0)}),
        ("[0,1,2,3]  <Dx2 Px2>", {0: (0, 0), 1: (0, 1), 2: (0, 0), 3: (0, 1)}),
        ("[0,1]  <S0x2>", {0: (0, 0), 1: (0, 0)}),
    ],
)
def test_addends(text: str, expected: dict[int, tuple[int, int]]) -> None:
    assert parse_annotation(text).addends() == {device: Addend(*pair) for device, pair in expected.items()}


def group(*devices: int) -> DeviceGroup:
    return DeviceGroup(devices)


def test_all_bad_values_are_in_one_error() -> None:
    states = (DistributedStates((Split(0, 3),)), DistributedStates())
    with pytest.raises(AnnotationError) as refused:
        Annotation((group(0, 1), group(1)), states)
    assert (
        str(refused.value)
        == """\
AnnotationError: 3 bad values in [0,1 | 1]  <S0x3 | R>
  bad  subgroup 0: <S0x3> is for 3 devices, [0,1] has 2
  rule the product of the parts is the number of devices
  fix  give [0,1] states whose parts multiply to 2
  bad  device 1 is in subgroups 0, 1
  rule a device is in one subgroup
  fix  keep device 1 in one of them
  bad  2 subgroups with hetero missing
  rule two or more subgroups need hetero, one subgroup has none
  fix  add hetero=dup, hetero=partial or hetero=<dim>"""
    )


@pytest.mark.parametrize(
    ("hetero", "shares", "what"),
    [
        (DUPLICATE, (1, 1), "hetero shares without a hetero dim"),
        (0, (1, 1, 1), "3 hetero shares for 2 subgroups"),
        (0, (3, -1), "hetero share -1 is negative"),
        (-1, None, "hetero dim -1 is negative"),
        (None, None, "2 subgroups with hetero missing"),
    ],
)
def test_bad_hetero_is_refused(hetero: int | None, shares: tuple[int, ...] | None, what: str) -> None:
    with pytest.raises(AnnotationError, match=what):
        Annotation((group(0), group(1)), (DistributedStates(),) * 2, hetero, shares)


def test_lengths_that_contradict_are_refused_without_a_shape() -> None:
    with pytest.raises(AnnotationError, match=r"fix  write hetero=0\(4,2\)"):
        parse_annotation("[0,1 | 2,3]  <S0(0:3,3:4) | S0(0:1,1:2)>  hetero=0")


def test_shares_are_weights_and_those_that_add_up_are_lengths() -> None:
    one = parse_annotation("[0,1,2]  <S0(4,2,2)>")
    assert [one.regions((8,))[device] for device in range(3)] == [(((0, 4),),), (((4, 6),),), (((6, 8),),)]
    assert one.local_shape((5,), 0) == (3,)
    assert one.local_shape((24,), 0) == (12,)
    in_units = parse_annotation("[0,1]  <S0(3,1)/8>")
    assert [in_units.local_shape((64,), device) for device in (0, 1)] == [(48,), (16,)]
    in_blocks = parse_annotation("[0,1]  <S0x2{8(3,1),4}>")
    assert in_blocks.regions((12,))[0] == (((0, 6),), ((8, 10),))
    apart = parse_annotation("[0,1 | 2]  <S0(3,1) | R>  hetero=0(2,1)")
    assert [apart.local_shape((12,), device) for device in range(3)] == [(6,), (2,), (4,)]
    assert str(apart) == "[0,1 | 2]  <S0(3,1) | R>  hetero=0(2,1)"
    for text in ("[0,1]  <S0(0,0)>", "[0 | 1]  <R | R>  hetero=0(0,0)", "[0,1]  <S0x2{4(0,0)}>"):
        with pytest.raises(AnnotationError, match="shares are 0"):
            parse_annotation(text).regions((4,))
        assert "{" in text or parse_annotation(text).local_shape((0,), 0) == (0,)


def test_one_subgroup_has_no_hetero() -> None:
    with pytest.raises(AnnotationError, match="1 subgroups with hetero given"):
        Annotation((group(0, 1),), (DistributedStates((Duplicate(2),)),), PARTIAL)


def test_everything_that_does_not_fit_a_shape_is_in_one_error() -> None:
    annotation = parse_annotation("[0,1,2,3 | 4,5]  <S0(0:3,3:4) Px2 | S3x2>  hetero=1(2,2)")
    with pytest.raises(AnnotationError) as refused:
        annotation.check((5, 5), leaf=True)
    assert (
        str(refused.value)
        == """\
AnnotationError: 3 bad values in [0,1,2,3 | 4,5]  <S0(0:3,3:4) Px2 | S3x2>  hetero=1(2,2) on shape [5, 5]
  bad  a parameter or input is partial
  rule only computed values are pending sums
  fix  use Dx or S instead of Px, and hetero=dup or a dim
  bad  dim 3 of a tensor with 2 dims
  rule a split names a dim of the tensor
  fix  split one of the dims 0 to 1
  bad  subgroup 0: S0(0:3,3:4): intervals add up to 4, dim 0 has 5
  rule intervals add up to the length that is split
  fix  change them so that they add up to 5"""
    )


def test_regions_refuse_what_does_not_fit() -> None:
    with pytest.raises(AnnotationError, match="50 rows are not whole units of 8"):
        parse_annotation("[0,1]  <S0x2/8>").regions((50,))
    with pytest.raises(AnnotationError, match="intervals x 8 add up to 32, dim 0 has 50"):
        parse_annotation("[0,1]  <S0(0:3,3:4)/8>").regions((50,))
    with pytest.raises(AnnotationError, match="blocks add up to 9, dim 0 has 50"):
        parse_annotation("[0,1]  <S0x2{6,3}>").regions((50,))
