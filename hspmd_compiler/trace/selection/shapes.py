"""Functions that give selected rows another shape, and those that ask for it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from .mask_keys import plain_name
from .selected import SelectedRows, elements, refused, sizes

ASKED = frozenset(
    """
    dim ndimension is_floating_point is_complex element_size get_device is_contiguous is_signed
    get ndim get dtype get device get layout get is_cuda get requires_grad get itemsize get is_sparse
    get is_meta get is_cpu get is_leaf get names get is_nested get is_quantized get is_mps get is_mkldnn
    """.replace("get ", "get_").split()
)
"""What selected rows answer as all rows do."""
VIEWS = ("view", "reshape")
AROUND = ("transpose", "swapaxes", "movedim", "permute", "t", "get T", "get mT")
GIVE_VIEWS = (*VIEWS, *AROUND, "flatten", "ravel", "squeeze", "unsqueeze", "getitem")
"""Functions whose result may look at the memory of the rows."""


def asked(name: str, rows: SelectedRows, args: tuple[Any, ...]) -> Any:
    """An attribute of the shape, or NotImplemented."""
    match name:
        case "get shape":
            return sizes(rows)
        case "size" if args:
            return sizes(rows)[args[0]]
        case "size":
            return sizes(rows)
        case "numel" | "nelement":
            return elements(rows)
        case "hash":
            return id(rows)
        case "repr" | "format" | "str":
            return f"<rows selected by a mask, {list(rows.content.shape[1:])} each>"
        case "len":
            raise refused("len()", fix="divide by mask.sum(), or by rows.shape[0], which is a tensor here")
    return NotImplemented


def reshaped(rows: SelectedRows, args: tuple[Any, ...]) -> SelectedRows:
    """`view` and `reshape`: rows stay rows, or fall apart into smaller ones."""
    shape = list(args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args)
    if len(args) == 1 and isinstance(args[0], torch.dtype):
        raise refused("a view as another type")
    if not shape or not (shape[0] is rows.selection.count or _is_rest(shape[0])):
        raise refused("a shape that does not begin with the rows", fix="begin it with -1")
    per_row, rest = prod(rows.content.shape[1:]), shape[1:]
    if any(isinstance(size, Tensor) for size in rest):
        raise refused("a shape with the number of rows behind its first place", fix="begin it with -1")
    if rest.count(-1) + (not isinstance(shape[0], Tensor)) > 1:
        raise refused("a shape with two unknown sizes")
    if -1 in rest:
        rest[rest.index(-1)] = per_row // max(1, -prod(rest))
    if prod(rest) == 0 or per_row % prod(rest):
        raise refused("a shape in which rows meet")
    return _apart(rows, tuple(rest), per_row // prod(rest))


def _is_rest(size: Any) -> bool:
    return isinstance(size, int) and size == -1


def _apart(rows: SelectedRows, rest: tuple[int, ...], times: int) -> SelectedRows:
    columns = rows.columns if not rest and times == 1 else None
    return SelectedRows.of(rows.content.reshape(-1, *rest), rows.selection.repeated(times), columns)


def flattened(rows: SelectedRows, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SelectedRows:
    """`flatten` of some dims."""
    rank = rows.content.dim()
    start, end = (*args, *(None, None))[:2]
    start = (kwargs.get("start_dim", 0) if start is None else start) % rank
    end = (kwargs.get("end_dim", -1) if end is None else end) % rank
    if start > 0:
        return SelectedRows.of(rows.content.flatten(start, end), rows.selection)
    merged = prod(rows.content.shape[1 : end + 1])
    return _apart(rows, tuple(rows.content.shape[end + 1 :]), merged)


def around(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SelectedRows:
    """Dims in another order, the rows still first."""
    rows: SelectedRows = args[0]
    order = torch.empty([place + 2 for place in range(rows.content.dim())], device="meta")
    if tuple(func(order, *args[1:], **kwargs).shape)[:1] != (2,):
        raise refused(f"{plain_name(func).removeprefix('get ')} of the rows' dim")
    return SelectedRows.of(func(rows.content, *args[1:], **kwargs), rows.selection)


def squeezed(rows: SelectedRows, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SelectedRows:
    """Dims of length 1 gone, all or those named."""
    given = args[0] if args else kwargs.get("dim")
    rank = rows.content.dim()
    named = range(1, rank) if given is None else given if isinstance(given, (tuple, list)) else (given,)
    dims = {dim % rank for dim in named}
    if 0 in dims:
        raise refused("squeeze of the rows' dim")
    kept = [size for dim, size in enumerate(rows.content.shape) if dim not in dims or size != 1]
    return _apart(rows, tuple(kept[1:]), 1)


def unsqueezed(rows: SelectedRows, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SelectedRows:
    """A dim of length 1 behind the rows."""
    dim = (args[0] if args else kwargs["dim"]) % (rows.content.dim() + 1)
    if dim == 0:
        raise refused("a dim before the rows")
    return SelectedRows.of(rows.content.unsqueeze(dim), rows.selection)


def picked(rows: SelectedRows, index: Any) -> SelectedRows:
    """`rows[:, ...]` by numbers and slices, and `rows[mask of them]`."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if len(parts) == 1 and isinstance(parts[0], SelectedRows):
        return _again(rows, parts[0])
    if any(part is not None and not isinstance(part, (int, slice, type(...))) for part in parts):
        raise refused("an index of tensors", fix="gather along another dim, or keep all rows")
    if parts and parts[0] is ... and len([p for p in parts if p is not None]) <= rows.content.dim():
        pass
    elif not parts or parts[0] != slice(None):
        raise refused("an index of the rows' dim", fix="begin the index with a colon")
    columns = rows.columns
    if columns is not None and len(parts) == 2 and isinstance(parts[1], int):
        columns = (columns[parts[1]],)
    made = rows.content[tuple(parts)]
    return SelectedRows.of(made, rows.selection, columns if made.dim() == 1 else None)


def _again(rows: SelectedRows, by: SelectedRows) -> SelectedRows:
    """Rows of rows: both masks hold."""
    if by.content.dtype is not torch.bool or by.content.dim() != 1:
        raise refused("an index of selected numbers")
    if by.selection.key != rows.selection.key:
        raise refused("a mask of other rows")
    selection = type(rows.selection)(
        by.content, rows.selection.shape, ("again", rows.selection.key, id(by.content))
    )
    flat = tuple(by.content.shape)
    selection.shape = flat
    return selection.rows(rows.content)
