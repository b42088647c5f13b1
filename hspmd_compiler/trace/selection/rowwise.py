"""Functions of selected rows along other dims, and sums over the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...ir.element_types import NARROW
from .elementwise import SelectedOperands
from .mask_keys import plain_name
from .selected import SelectedRows, refused

_ALONG = """
    softmax log_softmax softmin sum mean amax amin argmax argmin max min logsumexp std var prod any all unbind
    cumsum cumprod logcumsumexp gather flip take_along_dim
"""
DIM_AT: Mapping[str, tuple[int, object]] = {
    **dict.fromkeys(_ALONG.split(), (1, None)),
    **dict.fromkeys(("sort", "argsort", "glu"), (1, -1)),
    "topk": (2, -1),
    "norm": (2, None),
    "linalg_vector_norm": (2, None),
    "vector_norm": (2, None),
    "normalize": (2, 1),
    "cosine_similarity": (2, 1),
    "chunk": (2, 0),
    "split": (2, 0),
}
"""Where the dim stands among the arguments, and its default; None is all dims."""
REDUCED = ("sum", "mean")
PRODUCTS = ("linear", "matmul", "mm")
NORMS = ("layer_norm", "rms_norm")
LOOKUPS = ("embedding", "one_hot")


def along_dim(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of other dims than the rows; `sum` and `mean` of the rows too."""
    name = plain_name(func)
    place, default = DIM_AT[name]
    given = args[place] if len(args) > place else kwargs.get("dim", kwargs.get("dims", default))
    if name == "flip" and isinstance(given, int):
        given = args[place:]  # `flip(1, 0)`
    rows = args[0]
    if not isinstance(rows, SelectedRows):
        raise refused(name, "the rows are no first operand")
    dims = _dims(given, rows.content.dim())
    if 0 not in dims:
        return every_row(func, args, kwargs)
    if name not in REDUCED:
        raise refused(f"{name} over the rows", fix="sum or average over the rows, or work on all of them")
    if set(kwargs) - {"dim", "keepdim", "dtype"}:
        raise refused(f"{name} with {', '.join(sorted(kwargs))}")
    keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
    return over_rows(name, rows, dims, keep, kwargs.get("dtype"))


def _dims(given: Any, rank: int) -> list[int]:
    if given is None or (isinstance(given, (tuple, list)) and not given):
        return list(range(rank))
    return [dim % max(rank, 1) for dim in (given if isinstance(given, (tuple, list)) else (given,))]


def over_rows(
    name: str, rows: SelectedRows, dims: list[int], keep: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    """Sum or mean over dims with the rows among them: those that count, by how many there are."""
    values = rows.content if dtype is None else rows.content.to(dtype)
    narrow = values.dtype in NARROW
    total = rows.selection.kept(values, 0).sum(dims, keep, dtype=torch.float32 if narrow else None)
    if name == "mean":
        total = total / (rows.selection.count * prod(values.shape[dim] for dim in dims if dim))
    return total.to(values.dtype) if narrow else total


def every_row(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that computes each row of its first operand by itself; others must have its rows."""
    met = SelectedOperands.of(plain_name(func), (args, kwargs))
    if kwargs.get("out") is not None:
        raise refused(f"{plain_name(func)} with out=")
    made = func(*met.inner(args), **{key: met.inner(value) for key, value in kwargs.items()})
    if not isinstance(made, (tuple, list)):
        return met.result(made)
    parts = [met.result(part) for part in made]
    return type(made)(parts) if type(made) in (tuple, list) else type(made)(tuple(parts))


def product(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SelectedRows:
    """Rows times a matrix that is the same for all of them."""
    rows, *others = args
    name = plain_name(func)
    if not isinstance(rows, SelectedRows) or rows.content.dim() < 2:
        raise refused(f"{name} that sums over the rows")
    if any(isinstance(other, SelectedRows) for other in (*others, *kwargs.values())):
        raise refused(f"{name} of rows with rows", "each row would meet all others")
    if others and isinstance(others[0], Tensor) and others[0].dim() > 2:
        raise refused(f"{name} with a stack of matrices")
    return rows.selection.rows(func(rows.content, *others, **kwargs))


def norm(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SelectedRows:
    """A norm over the last dims."""
    rows, shape = args[0], args[1] if len(args) > 1 else kwargs["normalized_shape"]
    if not isinstance(rows, SelectedRows) or len(shape) >= rows.content.dim():
        raise refused(f"{plain_name(func)} over the rows")
    return rows.selection.rows(func(rows.content, *args[1:], **kwargs))


def lookup(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SelectedRows:
    """Rows of a table by selected numbers."""
    rows, *others = args
    if not isinstance(rows, SelectedRows) or any(isinstance(other, SelectedRows) for other in others):
        raise refused(f"{plain_name(func)} of a table of rows")
    return rows.selection.rows(func(rows.content, *others, **kwargs))


def dropout(_func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Nothing, where nothing is dropped."""
    named = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
    if named.get("training", True) and named.get("p", 0.5) != 0:
        raise refused("dropout", "its mask is drawn by place among them", "drop before you select")
    return named["input"]


def joined(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`cat` and `stack` of tensors of one mask, along another dim."""
    name = plain_name(func)
    parts = args[0]
    given = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if not all(isinstance(part, SelectedRows) for part in parts):
        raise refused(f"{name} of rows with other tensors")
    rank = parts[0].content.dim() + (name == "stack")
    if given % rank == 0:
        raise refused(f"{name} along the rows", fix="reduce each part to a sum, and add up the sums")
    return every_row(func, args, kwargs)
