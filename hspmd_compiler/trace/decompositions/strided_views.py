"""`as_strided` as windows, slices and copies along dims, where it is nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor

from .written_out import before_ours

AS_STRIDED = torch.ops.aten.as_strided.default


@dataclass(frozen=True, slots=True)
class Step:
    """A dim of the result that walks along a dim of the tensor: so many elements, so far apart."""

    out: int
    apart: int
    count: int


def as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> object:
    """The same numbers by operators that split; PyTorch's own call where they read across dims.

    A tensor without gaps is read from its first element on: then a stride is a number of steps along the
    dim with the largest stride that is no larger, and what stays inside of every dim is a view of dims.
    """
    begins = storage_offset is None or storage_offset == x.storage_offset()
    for shape in _groupings(tuple(x.shape), stride) if begins and x.is_contiguous() else ():
        walks = _walks(shape, size, stride)
        if walks is not None:
            return _spread(*_walked(x.reshape(shape), walks), size)
    return before_ours(AS_STRIDED, x, tuple(size), tuple(stride), storage_offset)


def _groupings(shape: tuple[int, ...], stride: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The dims as they are, and with all but the first, which may be the samples, cut where strides say."""
    yield shape
    rest = prod(shape[1:])
    steps = [rest, *sorted({step for step in stride if 0 < step < rest}, reverse=True)]
    if all(outer % inner == 0 for outer, inner in pairwise(steps)):
        yield (*shape[:1], *(outer // inner for outer, inner in pairwise([*steps, 1])))


def _walks(shape: Sequence[int], size: Sequence[int], stride: Sequence[int]) -> list[list[Step]] | None:
    """For each dim of a tensor the dims of the result that walk along it, the longest steps first."""
    strides = list(accumulate(shape[:0:-1], lambda a, b: a * b, initial=1))[::-1] if shape else []
    walks: list[list[Step]] = [[] for _ in shape]
    for out, (count, apart) in enumerate(zip(size, stride, strict=True)):
        if count == 1 or apart == 0:
            continue
        dim = next((d for d, own in enumerate(strides) if shape[d] > 1 and own <= apart), None)
        if count == 0 or dim is None or apart % strides[dim]:
            return None
        walks[dim].append(Step(out, apart // strides[dim], count))
    for steps, length in zip(walks, shape, strict=True):
        steps.sort(key=lambda step: -step.apart)
        inside = sum(step.apart * (step.count - 1) for step in steps) < length
        if not inside or len(steps) > 2 or (len(steps) == 2 and steps[1].apart != 1):
            return None
    return walks


def _walked(x: Tensor, walks: Sequence[Sequence[Step]]) -> tuple[Tensor, list[int]]:
    """The windows and slices, and of each dim of them which one of the result it is."""
    dims: list[int] = []
    behind: list[int] = []
    for steps in walks:
        place = len(dims)
        if not steps:
            x = x.select(place, 0)
        elif len(steps) == 1:
            x = x[
                (slice(None),) * place
                + (slice(0, (steps[0].count - 1) * steps[0].apart + 1, steps[0].apart),)
            ]
            dims.append(steps[0].out)
        else:
            x = x.unfold(place, steps[1].count, steps[0].apart).narrow(place, 0, steps[0].count)
            dims.append(steps[0].out)
            behind.append(steps[1].out)
    return x, [*dims, *behind]


def _spread(x: Tensor, dims: list[int], size: Sequence[int]) -> Tensor:
    """In the order of the result, with its dims of one element, or of copies, put in."""
    x = x.permute([dims.index(out) for out in sorted(dims)])
    for out in range(len(size)):
        if out not in dims:
            x = x.unsqueeze(out)
    return x.expand(tuple(size))
