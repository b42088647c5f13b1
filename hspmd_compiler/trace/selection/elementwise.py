"""Functions of selected rows that compute each element by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...program.arguments import leaves
from .mask_keys import plain_name
from .selected import FILLER, SelectedRows, refused

DUNDERS = {
    "rsub": "sub",
    "rdiv": "div",
    "truediv": "div",
    "rtruediv": "div",
    "floordiv": "floor_divide",
    "rfloordiv": "floor_divide",
    "mod": "remainder",
    "radd": "add",
    "rmul": "mul",
    "rpow": "pow",
    "invert": "bitwise_not",
    "and": "bitwise_and",
    "rand": "bitwise_and",
    "or": "bitwise_or",
    "ror": "bitwise_or",
    "xor": "bitwise_xor",
    "rxor": "bitwise_xor",
}
_TYPES = "to float double half bfloat16 long int bool type type_as contiguous clone detach"
TYPES = frozenset(_TYPES.split())
"""Functions that only give the elements another type or other memory."""
_IN_PLACE = ("add", "sub", "mul", "div")
IN_PLACE = (
    {f"{name}_": name for name in _IN_PLACE} | {f"i{name}": name for name in _IN_PLACE} | {"itruediv": "div"}
)
_OF_PYTHON = """
    relu relu6 leaky_relu elu selu celu silu mish logsigmoid hardtanh hardswish hardsigmoid softsign
    tanhshrink softshrink hardshrink threshold sigmoid tanh softplus gelu
"""
OF_PYTHON = tuple(getattr(functional, name) for name in _OF_PYTHON.split())
"""Activations that PyTorch writes in Python."""
PICK_ELEMENTS = ("max", "min")
"""Of two tensors element by element; of one they are reductions."""


def is_elementwise(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether each element of the result is made of those at the same place."""
    if func in OF_PYTHON:
        return True
    name = plain_name(func)
    if name in PICK_ELEMENTS:
        return len(args) > 1 and isinstance(args[1], Tensor)
    return name in TYPES or _is_pointwise(DUNDERS.get(name, name))


@cache
def _is_pointwise(name: str) -> bool:
    """By PyTorch's own tags, where no variant is otherwise, random or in place."""
    packet = getattr(torch.ops.aten, name, None) if not name.endswith("_") else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    found = [getattr(packet, overload) for overload in packet.overloads()]  # type: ignore[no-untyped-call]
    found = [op for op in found if not op._schema.is_mutable and _of_tensors(op._schema)]
    random = any(torch.Tag.nondeterministic_seeded in op.tags for op in found)
    return bool(found) and not random and all(torch.Tag.pointwise in op.tags for op in found)


def _of_tensors(schema: torch._C.FunctionSchema) -> bool:
    """Whether a tensor of its own is made of tensors; others are for numbers, or views."""
    taken = [str(argument.type) for argument in schema.arguments]
    made = [str(found.type) for found in schema.returns if found.alias_info is None]
    return "Tensor" in taken and made == ["Tensor"] and len(schema.returns) == 1


def in_place(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SelectedRows:
    """`rows += x`, where nothing else looks at the memory of the rows."""
    rows = args[0]
    if not isinstance(rows, SelectedRows) or rows.viewed:
        raise refused(f"{plain_name(func)} of a view or of what has one", fix="write rows = rows + x")
    made = by_element(getattr(Tensor, IN_PLACE[plain_name(func)]), args, kwargs)
    if (made.content.dtype, made.content.shape) != (rows.content.dtype, rows.content.shape):
        raise refused(f"{plain_name(func)} to another type or shape")
    rows.content = made.content
    return rows


def _typed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In another type, that of other rows perhaps."""
    made = func(*map(_content, args), **{key: _content(value) for key, value in kwargs.items()})
    return args[0].selection.rows(made) if isinstance(args[0], SelectedRows) else made


def _content(value: Any) -> Any:
    return value.content if isinstance(value, SelectedRows) else value


def by_element(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function of all rows; a tensor that takes their type stays one."""
    name = plain_name(func)
    if kwargs.get("inplace") or kwargs.get("out") is not None:
        raise refused(f"{name} in place", fix="leave inplace= and out= away")
    if name in TYPES:
        return _typed(func, args, kwargs)
    met = SelectedOperands.of(name, (args, kwargs))
    made = func(*met.inner(args), **{key: met.inner(value) for key, value in kwargs.items()})
    return met.result(made)


class SelectedOperands:
    """Selected rows, all by one mask, and what else a function reads."""

    def __init__(self, name: str, rows: list[SelectedRows], one_rank: bool = True) -> None:
        self.name, self.selection = name, rows[0].selection
        self.rank = rows[0].content.dim()
        if any(other.selection.key != self.selection.key for other in rows):
            raise refused(
                f"{name} of rows of two masks",
                "rows of unlike masks have no order in common",
                "compute the mask once, and select both tensors with it",
            )
        if one_rank and any(other.content.dim() != self.rank for other in rows):
            raise refused(f"{name} of tensors with unlike numbers of dims", "one row would meet all others")

    @staticmethod
    def of(name: str, arguments: Any) -> SelectedOperands:
        """The rows among some arguments."""
        return SelectedOperands(name, rows_in(arguments))

    def inner(self, value: Any) -> Any:
        """An argument with all rows in place of selected ones."""
        if isinstance(value, SelectedRows):
            return value.content
        if isinstance(value, Tensor):
            return self._beside(value)
        if isinstance(value, (tuple, list)):
            return type(value)([self.inner(item) for item in value])
        return value

    def result(self, made: Any) -> SelectedRows:
        """What a function gave for all rows."""
        if not isinstance(made, Tensor):
            raise refused(self.name, "its result is no tensor")
        return self.selection.rows(made)

    def _beside(self, value: Tensor) -> Tensor:
        """What is the same for all rows; its gradient comes from those that count."""
        if value.dim() > self.rank or (value.dim() == self.rank and value.shape[0] != 1):
            raise refused(
                f"{self.name} of a tensor of shape {list(value.shape)} and rows",
                "its rows are not selected",
                "select both tensors with one mask",
            )
        if not value.requires_grad:
            return value
        own = self.selection.mask.view(-1, *(1 for _ in range(self.rank - 1)))
        return torch.where(own, value, FILLER)


def rows_in(value: Any) -> list[SelectedRows]:
    """All selected rows in nested arguments."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, SelectedRows)]
