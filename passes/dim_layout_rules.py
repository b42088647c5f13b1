"""Operators that only rearrange elements: what they say about dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.ir import Ref, Row
from .dim_flow import DimFlow, Dims, Found, Rule


def argument(row: Row, place: int, default: Any = None) -> Any:
    """A positional argument, or what the operator assumes without it."""
    return row.args[place] if len(row.args) > place else default


def dim_argument(row: Row, place: int, rank: int, default: int = 0) -> int:
    """A dim argument, counted from the front."""
    return int(argument(row, place, default)) % max(rank, 1)


def dims_argument(row: Row, place: int, rank: int) -> set[int]:
    """An argument that is one dim or several, counted from the front; all dims without it."""
    value = argument(row, place)
    if value is None or value == () or value == []:
        return set(range(rank))
    return {dim % max(rank, 1) for dim in ([value] if isinstance(value, int) else value)}


def view(flow: DimFlow, row: Row) -> Found:
    """The same elements in other dims."""
    dims, shape = flow.of(row.args[0]), row.shape or ()
    if 0 in shape:
        return None
    found = flow.terms.regroup(dims, shape)
    if found is None:
        flow.mark_whole(dims, "a view regroups it across its parts")
    return found


def unsqueeze(flow: DimFlow, row: Row) -> Found:
    """A new dim of length 1."""
    dims = list(flow.of(row.args[0]))
    dims.insert(dim_argument(row, 1, len(dims) + 1), flow.terms.free(1))
    return tuple(dims)


def squeeze(flow: DimFlow, row: Row) -> Found:
    """Dims of length 1 removed."""
    dims = flow.of(row.args[0])
    named = dims_argument(row, 1, len(dims))
    return tuple(term for dim, term in enumerate(dims) if dim not in named or flow.terms.sizes[term] != 1)


def expand(flow: DimFlow, row: Row) -> Found:
    """Copies along dims of length 1 and new dims."""
    return flow.broadcast([flow.of(row.args[0])], row.shape or ())


def repeat(flow: DimFlow, row: Row) -> Found:
    """Copies after each other: the copies are the outer factor."""
    counts: Sequence[int] = argument(row, 1)
    dims = flow.of(row.args[0])
    dims = (*flow.free((1,) * (len(counts) - len(dims))), *dims)
    return tuple(flow.terms.product((flow.terms.free(n), term)) for n, term in zip(counts, dims, strict=True))


def cut(flow: DimFlow, row: Row) -> Found:
    """`slice`: a range of one dim."""
    dims = list(flow.of(row.args[0]))
    dim = dim_argument(row, 1, len(dims))
    size, step = flow.terms.sizes[dims[dim]], argument(row, 4, 1)
    if step != 1:
        flow.terms.mark_whole(dims[dim], "every n-th element of it is picked")
        dims[dim] = flow.terms.free((row.shape or ())[dim])
        return tuple(dims)
    low, high, _ = slice(argument(row, 2), argument(row, 3)).indices(size)
    dims[dim] = flow.terms.cut(dims[dim], low, high)
    return tuple(dims)


def split(flow: DimFlow, row: Row) -> Found:
    """One dim cut into ranges."""
    dims = flow.of(row.args[0])
    dim = dim_argument(row, 2, len(dims))
    found, low = [], 0
    for out in row.outs or ():
        high = low + (out[0][dim] if out else 0)
        found.append((*dims[:dim], flow.terms.cut(dims[dim], low, high), *dims[dim + 1 :]))
        low = high
    return found


def select(flow: DimFlow, row: Row) -> Found:
    """One element of a dim."""
    dims = flow.of(row.args[0])
    return _without(flow, dims, dim_argument(row, 1, len(dims)))


def unbind(flow: DimFlow, row: Row) -> Found:
    """Every element of a dim on its own."""
    dims = flow.of(row.args[0])
    rest = _without(flow, dims, dim_argument(row, 1, len(dims)))
    return [rest for _ in row.outs or ()]


def _without(flow: DimFlow, dims: Dims, dim: int) -> Dims:
    flow.terms.mark_whole(dims[dim], "single elements of it are picked")
    return (*dims[:dim], *dims[dim + 1 :])


def cat(flow: DimFlow, row: Row) -> Found:
    """Operands side by side in one dim."""
    parts = [flow.of(part) for part in _tensors(argument(row, 0))]
    parts = [dims for dims in parts if len(dims) == len(row.shape or ())]
    dim = dim_argument(row, 1, len(parts[0]))
    around = flow.unify_all([(*dims[:dim], *dims[dim + 1 :]) for dims in parts])
    return (*around[:dim], flow.terms.concat([dims[dim] for dims in parts]), *around[dim:])


def _tensors(value: Any) -> list[Ref]:
    return [item for item in value if isinstance(item, Ref)]


def pad(flow: DimFlow, row: Row) -> Found:
    """Constants around some dims, counted from the last."""
    dims, amounts = list(flow.of(row.args[0])), list(argument(row, 1))
    for place in range(len(amounts) // 2):
        if any(amounts[2 * place : 2 * place + 2]):
            dim = len(dims) - 1 - place
            flow.terms.mark_whole(dims[dim], "it is padded")
            dims[dim] = flow.terms.free((row.shape or ())[dim])
    return tuple(dims)


def getitem(flow: DimFlow, row: Row) -> Found:
    """One output of an operator with several."""
    outs = flow.outs.get(flow.row(row.args[0]).id)
    return outs[int(argument(row, 1))] if outs else None


LAYOUT_RULES: dict[str, Rule] = {
    "getitem": getitem,
    "aten.view.default": view,
    "aten._unsafe_view.default": view,
    "aten.reshape.default": view,
    "aten.unsqueeze.default": unsqueeze,
    "aten.squeeze.default": squeeze,
    "aten.squeeze.dim": squeeze,
    "aten.squeeze.dims": squeeze,
    "aten.expand.default": expand,
    "aten.repeat.default": repeat,
    "aten.slice.Tensor": cut,
    "aten.split.Tensor": split,
    "aten.split_with_sizes.default": split,
    "aten.chunk.default": split,
    "aten.select.int": select,
    "aten.unbind.int": unbind,
    "aten.cat.default": cat,
    "aten.constant_pad_nd.default": pad,
}
