"""Annotations from the reference's stored form: integer keys, the number of groups multiplied into each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import pytest

from hspmd_compiler.annotations import (
    DUPLICATE,
    PARTIAL,
    Annotation,
    Block,
    DeviceGroup,
    DistributedStates,
    Split,
)
from hspmd_compiler.annotations.split import even_lengths
from hspmd_compiler.annotations.states import StateKey

FOLDER = Path(__file__).parents[2].parent / "shared" / "reference" / "hspmd"
KEYS: dict[int, StateKey] = {-1: DUPLICATE, -2: PARTIAL}


def reference(name: str) -> dict[str, object]:
    """A file of the reference data; the test is skipped, saying so, where it is not there."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"no reference data here: {name}")
    found: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return found


def states_of(stored: Mapping[str, object], hetero: int | None = None, groups: int = 1) -> DistributedStates:
    """The states inside a group: the factor between groups is divided out, factors of 1 are dropped."""
    factors = {int(key): int(value) for key, value in dict(stored["states"]).items()}  # type: ignore[call-overload]
    if hetero is not None and groups > 1:
        parts, rest = divmod(factors[hetero], groups)
        assert not rest
        factors[hetero] = parts
    order = [key for key in list(stored["order"]) if factors.get(key, 1) > 1]  # type: ignore[call-overload]
    return DistributedStates.of(
        {KEYS.get(key, key): factors[key] for key in order}, [KEYS.get(key, key) for key in order]
    )


def union_of(stored: Mapping[str, object], rows: int) -> Annotation:
    """The annotation of a union. rows: length of dim 0, which the pattern of ZeRO is cut from."""
    hetero, lists = int(stored["hdim"]), [list(group) for group in stored["dg"]]  # type: ignore[call-overload]
    groups = tuple(DeviceGroup(tuple(group)) for group in lists)
    if hetero == -3:
        return Annotation(groups, tuple(states_of(each) for each in stored["ds"]))  # type: ignore[attr-defined]
    states = [states_of(each, hetero, len(groups)) for each in stored["ds"]]  # type: ignore[attr-defined]
    if not stored["contiguous"] and any(each.factor(0) > 1 for each in states):
        return zero_pattern(groups, [each.factor(0) for each in states], rows)
    return Annotation(groups, tuple(states), KEYS.get(hetero, hetero))


def zero_pattern(groups: Sequence[DeviceGroup], degrees: Sequence[int], rows: int) -> Annotation:
    """Dim 0 in as many blocks as the largest degree; each group has its chunk of each block.

    A device has the chunks of the blocks that lie in its part of its group.
    """
    finest = max(degrees)
    blocks = []
    for block, length in enumerate(even_lengths(rows, finest)):
        chunks = even_lengths(length, len(groups))
        shares = [
            chunk if place == block * degree // finest else 0
            for chunk, degree in zip(chunks, degrees, strict=True)
            for place in range(degree)
        ]
        blocks.append(Block(length, tuple(shares)))
    devices = tuple(chain.from_iterable(groups))
    return Annotation.single(devices, Split(0, len(devices), blocks=tuple(blocks)))
