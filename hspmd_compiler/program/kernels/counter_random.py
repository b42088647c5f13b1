"""Random numbers by position: an element's number follows from seed, operator, step and place in the whole.

Each (seed, operator, step) has a stream of its own of the SplitMix64 generator, split as Steele, Lea and
Flood describe ("Fast splittable pseudorandom number generators", 2014): a start and an odd stride. Number i
of a stream is a hash of start + (i + 1) * stride, so any piece of a tensor is computed alone, in any order,
with the same bits on every device: whole numbers of 64 bits only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

import torch
from torch import Tensor

from ...base.comm_plan import Interval
from .shape_only import is_shape_only

RandomKey = tuple[int, int, int]
"""(seed, step, first sample): what the random numbers of one micro-batch depend on."""
FromBits = Callable[[Tensor], Tensor]
"""From hashes, as int64, to numbers."""

BITS = 64
WORDS = 1 << BITS
GOLDEN = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
MIX_STRIDE = ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, 1))
FEWEST_CHANGES = 24
ALTERNATING = 0xAAAAAAAAAAAAAAAA
CPU_BLOCK, GPU_BLOCK = 1 << 15, 1 << 24
"""Elements hashed at once: what stays in a core's cache, and what keeps a GPU busy."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One sequence of numbers: where it starts, and its odd stride."""

    start: int
    stride: int

    @staticmethod
    def of(seed: int, operator: int, step: int) -> Stream:
        """The stream of one operator in one step."""
        state = reduce(lambda held, word: _mix((held ^ word % WORDS) + GOLDEN), (seed, operator, step), 0)
        return Stream(state, _odd_stride(state + GOLDEN))


@dataclass(frozen=True, slots=True)
class FactorPart:
    """One factor of a tensor's dims: its whole size, and the intervals of it that are wanted.

    per_sample: elements that a sample has of it, where the samples lie along it and the intervals count
    from the first sample of the micro-batch; else 0.
    """

    size: int
    intervals: tuple[Interval, ...]
    per_sample: int = 0


def key_tensor(key: RandomKey) -> Tensor:
    """A key as the value that programs read; it stays on the CPU, so that reading it waits for no device."""
    return torch.tensor(key, dtype=torch.int64)


def random_mask(
    key: Tensor, operator: int, keep: float, parts: Sequence[FactorPart], dtype: torch.dtype, device: str
) -> Tensor:
    """Ones with probability `keep`, zeros else, flat, for the elements that `parts` name, in their order.

    parts: row-major factors of the whole tensor; an element is numbered by its place in all of it.
    """
    if keep <= 0 or keep >= 1 or is_shape_only(key):
        return torch.full((size_of(parts),), keep >= 1, dtype=dtype, device=device)
    limit = int(keep * WORDS) - WORDS // 2
    return drawn(key, operator, parts, device, torch.bool, lambda bits: bits < limit).to(dtype)


def drawn(
    key: Tensor, operator: int, parts: Sequence[FactorPart], device: str, dtype: torch.dtype, made: FromBits
) -> Tensor:
    """Numbers of `dtype`, flat, for the elements that `parts` name, made of their hashes."""
    if not size_of(parts):
        return torch.empty(0, dtype=dtype, device=device)
    seed, step, first = key.tolist()
    outer, inner = _places(parts, first, Stream.of(seed, operator, step), device)
    out = torch.empty((outer.numel(), inner.numel()), dtype=dtype, device=device)
    block = CPU_BLOCK if out.is_cpu else GPU_BLOCK
    columns = min(block, inner.numel())
    rows = max(1, block // columns)
    for low in range(0, outer.numel(), rows):
        for left in range(0, inner.numel(), columns):
            numbers = outer[low : low + rows, None] + inner[None, left : left + columns]
            out[low : low + rows, left : left + columns] = made(mixed(numbers))
    return out.view(-1)


def whole_mask(
    key: Tensor, operator: int, keep: float, shape: Sequence[int], dtype: torch.dtype, device: str = "cpu"
) -> Tensor:
    """`random_mask` of all elements of a shape."""
    return random_mask(key, operator, keep, parts_of(shape), dtype, device).view(list(shape))


def parts_of(shape: Sequence[int]) -> list[FactorPart]:
    """All of a tensor."""
    return [FactorPart(size, ((0, size),)) for size in shape]


def size_of(parts: Sequence[FactorPart]) -> int:
    """How many elements parts name."""
    return prod(sum(high - low for low, high in part.intervals) for part in parts)


def mixed(numbers: Tensor) -> Tensor:
    """The hash of SplitMix64 on int64 numbers, which wrap around; `numbers` is overwritten."""
    shifted = torch.empty_like(numbers)
    for shift, factor in MIX:
        torch.bitwise_right_shift(numbers, shift, out=shifted)
        numbers ^= shifted.bitwise_and_((1 << (BITS - shift)) - 1)  # the sign does not move in
        if factor != 1:
            numbers *= signed(factor)
    return numbers


def signed(number: int) -> int:
    """A number modulo 2^64 as int64 holds it."""
    number %= WORDS
    return number - WORDS if number >= WORDS // 2 else number


def _places(parts: Sequence[FactorPart], first: int, stream: Stream, device: str) -> tuple[Tensor, Tensor]:
    """Two vectors whose outer sum is, by element, the counter that is hashed: of the last factors, and all
    before them."""
    whole = 1
    inner = torch.zeros(1, dtype=torch.int64, device=device)
    outer = torch.full((1,), signed(stream.start + stream.stride), dtype=torch.int64, device=device)
    for part in reversed(parts):
        own = _indexes(part, first, device) * signed(whole * stream.stride)
        whole *= part.size
        if outer.numel() == 1 and inner.numel() * own.numel() <= CPU_BLOCK:
            inner = (own[:, None] + inner).view(-1)
        else:
            outer = (own[:, None] + outer).view(-1)
    return outer, inner


def _indexes(part: FactorPart, first: int, device: str) -> Tensor:
    start = first * part.per_sample
    ranges = [
        torch.arange(start + low, start + high, dtype=torch.int64, device=device)
        for low, high in part.intervals
    ]
    return ranges[0] if len(ranges) == 1 else torch.cat(ranges)


def _mix(number: int, by: Sequence[tuple[int, int]] = MIX) -> int:
    for shift, factor in by:
        number %= WORDS
        number = (number ^ number >> shift) * factor
    return number % WORDS


def _odd_stride(number: int) -> int:
    """A stride whose bits change often enough."""
    stride = _mix(number, MIX_STRIDE) | 1
    changes = (stride ^ stride >> 1).bit_count()
    return stride ^ ALTERNATING if changes < FEWEST_CHANGES else stride
