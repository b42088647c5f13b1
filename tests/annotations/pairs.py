"""Random pairs of annotations of one tensor: unlike groups, orders, shares, sums and relations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

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
from hspmd_compiler.annotations.states import Key, Placement

from .strategies import SHAPES, lengths, splits

Pair = tuple[Annotation, Annotation, tuple[int, ...]]


@st.composite
def states_of_size(draw: st.DrawFn, size: int, shape: Sequence[int], pending: bool) -> DistributedStates:
    """Placements whose parts multiply to `size`, in any order."""
    keys: list[Key] = draw(st.permutations([DUPLICATE, *([PARTIAL] if pending else []), *range(len(shape))]))
    found: list[Placement] = []
    for key in keys:
        divisors = [parts for parts in range(1, size + 1) if size % parts == 0]
        parts = size if key is keys[-1] else draw(st.sampled_from(divisors))
        size //= parts
        if parts > 1:
            found.append(_placement(draw, key, parts, shape))
    return DistributedStates(tuple(draw(st.permutations(found))))


def _placement(draw: st.DrawFn, key: Key, parts: int, shape: Sequence[int]) -> Placement:
    if isinstance(key, int):
        return draw(splits(key, parts, shape[key]))
    return Duplicate(parts) if key is DUPLICATE else Partial(parts)


@st.composite
def annotations_on(
    draw: st.DrawFn, shape: tuple[int, ...], groups: tuple[DeviceGroup, ...], pending: bool
) -> Annotation:
    """Any annotation of a tensor of this shape on these groups."""
    relations: list[Key] = [DUPLICATE, *([PARTIAL] if pending else []), *range(len(shape))]
    hetero = None if len(groups) == 1 else draw(st.sampled_from(relations))
    shares, shapes = None, [shape] * len(groups)
    if isinstance(hetero, int):
        shares = draw(lengths(shape[hetero], len(groups)))
        shapes = [(*shape[:hetero], own, *shape[hetero + 1 :]) for own in shares]
    states = tuple(
        draw(states_of_size(len(group), own, pending)) for group, own in zip(groups, shapes, strict=True)
    )
    return Annotation(groups, states, hetero, shares)


@st.composite
def device_groups(draw: st.DrawFn, devices: Sequence[int]) -> tuple[DeviceGroup, ...]:
    """The devices, or some of them, in any order in one to four groups."""
    order = draw(st.permutations(devices))[: draw(st.integers(1, len(devices)))]
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(order) - 1)), max_size=3)))
    bounds = [0, *(cut for cut in cuts if cut < len(order)), len(order)]
    return tuple(DeviceGroup(tuple(order[low:high])) for low, high in pairwise(bounds))


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Groups of both sides are equal, overlap, or have no device in common."""
    shape = draw(SHAPES)
    devices = range(draw(st.integers(1, 8)))
    source_groups = draw(device_groups(devices))
    kind = draw(st.sampled_from(["same groups", "same groups", "any groups", "other devices"]))
    target_groups = source_groups
    if kind != "same groups":
        shift = len(devices) if kind == "other devices" else draw(st.integers(0, 2))
        target_groups = draw(device_groups([device + shift for device in devices]))
    source = draw(annotations_on(shape, source_groups, pending=True))
    pending = source.is_partial and draw(st.integers(0, 3)) == 0
    return source, draw(annotations_on(shape, target_groups, pending)), shape
