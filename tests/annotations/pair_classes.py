"""What a pair of annotations has of all that pairs may have, to count what random ones cover."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import product

from hspmd_compiler.annotations import DUPLICATE, PARTIAL, Annotation, DistributedStates, Duplicate, Partial

from .pairs import Hetero, Pair


class PairClass(Enum):
    """Names of classes; a pair is in many."""

    UNEQUAL_GROUP_COUNTS = "unequal group counts"
    UNEQUAL_SHARES = "unequal shares"
    OTHER_ORDER = "the same placements in another order"
    DEVICES_OUT_OF_ORDER = "devices out of order"
    SEVERAL_DIMS = "several dims split in one group"
    SPLIT_AND_COPIES = "split and copies in one group"
    SUM_AND_SPLIT = "sum and split in one group"
    SUM_AND_COPIES = "sum and copies in one group"
    SUM_SPLIT_AND_COPIES = "sum, split and copies in one group"
    SUM_TO_VALUE = "sum to value"
    SUM_TO_SUM = "sum to other addends"
    SUM_PER_SUBGROUP = "a sum in each of equal subgroups"
    SAME_DEVICES = "same devices"
    DISJOINT = "disjoint devices"
    NESTED = "nested devices"
    OVERLAPPING = "overlapping devices"
    ONE_DEVICE = "one device"
    LENGTH_0 = "length 0"
    LENGTH_1 = "length 1"
    PRIME = "prime length split"
    SHORT = "length shorter than the split"
    EMPTY_PIECE = "empty piece"


ALL_CLASSES = (*PairClass, *product(Hetero, Hetero))
"""(Hetero, Hetero): the relations of subgroups before and after."""

PRIMES = {2, 3, 5, 7, 11, 13}


def classes_of(pair: Pair) -> set[PairClass | tuple[Hetero, Hetero]]:
    """All classes that the pair is in."""
    source, target, _ = pair
    found: set[PairClass | tuple[Hetero, Hetero]] = {(hetero_of(source), hetero_of(target))}
    found.update(_of_devices(source, target), _of_lengths(pair), _of_both(source, target))
    for annotation in (source, target):
        for states in annotation.states:
            found.update(_of_states(states))
    return found


def hetero_of(annotation: Annotation) -> Hetero:
    """The kind of relation between subgroups."""
    if annotation.hetero is None:
        return Hetero.NONE
    kinds = {DUPLICATE: Hetero.DUPLICATE, PARTIAL: Hetero.PARTIAL}
    return Hetero.DIM if isinstance(annotation.hetero, int) else kinds[annotation.hetero]


def _of_devices(source: Annotation, target: Annotation) -> Iterator[PairClass]:
    before, after = set(source.devices), set(target.devices)
    if before == after:
        yield PairClass.SAME_DEVICES
    elif not before & after:
        yield PairClass.DISJOINT
    else:
        yield PairClass.NESTED if before < after or after < before else PairClass.OVERLAPPING
    if len(source.groups) != len(target.groups):
        yield PairClass.UNEQUAL_GROUP_COUNTS
    if any(list(group) != sorted(group) for one in (source, target) for group in one.groups):
        yield PairClass.DEVICES_OUT_OF_ORDER
    if len(before) == 1 or len(after) == 1:
        yield PairClass.ONE_DEVICE


def _of_lengths(pair: Pair) -> Iterator[PairClass]:
    source, target, shape = pair
    splits = [split for one in (source, target) for states in one.states for split in states.splits]
    held = [rows for one in (source, target) for rows in one.intervals(shape).values()]
    if 0 in shape:
        yield PairClass.LENGTH_0
    elif not all(map(all, held)):
        yield PairClass.EMPTY_PIECE
    if 1 in shape:
        yield PairClass.LENGTH_1
    if any(shape[split.dim] in PRIMES and split.parts > 1 for split in splits):
        yield PairClass.PRIME
    if any(0 < shape[split.dim] < split.parts for split in splits):
        yield PairClass.SHORT


def _of_states(states: DistributedStates) -> Iterator[PairClass]:
    several = [placement for placement in states.placements if placement.parts > 1]
    copies = any(isinstance(placement, Duplicate) for placement in several)
    sums = any(isinstance(placement, Partial) for placement in several)
    splits = len(several) - copies - sums
    if splits > 1:
        yield PairClass.SEVERAL_DIMS
    if splits and copies:
        yield PairClass.SPLIT_AND_COPIES
    if sums and splits:
        yield PairClass.SUM_AND_SPLIT
    if sums and copies:
        yield PairClass.SUM_AND_COPIES
    if sums and splits and copies:
        yield PairClass.SUM_SPLIT_AND_COPIES


def _of_both(source: Annotation, target: Annotation) -> Iterator[PairClass]:
    states = zip(source.states, target.states, strict=False)
    reordered = (a.order != b.order and set(a.placements) == set(b.placements) for a, b in states)
    if source.groups == target.groups and any(reordered):
        yield PairClass.OTHER_ORDER
    if source.is_partial:
        yield PairClass.SUM_TO_SUM if target.is_partial else PairClass.SUM_TO_VALUE
        if source.hetero is DUPLICATE:
            yield PairClass.SUM_PER_SUBGROUP
    if any(map(_unequal_shares, (source, target))):
        yield PairClass.UNEQUAL_SHARES


def _unequal_shares(annotation: Annotation) -> bool:
    shares = annotation.hetero_shares
    return (shares is not None and len(set(shares)) > 1) or any(
        split.shares is not None or any(block.shares is not None for block in split.blocks)
        for states in annotation.states
        for split in states.splits
    )
