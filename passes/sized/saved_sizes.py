"""What a rank keeps of a micro-batch of any size, from what it keeps at the probes: a sum of products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...program.sized.sizes import Count, Size
from ..compile_state import KeptShapes

ScaledSizes = tuple[int, tuple[Size, ...]]


def saved_sizes(
    kept: Sequence[KeptShapes], size_of: Callable[[Sequence[int]], Size]
) -> list[tuple[Size, ...]]:
    """Bytes, as `SizedRank.saved` has them. kept: at each probe. size_of: of a dim that varies."""
    found: Counter[tuple[Size, ...]] = Counter()
    for shapes, count in Counter(zip(*kept, strict=True)).items():
        terms: list[ScaledSizes] = [(count, ())]
        for numbers in zip(*shapes, strict=True):
            terms = _times(terms, numbers, size_of)
        for factor, sizes in terms:
            found[sizes] += factor
    every = sorted(found.items(), key=lambda item: (-len(item[0]), [size.text for size in item[0]]))
    return [_product(factor, sizes) for sizes, factor in every if factor]


def _times(
    terms: Sequence[ScaledSizes], numbers: Sequence[int], size_of: Callable[[Sequence[int]], Size]
) -> list[ScaledSizes]:
    """The terms times a dim: a number that is the same everywhere, or a factor of a size and a constant."""
    if len(set(numbers)) == 1:
        return [(factor * numbers[0], sizes) for factor, sizes in terms]
    size = size_of(numbers)
    if size.minus is None:
        parts: list[ScaledSizes] = [(size.factor, (replace(size, factor=1, plus=0),)), (size.plus, ())]
    else:
        parts = [(1, (size,))]
    return [
        (factor * more, tuple(sorted((*sizes, *others), key=lambda each: each.text)))
        for factor, sizes in terms
        for more, others in parts
        if more
    ]


def _product(factor: int, sizes: tuple[Size, ...]) -> tuple[Size, ...]:
    """Sizes with a factor: in the first where it can be, else in front."""
    if not sizes or sizes[0].minus is not None:
        return (Size(factor, Count.ONE), *sizes)
    return (replace(sizes[0], factor=factor), *sizes[1:])
