"""Random pairs of annotations of one tensor: unlike groups, orders, shares, sums and relations.

What is rare by chance (a sum beside copies and a split, two splits in one group, another order of the same
placements) is drawn on purpose; `pair_classes` tells what a pair has, and tests count it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from itertools import product

from hypothesis import strategies as st

from hspmd_compiler.annotations import (
    DUPLICATE,
    PARTIAL,
    Annotation,
    DeviceGroup,
    DistributedStates,
    Duplicate,
    Partial,
)
from hspmd_compiler.annotations.states import Placement, StateKey

from .strategies import lengths, splits

Shape = tuple[int, ...]
Pair = tuple[Annotation, Annotation, Shape]

LENGTHS = st.sampled_from([7, 5, 1, 12, 3, 8, 2, 13, 6, 1, 0])
SHAPES = st.sampled_from([2, 3, 1, 2]).flatmap(lambda dims: st.tuples(*[LENGTHS] * dims))

SIZES_OF_ONE_GROUP = st.sampled_from([8, 4, 6, 8, 3, 12, 2, 8, 5, 1])
SIZES_OF_SEVERAL = st.sampled_from([2, 4, 1, 4, 3])


class Relation(Enum):
    """Of the devices after to those before."""

    SAME_GROUPS = "same groups"
    OTHER_ORDER = "same groups and placements, in another order"
    SAME_DEVICES = "same devices"
    OVERLAPPING = "overlapping"
    INSIDE = "inside"
    AROUND = "around"
    APART = "apart"


class Hetero(Enum):
    """Of the subgroups to each other."""

    NONE = "none"
    DUPLICATE = "dup"
    PARTIAL = "partial"
    DIM = "dim"


HETERO = [*product(Hetero, Hetero), *[(Hetero.PARTIAL, Hetero.DUPLICATE)] * 2]
"""Before and after; sums of gradients are met most."""


class Sums(Enum):
    """Whether devices of a subgroup hold addends."""

    NONE = "none"
    MAYBE = "maybe"
    INSIDE = "inside"


@st.composite
def states_of_size(draw: st.DrawFn, size: int, shape: Shape, sums: Sums) -> DistributedStates:
    """Placements whose parts multiply to `size`, in any order; several of them where the size allows."""
    keys: list[StateKey] = draw(st.permutations([*range(len(shape)), DUPLICATE]))
    if sums is not Sums.NONE:
        keys = [PARTIAL, *keys]
    each_its_own = draw(st.booleans())
    parts: dict[StateKey, int] = {}
    for place, prime in enumerate(_primes(size)):
        chosen = (place == 0 and sums is Sums.INSIDE) or (each_its_own and place < len(keys))
        key = keys[place] if chosen else draw(st.sampled_from(keys))
        parts[key] = parts.get(key, 1) * prime
    found = [_placement(draw, key, own, shape) for key, own in parts.items()]
    return DistributedStates(tuple(draw(st.permutations(found))))


def _primes(size: int) -> list[int]:
    """Prime factors, ascending."""
    for prime in range(2, size + 1):
        if size % prime == 0:
            return [prime, *_primes(size // prime)]
    return []


def _placement(draw: st.DrawFn, key: StateKey, parts: int, shape: Shape) -> Placement:
    if isinstance(key, int):
        return draw(splits(key, parts, shape[key]))
    return Duplicate(parts) if key is DUPLICATE else Partial(parts)


@st.composite
def annotations_on(
    draw: st.DrawFn, shape: Shape, groups: tuple[DeviceGroup, ...], hetero: Hetero, sums: Sums
) -> Annotation:
    """Any annotation of a tensor of this shape on these groups, which are related so."""
    key, shares, shapes = _key(draw, hetero, shape), None, [shape] * len(groups)
    if isinstance(key, int):
        shares = draw(lengths(shape[key], len(groups)))
        shapes = [(*shape[:key], own, *shape[key + 1 :]) for own in shares]
    states = tuple(
        draw(states_of_size(len(group), own, sums)) for group, own in zip(groups, shapes, strict=True)
    )
    return Annotation(groups, states, key, shares)


def _key(draw: st.DrawFn, hetero: Hetero, shape: Shape) -> StateKey | None:
    if hetero is Hetero.DIM:
        return draw(st.integers(0, len(shape) - 1))
    return {Hetero.DUPLICATE: DUPLICATE, Hetero.PARTIAL: PARTIAL}.get(hetero)


@st.composite
def groups_of(draw: st.DrawFn, devices: Sequence[int], several: bool) -> tuple[DeviceGroup, ...]:
    """All of these devices, in any order or ascending, in one group or in two to four."""
    order = draw(st.permutations(devices)) if draw(st.booleans()) else sorted(devices)
    count = draw(st.integers(2, min(4, len(order)))) if several else 1
    cuts = sorted(draw(st.permutations(range(1, len(order))))[: count - 1])
    bounds = zip([0, *cuts], [*cuts, len(order)], strict=True)
    return tuple(DeviceGroup(tuple(order[low:high])) for low, high in bounds)


@st.composite
def devices_after(draw: st.DrawFn, relation: Relation, before: Sequence[int], least: int) -> list[int]:
    """At least so many devices that are so related to those before, which count from 0."""
    count = len(before)
    if relation is Relation.OVERLAPPING:
        start = draw(st.integers(1, max(1, count - 1)))
        return list(range(start, count + draw(st.integers(least, 3))))
    if relation is Relation.INSIDE and count > least:
        return draw(st.permutations(before))[: draw(st.integers(least, count - 1))]
    if relation is Relation.APART:
        return list(range(count, count + draw(st.integers(least, 6))))
    if relation is Relation.AROUND or count < least:
        return [*before, *range(count, count + draw(st.integers(1, 3)))]
    return list(before)


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Two annotations and the shape of their tensor."""
    shape, before, after = draw(SHAPES), *draw(st.sampled_from(HETERO))
    sums = Sums.INSIDE if after is Hetero.PARTIAL else draw(st.sampled_from(Sums))
    source = draw(annotations_on(shape, draw(_groups_before(before)), before, sums))
    relation = draw(st.sampled_from(_relations(before, after)))
    if relation is Relation.OTHER_ORDER:
        return source, _reordered(source), shape
    groups = source.groups
    if relation is not Relation.SAME_GROUPS:
        several = after is not Hetero.NONE
        devices = draw(devices_after(relation, range(len(source.devices)), 1 + several))
        groups = draw(groups_of(devices, several))
    pending = source.is_partial
    if after is Hetero.PARTIAL and not pending:
        after = Hetero.DUPLICATE
    sums = draw(st.sampled_from(Sums)) if pending else Sums.NONE
    return source, draw(annotations_on(shape, groups, after, sums)), shape


def _relations(before: Hetero, after: Hetero) -> list[Relation]:
    """Those that fit these relations of subgroups."""
    found = list(Relation)
    if before is after:
        found += [Relation.OTHER_ORDER] * 3
    else:
        found.remove(Relation.OTHER_ORDER)
    if (before is Hetero.NONE) is not (after is Hetero.NONE):
        found.remove(Relation.SAME_GROUPS)
    return found


@st.composite
def _groups_before(draw: st.DrawFn, hetero: Hetero) -> tuple[DeviceGroup, ...]:
    """Groups of any sizes on the first devices."""
    sizes = [draw(SIZES_OF_ONE_GROUP)]
    if hetero is not Hetero.NONE:
        sizes = draw(st.lists(SIZES_OF_SEVERAL, min_size=2, max_size=4))
    count = sum(sizes)
    order = iter(draw(st.permutations(range(count))) if draw(st.booleans()) else range(count))
    return tuple(DeviceGroup(tuple(next(order) for _ in range(size))) for size in sizes)


def _reordered(source: Annotation) -> Annotation:
    """The same placements on the same devices, but innermost is what was outermost."""
    states = tuple(DistributedStates(own.placements[::-1]) for own in source.states)
    return replace(source, states=states)
