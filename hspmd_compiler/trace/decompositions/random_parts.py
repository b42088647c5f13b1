"""Operators that draw random numbers, written out as one draw by position and plain arithmetic.

Tracing and the eager model that proofs compare with make numbers by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log1p, pi
from typing import Any, Protocol

import torch
from torch import Tensor

from ...program.kernels.counter_numbers import EXPONENTIAL, INTEGER, NORMAL, UNIFORM

aten = torch.ops.aten
Number = float | int


class Draw(Protocol):
    """Makes the next random numbers of a forward pass."""

    def __call__(self, kind: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor: ...


WrittenDraw = Callable[..., Any]
"""What an operator gives: of a `Draw`, then its own arguments."""


def _dtype(dtype: torch.dtype | None) -> torch.dtype:
    return torch.get_default_dtype() if dtype is None else dtype


def rand(draw: Draw, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return draw(UNIFORM, size, _dtype(dtype))


def randn(draw: Draw, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return draw(NORMAL, size, _dtype(dtype))


def rand_like(draw: Draw, like: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return draw(UNIFORM, like.shape, dtype or like.dtype)


def randn_like(draw: Draw, like: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return draw(NORMAL, like.shape, dtype or like.dtype)


def randint(
    draw: Draw, low: int, high: int, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    return (draw(INTEGER, size, torch.int64) % (high - low) + low).to(dtype or torch.int64)


def randint_high(draw: Draw, high: int, size: Sequence[int], **more: Any) -> Tensor:
    return randint(draw, 0, high, size, **more)


def randint_like(
    draw: Draw, like: Tensor, low: int, high: int, *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    return randint(draw, low, high, like.shape, dtype=dtype or like.dtype)


def randint_like_high(draw: Draw, like: Tensor, high: int, **more: Any) -> Tensor:
    return randint_like(draw, like, 0, high, **more)


def random_from(draw: Draw, like: Tensor, low: int, high: int, **_: Any) -> Tensor:
    return randint_like(draw, like, low, high)


def random_any(draw: Draw, like: Tensor, **_: Any) -> Tensor:
    """All whole numbers from 0 that the type holds."""
    if like.dtype is torch.int64:
        return draw(INTEGER, like.shape, like.dtype)
    if like.dtype.is_floating_point:
        return randint_like(draw, like, 0, round(2 / torch.finfo(like.dtype).eps) + 1)
    return randint_like(draw, like, 0, (1 if like.dtype is torch.bool else torch.iinfo(like.dtype).max) + 1)


def uniform(draw: Draw, like: Tensor, low: Number = 0, high: Number = 1, **_: Any) -> Tensor:
    return draw(UNIFORM, like.shape, like.dtype) * (high - low) + low


def normal(draw: Draw, like: Tensor, mean: Number = 0, std: Number = 1, **_: Any) -> Tensor:
    return draw(NORMAL, like.shape, like.dtype) * std + mean


def normal_of_tensors(draw: Draw, mean: Tensor | Number, std: Tensor | Number = 1, **_: Any) -> Tensor:
    tensors = [item for item in (mean, std) if isinstance(item, Tensor)]
    shape = torch.broadcast_shapes(*(item.shape for item in tensors))  # type: ignore[no-untyped-call]
    return draw(NORMAL, shape, tensors[0].dtype) * std + mean


def normal_of_size(
    draw: Draw,
    mean: Number,
    std: Number,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    return draw(NORMAL, size, _dtype(dtype)) * std + mean


def log_normal(draw: Draw, like: Tensor, mean: Number = 1, std: Number = 2, **_: Any) -> Tensor:
    return normal(draw, like, mean, std).exp()


def exponential(draw: Draw, like: Tensor, rate: Number = 1, **_: Any) -> Tensor:
    made = draw(EXPONENTIAL, like.shape, like.dtype)
    return made if rate == 1 else made / rate


def cauchy(draw: Draw, like: Tensor, median: Number = 0, sigma: Number = 1, **_: Any) -> Tensor:
    return ((draw(UNIFORM, like.shape, like.dtype) - 0.5) * pi).tan() * sigma + median


def geometric(draw: Draw, like: Tensor, chance: float, **_: Any) -> Tensor:
    wide = like.dtype if like.dtype.is_floating_point else torch.get_default_dtype()
    rate = -log1p(-chance) if chance < 1 else float("inf")
    return (draw(EXPONENTIAL, like.shape, wide) / rate).ceil().clamp_min(1).to(like.dtype)


def bernoulli(draw: Draw, chances: Tensor, **_: Any) -> Tensor:
    return (draw(UNIFORM, chances.shape, chances.dtype) < chances).to(chances.dtype)


def bernoulli_of(draw: Draw, like: Tensor, chances: Tensor, **_: Any) -> Tensor:
    wide = chances.dtype if chances.dtype.is_floating_point else torch.get_default_dtype()
    return (draw(UNIFORM, like.shape, wide) < chances).to(like.dtype)


def rrelu(
    draw: Draw,
    x: Tensor,
    noise: Tensor,
    low: Number = 1 / 8,
    high: Number = 1 / 3,
    training: bool = False,
    *_: Any,
    **__: Any,
) -> tuple[Tensor, Tensor]:
    """The result, and the slopes: one where nothing is scaled."""
    if not training:
        return torch.where(x <= 0, x * ((low + high) / 2), x), noise.clone()
    slopes = torch.where(x <= 0, uniform(draw, x, low, high), 1)
    return x * slopes, slopes


WRITTEN: Mapping[torch._ops.OpOverload, WrittenDraw] = {
    aten.rand.default: rand,
    aten.randn.default: randn,
    aten.rand_like.default: rand_like,
    aten.randn_like.default: randn_like,
    aten.randint.default: randint_high,
    aten.randint.low: randint,
    aten.randint_like.default: randint_like_high,
    aten.randint_like.low_dtype: randint_like,
    getattr(aten.random, "from"): random_from,
    aten.random.to: randint_like_high,
    aten.random.default: random_any,
    aten.uniform.default: uniform,
    aten.normal_functional.default: normal,
    aten.normal.Tensor_float: normal_of_tensors,
    aten.normal.float_Tensor: normal_of_tensors,
    aten.normal.Tensor_Tensor: normal_of_tensors,
    aten.normal.float_float: normal_of_size,
    aten.log_normal.default: log_normal,
    aten.exponential.default: exponential,
    aten.cauchy.default: cauchy,
    aten.geometric.default: geometric,
    aten.bernoulli.default: bernoulli,
    aten.bernoulli.Tensor: bernoulli_of,
    aten.rrelu_with_noise_functional.default: rrelu,
}
"""Operators that make new tensors."""
IN_PLACE: Mapping[torch._ops.OpOverload, WrittenDraw] = {
    getattr(aten.random_, "from"): random_from,
    aten.random_.to: randint_like_high,
    aten.random_.default: random_any,
    aten.uniform_.default: uniform,
    aten.normal_.default: normal,
    aten.log_normal_.default: log_normal,
    aten.exponential_.default: exponential,
    aten.cauchy_.default: cauchy,
    aten.geometric_.default: geometric,
    aten.bernoulli_.Tensor: bernoulli_of,
}
"""Operators that overwrite their first operand, as eager calls them."""
BY_NAME: Mapping[str, WrittenDraw] = {str(op): made for op, made in WRITTEN.items()}
