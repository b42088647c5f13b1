"""The types of what has no rule: PyTorch is asked, on tensors without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from ...base.dtypes import ELEMENT_TYPES, ElementType
from ..interpret import read_row
from ..literals import torch_dtype
from ..operator_types import Typed, TypedResult, answer_of
from ..program import LocalRow
from .mode import QuickTypes
from .plain import PlainTyped
from .table import MadeTensor, TypeAnswer

META = "meta"
PlainResult = PlainTyped | tuple[PlainTyped | None, ...]


@cache
def _mode() -> QuickTypes:
    return QuickTypes()


def asked_answer(
    row: LocalRow, literals: Sequence[object], operands: Mapping[int, PlainResult]
) -> TypeAnswer[PlainTyped]:
    """What a row makes of operands of these types; an InternalError where its operator refuses them."""
    given = {value: _typed(result) for value, result in operands.items()}
    with torch.no_grad(), _mode():
        answer = answer_of(read_row(row, literals), given, META)
    made = tuple(None if part is None else _made(part) for part in answer.made)
    return TypeAnswer(made, answer.single)


def _made(part: MadeTensor[Typed]) -> MadeTensor[PlainTyped]:
    shape, dtype, strides = part.typed
    return MadeTensor((shape, element_type(dtype), strides), part.shared, part.memory, part.size)


def element_type(dtype: torch.dtype) -> ElementType:
    """Without torch."""
    name = str(dtype).removeprefix("torch.")
    return ELEMENT_TYPES.get(name) or ElementType(name, dtype.itemsize)


def _typed(result: Any) -> TypedResult:
    if len(result) == 3 and isinstance(result[1], ElementType):
        shape, dtype, strides = result
        return shape, torch_dtype(dtype.name), strides
    parts: tuple[Any, ...] = tuple(None if part is None else _typed(part) for part in result)
    return parts
