"""Operators that look at the same memory, or copy it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.dtypes import ElementType
from .computed import like
from .plain import Outline, Shape, made


def same(value: Outline, *rest: object) -> Outline:
    """Itself."""
    return value


def item_of(values: Sequence[Outline], place: int) -> Outline:
    """One of several results."""
    return values[place]


def transposed(value: Outline, first: int, second: int) -> Outline:
    """Two dims change places."""
    order = list(range(value.dim))
    order[first], order[second] = order[second], order[first]
    return value.viewed([value.shape[dim] for dim in order], [value.strides[dim] for dim in order])


def turned(value: Outline) -> Outline:
    """A matrix."""
    return transposed(value, 0, 1) if value.dim == 2 else value


def permuted(value: Outline, order: Sequence[int]) -> Outline | None:
    """Dims in another order."""
    if sorted(dim % max(value.dim, 1) for dim in order) != [*range(value.dim)]:
        return None
    return value.viewed([value.shape[dim] for dim in order], [value.strides[dim] for dim in order])


def unsqueezed(value: Outline, dim: int) -> Outline | None:
    """With a new dim of one entry."""
    if not -value.dim - 1 <= dim <= value.dim:
        return None
    at = dim % (value.dim + 1)
    step = value.shape[at] * value.strides[at] if at < value.dim else 1
    sizes, strides = value.shape, value.strides
    return value.viewed((*sizes[:at], 1, *sizes[at:]), (*strides[:at], step, *strides[at:]))


def expanded(value: Outline, sizes: Sequence[int], **named: Any) -> Outline | None:
    """Dims of one entry read again and again."""
    missing = len(sizes) - value.dim
    if named or missing < 0:
        return None
    own = [(1, 0)] * missing + [*zip(value.shape, value.strides, strict=True)]
    wanted = [have if size == -1 else size for size, (have, _) in zip(sizes, own, strict=True)]
    if any(have not in (1, size) for size, (have, _) in zip(wanted, own, strict=True)):
        return None
    steps = [0 if have == 1 != size else step for size, (have, step) in zip(wanted, own, strict=True)]
    return value.viewed(wanted, steps)


def sliced(
    value: Outline, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Outline | None:
    """Part of a dim."""
    if not value.dim or step <= 0:
        return None
    at = range(value.dim)[dim]
    count = len(range(*slice(start, end, step).indices(value.shape[at])))
    sizes, strides = list(value.shape), list(value.strides)
    sizes[at], strides[at] = count, strides[at] * step
    return value.viewed(sizes, strides)


def selected(value: Outline, dim: int, index: int) -> Outline | None:
    """One entry of a dim, which is gone."""
    at = range(value.dim)[dim]
    if not -value.shape[at] <= index < value.shape[at]:
        return None
    return value.viewed(_without(value.shape, at), _without(value.strides, at))


def _without(numbers: Shape, at: int) -> Shape:
    return numbers[:at] + numbers[at + 1 :]


def reshaped(value: Outline, sizes: Sequence[int]) -> Outline | None:
    """A view where memory allows it, else a copy."""
    wanted = _whole(value, sizes)
    if wanted is None or not value.numel:
        return None
    strides = view_strides(value, wanted)
    return made(wanted, value.dtype) if strides is None else value.viewed(wanted, strides)


def view(value: Outline, sizes: Sequence[int]) -> Outline | None:
    """A view, or nothing."""
    wanted = _whole(value, sizes)
    strides = None if wanted is None or not value.numel else view_strides(value, wanted)
    return None if wanted is None or strides is None else value.viewed(wanted, strides)


def _whole(value: Outline, sizes: Sequence[int]) -> Shape | None:
    """The sizes, -1 in them worked out; None where they don't fit."""
    known = 1
    for size in sizes:
        known *= size if size != -1 else 1
    if list(sizes).count(-1) == 1 and known > 0:
        sizes = [value.numel // known if size == -1 else size for size in sizes]
        known *= value.numel // known
    return tuple(sizes) if known == value.numel and all(size >= 0 for size in sizes) else None


def view_strides(value: Outline, wanted: Shape) -> Shape | None:
    """Strides of a view with these sizes, as PyTorch works them out; None where only a copy will do."""
    strides = [0] * len(wanted)
    place = len(wanted) - 1
    base = value.strides[-1] if value.dim else 1
    elements = viewed = 1
    for dim in reversed(range(value.dim)):
        elements *= value.shape[dim]
        ends = not dim or (value.shape[dim - 1] != 1 and value.strides[dim - 1] != elements * base)
        if not ends:
            continue
        while place >= 0 and (viewed < elements or wanted[place] == 1):
            strides[place] = viewed * base
            viewed *= wanted[place]
            place -= 1
        if viewed != elements:
            return None
        if dim:
            base, elements, viewed = value.strides[dim - 1], 1, 1
    while place >= 0 and wanted[place] == 1:
        strides[place] = viewed * base
        place -= 1
    return tuple(strides) if place < 0 else None


def converted(value: Outline, dtype: ElementType | None = None, **named: Any) -> Outline | None:
    """A copy in another type."""
    return like(value, dtype=dtype, **named)
