"""Pairs that do not mean one value: both annotations, the rule and the fix are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hspmd_compiler.annotations import parse_annotation
from hspmd_compiler.errors import AnnotationError
from hspmd_compiler.passes.resolve_annotations import resolve

Shape = tuple[int, ...]

BAD: dict[str, tuple[str, str, Shape, Shape | None]] = {
    "other_shape": ("[0,1]  <S0x2>", "[0,1]  <S1x2>", (4, 6), (6, 4)),
    "device_twice": ("[0,1,1]  <S0x3>", "[0,1]  <S1x2>", (4, 6), None),
    "device_in_two_groups": ("[0,1]  <S0x2>", "[0,1 | 1,2]  <S0x2 | S0x2>  hetero=dup", (4, 6), None),
    "shares": ("[0,1]  <S0(0:3,3:5)>", "[0,1]  <S1x2>", (4, 6), None),
    "hetero_shares": ("[0 | 1]  <R | R>  hetero=0(0,0)", "[0,1]  <S1x2>", (4, 6), None),
    "beyond_the_dims": ("[0,1]  <S0x2>", "[0,1]  <S2x2>", (4, 6), None),
    "hetero_beyond_the_dims": ("[0,1]  <S0x2>", "[0 | 1]  <R | R>  hetero=2", (4, 6), None),
    "no_whole_units": ("[0,1]  <S0x2/3>", "[0,1]  <S1x2>", (4, 6), None),
    "blocks": ("[0,1]  <S0x2{2,3}>", "[0,1]  <S1x2>", (4, 6), None),
    "two_things": ("[0,1]  <S0x2>", "[0,1 | 2]  <S2x2 | R>  hetero=0(0,0)", (4, 6), None),
    "both": ("[0,1]  <S3x2>", "[0,1]  <S0(0:3,3:5)>", (4, 6), None),
    "to_a_sum": ("[0,1]  <S0x2>", "[0,1]  <Px2>", (4, 6), None),
    "to_a_sum_of_groups": ("[0,1]  <Dx2>", "[0 | 1]  <R | R>  hetero=partial", (4, 6), None),
    "everything": ("[0,0]  <S0(0:3,3:5)>", "[0,1 | 2]  <S2x2 | Px2>  hetero=0", (4, -6), (6, 4)),
    "sum_and_misfit": ("[0,1]  <S0(0:3,3:5)>", "[0,1]  <Px2>", (4, 6), None),
    "other_shape_and_misfit": ("[0,1]  <S0(0:3,3:4)>", "[0,1]  <S0(0:3,3:4)>", (4, 6), (6, 4)),
    "unreadable": ("[0,1]  <S0x2", "[0,1]  <S1x2>", (4, 6), None),
    "overlapping_shares": ("[0,1]  <S0(0:2,3:4)>", "[0,1]  <S1x2>", (4, 6), None),
    "negative_length": ("[0,1]  <S0x2>", "[0,1]  <S1x2>", (4, -6), None),
    "too_many_states": ("[0,1]  <S0x2 | S0x2>", "[0,1]  <S1x2>", (4, 6), None),
    "too_few_devices": ("[0,1]  <S0x2 S1x2>", "[0,1]  <S1x2>", (4, 6), None),
    "device_too_large": ("[0,1048576,4000000000]  <S0x3>", "[0,1]  <S1x2>", (4, 6), None),
    "scalar": ("[0,1]  <Dx2>", "[0,1]  <S0x2>", (), None),
}


@pytest.mark.parametrize("name", BAD)
def test_text(name: str, expect: Callable[[str, str], None]) -> None:
    source, target, shape, target_shape = BAD[name]
    with pytest.raises(AnnotationError) as raised:
        resolve(source, target, shape, target_shape=target_shape)
    assert source in str(raised.value) and target in str(raised.value)
    expect(f"resolve/bad_{name}", str(raised.value))


def test_either_side_names_the_pair() -> None:
    good = parse_annotation("[0,1]  <S0x2>")
    bad = parse_annotation("[0,1]  <S2x2>")
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(AnnotationError) as raised:
            resolve(*pair, (4, 6))
        assert all(str(one) in str(raised.value) for one in pair)


def test_a_sum_of_bools() -> None:
    resolve("[0,1]  <S0x2>", "[0,1]  <Dx2>", (4,), "bool")
    with pytest.raises(AnnotationError, match="addends are bool"):
        resolve("[0,1]  <Px2>", "[0,1]  <Dx2>", (4,), "bool")


def test_unknown_element_type() -> None:
    good = parse_annotation("[0,1]  <S0x2>")
    with pytest.raises(AnnotationError, match="float33"):
        resolve(good, good, (4,), "float33")
