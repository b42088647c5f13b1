"""Every pair of annotations of a matrix on up to four devices: all keys, all orders, all unions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations, product

import pytest

from hspmd_compiler.annotations import DUPLICATE, PARTIAL, Annotation, DeviceGroup, DistributedStates
from hspmd_compiler.annotations.states import StateKey

from ...annotations.layout_key import layout_key
from .proof import COSTS, check_pair

SHAPE = (5, 3)
PARTS = 12
KEYS: tuple[StateKey, ...] = (PARTIAL, DUPLICATE, 0, 1)


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
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_all_pairs(count: int, start: int) -> None:
    """Every way to write four devices and up to four, of which all or some or none hold something before."""
    targets = list(annotations_of(range(start, start + count)))
    checked = 0
    for source, target in product(annotations_of(range(4)), targets):
        if meant(source, target):
            check_pair(source, target, SHAPE, COSTS[1])
            checked += 1
    print(checked)
    assert checked >= 164 * len([one for one in targets if not one.is_partial])


@cache
def layouts() -> tuple[Annotation, ...]:
    """All different layouts on up to four devices, in every order, each once."""
    found: dict[Hashable, Annotation] = {}
    for count in range(1, 5):
        for devices in permutations(range(4), count):
            for one in annotations_of(devices):
                found.setdefault(layout_key(one, SHAPE), one)
    return tuple(found.values())


@cache
def renamed(one: Annotation, names: tuple[int, ...]) -> Hashable:
    """The layout with names[d] in place of device d, as a key."""
    groups = tuple(DeviceGroup(tuple(names[device] for device in group)) for group in one.groups)
    return layout_key(replace(one, groups=groups), SHAPE)


def apart_from_names(found: Iterable[Annotation], names: Sequence[tuple[int, ...]]) -> list[Annotation]:
    """One of each set of layouts that these names make of each other."""
    kept: list[Annotation] = []
    known: set[Hashable] = set()
    for one in found:
        if layout_key(one, SHAPE) not in known:
            kept.append(one)
            known |= {renamed(one, own) for own in names}
    return kept


def pairs_apart_from_names(part: int) -> Iterator[tuple[Annotation, Annotation]]:
    """Each pair of layouts once, with one choice of the names of devices; a part of all."""
    every = tuple(permutations(range(4)))
    for source in apart_from_names(layouts(), every)[part::PARTS]:
        keeping = [names for names in every if renamed(source, names) == layout_key(source, SHAPE)]
        for target in apart_from_names(layouts(), keeping):
            if meant(source, target):
                yield source, target


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_layouts(part: int) -> None:
    """Every layout to every other on up to four devices.

    A layout here is what devices hold; in how many ways it can be written, `test_all_pairs` goes through.
    """
    checked = 0
    for source, target in pairs_apart_from_names(part):
        check_pair(source, target, SHAPE, COSTS[checked % len(COSTS)])
        checked += 1
    print(checked)
    assert checked > 1_000


def test_layouts_are_counted() -> None:
    """What the exhaustive test goes through, by count of devices."""
    assert Counter(len(one.devices) for one in layouts()) == {1: 4, 2: 36, 3: 440, 4: 1152}
    sources = apart_from_names(layouts(), tuple(permutations(range(4))))
    assert Counter(len(one.devices) for one in sources) == {1: 1, 2: 4, 3: 25, 4: 85}
