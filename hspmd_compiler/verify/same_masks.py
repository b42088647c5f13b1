"""Eager code that draws what compiled programs draw: its random masks and numbers are replaced by theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..program.kernels.counter_numbers import whole_numbers
from ..program.kernels.counter_random import key_tensor, whole_mask
from ..trace.capture import DispatchRecorder
from ..trace.decompositions.random_parts import IN_PLACE, WRITTEN
from .widen import WIDER

SEED = 0
"""Of random numbers while programs are verified."""
aten = torch.ops.aten


class SameMasks(DispatchRecorder):  # type: ignore[no-untyped-call]
    """In this block random operators draw by position; their calls are numbered as they come.

    It stands around one forward pass on the whole global batch. seed: of the run. step: counted from 0.
    widen: whether numbers are double whatever type is asked for.
    """

    def __init__(self, seed: int, step: int, widen: bool = False) -> None:
        super().__init__(self._answer)
        self._widen, self._device = widen, "cpu"
        self._key = key_tensor((seed, step, 0))
        self._calls = 0

    def _answer(self, func: torch._ops.OpOverload, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        if func is aten.bernoulli_.float:
            return args[0].copy_(self._mask(args[0], args[1] if len(args) > 1 else 0.5))
        if func is aten.bernoulli.p:
            return self._mask(args[0], args[1])
        if func is aten.native_dropout.default and args[2] is not False:
            return self._dropout(args[0], args[1])
        self._device = next((str(arg.device) for arg in args if isinstance(arg, Tensor)), "cpu")
        if func is aten.rrelu_with_noise.default:
            made, noise = WRITTEN[aten.rrelu_with_noise_functional.default](self._numbers, *args, **given)
            args[1].copy_(noise)
            return made
        if func in WRITTEN:
            return WRITTEN[func](self._numbers, *args, **given)
        if func in IN_PLACE:
            return args[0].copy_(IN_PLACE[func](self._numbers, *args, **given))
        return func(*args, **given)

    def _numbers(self, kind: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        number = self._calls
        self._calls += 1
        wide = WIDER.get(dtype, dtype) if self._widen else dtype
        return whole_numbers(self._key, number, kind, shape, wide, self._device)

    def _dropout(self, value: Tensor, probability: float) -> tuple[Tensor, Tensor]:
        if probability == 1:
            return torch.zeros_like(value), torch.zeros_like(value, dtype=torch.bool)
        mask = self._mask(value, 1 - probability)
        return value * mask / (1 - probability), mask.bool()

    def _mask(self, like: Tensor, keep: float) -> Tensor:
        number = self._calls
        self._calls += 1
        return whole_mask(self._key, number, keep, like.shape, like.dtype, str(like.device))
