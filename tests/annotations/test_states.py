"""Groups, states, and their index arithmetic against the reference."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.annotations import (
    DUPLICATE,
    PARTIAL,
    Annotation,
    DeviceGroup,
    DistributedStates,
    Duplicate,
    Partial,
    Split,
)
from hspmd_compiler.errors import AnnotationError
from tests.annotations.boxes import times_held

REFERENCE = Path(__file__).resolve().parents[2] / ".." / "shared" / "reference" / "hspmd"
KEYS = {"-1": DUPLICATE, "-2": PARTIAL}
PARTS = st.lists(st.integers(1, 4), min_size=4, max_size=4)


def golden(name: str) -> list[dict[str, Any]]:
    path = REFERENCE / name
    if not path.exists():
        pytest.skip(f"reference data {name} is not beside this checkout")
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def read(row: dict[str, Any]) -> DistributedStates:
    keys = {text: KEYS.get(text, int(text)) for text in row["states"]}
    factors = {keys[text]: parts for text, parts in row["states"].items()}
    return DistributedStates.of(factors, [KEYS.get(str(key), key) for key in row["order"]])


def test_coordinates_are_the_reference_ones() -> None:
    for row in golden("golden_ds_index.json"):
        states = read(row)
        for index, expected in enumerate(row["state_index"]):
            found = states.coordinates(index)
            assert found == {KEYS.get(key, int(key)): place for key, place in expected.items()}
            assert states.index(found) == index


def test_shards_are_the_reference_ones() -> None:
    for row in golden("golden_ds_index.json"):
        states = read(row)
        regions = Annotation((DeviceGroup(tuple(range(states.size))),), (states,)).regions((8, 8))
        shards = sorted(set(regions.values()))
        assert [shards.index(regions[d]) for d in range(states.size)] == row["dup_group_index"]


def pairs(name: str) -> list[tuple[Annotation, Annotation]]:
    """The (source, target) pairs for which a predicate of the reference holds."""
    found = [row for row in golden("golden_ds_predicates.json") if row[name] is True]
    return [(on_devices(read(row["src"])), on_devices(read(row["dst"]))) for row in found]


def on_devices(states: DistributedStates) -> Annotation:
    return Annotation((DeviceGroup(tuple(range(states.size))),), (states,))


def test_equality_is_the_reference_one() -> None:
    for row in golden("golden_ds_predicates.json"):
        source, target = on_devices(read(row["src"])), on_devices(read(row["dst"]))
        assert (source == target) == row["equal"]


def test_reference_reductions_end_an_addition() -> None:
    for source, target in pairs("allreduce") + pairs("reducescatter"):
        assert source.is_partial and not target.is_partial
        assert source.addends() != target.addends()
    for source, target in pairs("allreduce"):
        assert source.regions((8, 8)) == target.regions((8, 8))


@given(PARTS, st.permutations([PARTIAL, DUPLICATE, 0, 1]))
def test_index_and_coordinates_are_inverse(parts: list[int], order: list[Any]) -> None:
    states = DistributedStates.of(dict(zip(order, parts, strict=True)), order)
    walk = product(*map(range, parts))
    for index, digits in enumerate(walk):
        assert states.coordinates(index) == dict(zip(order, digits, strict=True))
        assert states.index(states.coordinates(index)) == index


def test_default_order_is_partial_then_duplicate_then_dims() -> None:
    states = DistributedStates.of({1: 3, DUPLICATE: 2, 0: 5, PARTIAL: 7})
    assert str(states) == "Px7 Dx2 S0x5 S1x3"
    assert states.order == (PARTIAL, DUPLICATE, 0, 1)


@pytest.mark.parametrize(
    ("parts", "length", "expected"),
    [(4, 6, [2, 2, 1, 1]), (3, 1, [1, 0, 0]), (5, 7, [2, 2, 1, 1, 1]), (2, 0, [0, 0])],
)
def test_first_coordinates_get_one_more(parts: int, length: int, expected: list[int]) -> None:
    found = Split(0, parts).pieces(length)
    assert [sum(high - low for low, high in rows) for rows in found] == expected


def test_whole_heads_inside_fused_blocks() -> None:
    split = Split.by_blocks(0, 3, (48, 24, 24), unit=8)
    assert split.pieces(96) == (
        ((0, 16), (48, 56), (72, 80)),
        ((16, 32), (56, 64), (80, 88)),
        ((32, 48), (64, 72), (88, 96)),
    )


def test_split_inside_blocks_covers_exactly() -> None:
    annotation = Annotation.single(range(4), Split.by_blocks(0, 4, (6, 3, 3)))
    boxes = [box for held in annotation.regions((12, 2)).values() for box in held]
    assert (times_held(boxes, (12, 2)) == 1).all()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda: DeviceGroup((0, 2, 0, -1)),
            """\
AnnotationError: 2 bad values in device group [0,2,0,-1]
  bad  device 0 is listed 2 times
  rule a device is in a group once
  fix  list device 0 once
  bad  device -1 is negative
  rule device ids are 0 or more
  fix  number devices from 0""",
        ),
        (
            lambda: Split.by_shares(0, (3, -1), unit=0),
            """\
AnnotationError: 2 bad values in split S0(3,-1)/0
  bad  unit is 0
  rule unit is 1 or more
  fix  use 1 or more unit
  bad  share -1 is negative
  rule a share is 0 or more
  fix  use 0 for nothing""",
        ),
        (
            lambda: Split(1, 3, shares=((0, 1), (2, 4))),
            """\
AnnotationError: 2 bad values in split S1(0:1,2:4)
  bad  2 shares for 3 parts
  rule there is one share for each part
  fix  give 3 shares
  bad  no share holds 1:2
  rule every element has a holder
  fix  widen the intervals until they meet""",
        ),
        (
            lambda: Split.by_blocks(0, 2, (8, 6), unit=4),
            """\
AnnotationError: block 1: S0x2{8,6/4}: 6 rows are not whole units of 4
  in   split S0x2{8,6/4}
  rule a length that is split in units is a multiple of the unit
  fix  use a unit that divides 6""",
        ),
        (
            lambda: DistributedStates((Split(0, 2), Duplicate(2), Split(0, 3), Partial(0))),
            """\
AnnotationError: 2 bad values in states <S0x2 Dx2 S0x3 Px0>
  bad  Px0 has 0 parts
  rule parts is 1 or more
  fix  leave it out
  bad  dim 0 is placed 2 times
  rule a key has one placement in a group
  fix  multiply the parts, and order the devices of the group to match""",
        ),
    ],
)
def test_bad_parts_are_refused(build: Any, text: str) -> None:
    with pytest.raises(AnnotationError) as refused:
        build()
    assert str(refused.value) == text
