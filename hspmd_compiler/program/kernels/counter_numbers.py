"""Random numbers of four kinds, of the hashes of `counter_random`: alike on every device, but for rounding.

They are computed in float64 and rounded once, so that a program in double precision draws what the one in
single precision does, to more digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import log2

import torch
from torch import Tensor

from .counter_random import BITS, FactorPart, drawn, parts_of, size_of
from .shape_only import is_shape_only

UNIFORM, NORMAL, EXPONENTIAL, INTEGER = "uniform", "normal", "exponential", "integer"
INNER_BITS = 52
"""Of numbers inside (0, 1): they and one half more are whole in float64, below one."""


def random_numbers(
    key: Tensor, operator: int, kind: str, parts: Sequence[FactorPart], dtype: torch.dtype, device: str
) -> Tensor:
    """Numbers of a kind, flat, for the elements that `parts` name: see `counter_random.random_mask`.

    kind: `uniform` in [0, 1), standard `normal`, `exponential` of rate 1 and never 0, or `integer`: int64,
    each from 0 as likely.
    """
    if is_shape_only(key):
        return torch.zeros(size_of(parts), dtype=dtype, device=device)
    return drawn(key, operator, parts, device, dtype, partial(KINDS[kind], dtype=dtype))


def whole_numbers(
    key: Tensor, operator: int, kind: str, shape: Sequence[int], dtype: torch.dtype, device: str = "cpu"
) -> Tensor:
    """`random_numbers` of all elements of a shape."""
    return random_numbers(key, operator, kind, parts_of(shape), dtype, device).view(list(shape))


def _top(bits: Tensor, count: int) -> Tensor:
    """The first bits, as whole numbers from 0."""
    return (bits >> (BITS - count)) & ((1 << count) - 1)


def _uniform(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """As many bits as the type holds: rounding never makes 1."""
    digits = 1 - round(log2(torch.finfo(dtype).eps))
    return (_top(bits, digits).double() * 2.0**-digits).to(dtype)


def _inside(bits: Tensor) -> Tensor:
    """In (0, 1), as far from both ends."""
    return (_top(bits, INNER_BITS).double() + 0.5) * 2.0**-INNER_BITS


def _normal(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """One number per hash, so that a piece is that of the whole: the inverse of the distribution."""
    made: Tensor = torch.special.ndtri(_inside(bits))
    return made.to(dtype)


def _exponential(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Its logarithm is finite."""
    return _inside(bits).log().neg().clamp_min(torch.finfo(dtype).smallest_normal).to(dtype)


def _integer(bits: Tensor, dtype: torch.dtype) -> Tensor:
    return _top(bits, BITS - 1).to(dtype)


KINDS: Mapping[str, Callable[..., Tensor]] = {
    UNIFORM: _uniform,
    NORMAL: _normal,
    EXPONENTIAL: _exponential,
    INTEGER: _integer,
}
