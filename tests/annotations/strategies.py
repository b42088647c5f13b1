"""Random annotations with a shape they fit: awkward lengths, unequal groups, empty shares, blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hypothesis import strategies as st

from hspmd_compiler.annotations import (
    DUPLICATE,
    PARTIAL,
    Annotation,
    Block,
    DeviceGroup,
    DistributedStates,
    Duplicate,
    Partial,
    Split,
)

LENGTHS = st.sampled_from([0, 1, 2, 3, 5, 6, 7, 8, 12, 13])
SHAPES = st.lists(LENGTHS, min_size=1, max_size=3).map(tuple)


@st.composite
def lengths(draw: st.DrawFn, total: int, parts: int) -> tuple[int, ...]:
    """`parts` lengths, some zero, that add up to `total`."""
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=parts - 1, max_size=parts - 1)))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))


@st.composite
def shares(draw: st.DrawFn, total: int, parts: int) -> tuple[object, ...] | None:
    """None, lengths, or intervals widened until they overlap."""
    kind = draw(st.sampled_from(["even", "lengths", "intervals"]))
    if kind == "even":
        return None
    found = draw(lengths(total, parts))
    if kind == "lengths":
        return found
    spans = [
        (max(0, end - own - draw(st.integers(0, 1))), end)
        for own, end in zip(found, accumulate(found), strict=True)
    ]
    return tuple(draw(st.permutations(spans)))


@st.composite
def splits(draw: st.DrawFn, dim: int, parts: int, length: int) -> Split:
    """Any split of a dim of this length."""
    unit = draw(st.sampled_from([u for u in (1, 2, 3) if length % u == 0]))
    units = length // unit
    if units > 1 and draw(st.booleans()):
        own = [n for n in draw(lengths(units, draw(st.integers(1, 3)))) if n]
        blocks = tuple(Block(n * unit, draw(shares(n, parts))) for n in own)
        return Split(dim, parts, blocks=blocks, unit=unit)
    return Split(dim, parts, draw(shares(units, parts)), unit=unit)


@st.composite
def states(draw: st.DrawFn, shape: Sequence[int], max_parts: int = 3) -> DistributedStates:
    """Placements in any order, at most three."""
    keys = draw(st.permutations([DUPLICATE, PARTIAL, *range(len(shape))]))
    found = []
    for key in keys[: draw(st.integers(0, 3))]:
        parts = draw(st.integers(1, max_parts))
        if isinstance(key, int):
            found.append(draw(splits(key, parts, shape[key])))
        else:
            found.append(Duplicate(parts) if key is DUPLICATE else Partial(parts))
    return DistributedStates(tuple(found))


@st.composite
def annotated(draw: st.DrawFn) -> tuple[Annotation, tuple[int, ...]]:
    """An annotation, and a shape that it fits."""
    shape = draw(SHAPES)
    count = draw(st.integers(1, 3))
    hetero = None if count == 1 else draw(st.sampled_from([DUPLICATE, PARTIAL, *range(len(shape))]))
    hetero_shares = None
    shapes = [shape] * count
    if isinstance(hetero, int):
        hetero_shares = draw(lengths(shape[hetero], count))
        shapes = [(*shape[:hetero], own, *shape[hetero + 1 :]) for own in hetero_shares]
    if count > 1 and draw(st.booleans()) and len(set(shapes)) == 1:
        all_states = [draw(states(shapes[0], 2))] * count
    else:
        all_states = [draw(states(own, 2 if count > 1 else 3)) for own in shapes]
    devices = iter(draw(st.permutations(range(sum(own.size for own in all_states)))))
    groups = tuple(DeviceGroup(tuple(next(devices) for _ in range(own.size))) for own in all_states)
    return Annotation(groups, tuple(all_states), hetero, hetero_shares), shape
