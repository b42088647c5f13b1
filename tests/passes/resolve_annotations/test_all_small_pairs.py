"""Every pair of annotations of a matrix on up to four devices: all keys, all orders, all unions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import permutations, product

import pytest

from hspmd_compiler.annotations import DUPLICATE, PARTIAL, Annotation, DeviceGroup, DistributedStates
from hspmd_compiler.annotations.states import Key

from .proof import COSTS, check_pair

SHAPE = (5, 3)
KEYS: tuple[Key, ...] = (PARTIAL, DUPLICATE, 0, 1)


@cache
def all_states(size: int) -> tuple[DistributedStates, ...]:
    """Every choice of parts of two or more, in every order."""
    found = [DistributedStates()] if size == 1 else [DistributedStates.of({key: size}) for key in KEYS]
    if size == 4:
        found += [DistributedStates.of({a: 2, b: 2}, (a, b)) for a, b in permutations(KEYS, 2)]
    return tuple(found)


def compositions(total: int) -> Iterator[tuple[int, ...]]:
    """Sizes of groups, in every order."""
    if not total:
        yield ()
    for first in range(1, total + 1):
        for rest in compositions(total - first):
            yield first, *rest


def annotations_of(devices: Sequence[int]) -> Iterator[Annotation]:
    """Every annotation on these devices in this order, without shares."""
    for sizes in compositions(len(devices)):
        start = iter(devices)
        groups = tuple(DeviceGroup(tuple(next(start) for _ in range(size))) for size in sizes)
        for states in product(*map(all_states, sizes)):
            for hetero in (None,) if len(groups) == 1 else KEYS:
                yield Annotation(groups, states, hetero)


def meant(source: Annotation, target: Annotation) -> bool:
    """Whether the pair is no request to undo a sum."""
    return source.is_partial or not target.is_partial


@pytest.mark.parametrize("devices", [(0, 1, 2, 3), (1, 2, 4, 5), (2, 1)])
def test_all_pairs_of_one_group(devices: tuple[int, ...]) -> None:
    """One group each: on the same devices, on others, and inside."""
    sources = [one for one in annotations_of((0, 1, 2, 3)) if len(one.groups) == 1]
    targets = [one for one in annotations_of(devices) if len(one.groups) == 1]
    for place, (source, target) in enumerate(product(sources, targets)):
        if meant(source, target):
            check_pair(source, target, SHAPE, COSTS[place % len(COSTS)])


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_all_pairs(count: int) -> None:
    """Four devices to up to four, of which all or some or none hold something before, by bytes alone."""
    sources = list(annotations_of(range(4)))
    checked = 0
    for devices in (range(count), range(3, 3 + count)):
        for source, target in product(sources, annotations_of(devices)):
            if meant(source, target):
                check_pair(source, target, SHAPE, COSTS[1])
                checked += 1
    print(checked)
    assert checked > 100
