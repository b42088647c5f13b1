"""Operators that pick, place or compare along some dims, and sums over all: what they say about dims."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.constant_rules import TRIANGLES
from ..graph.ir import Ref, Row, refs_of
from ..graph.reduction_rules import ALONG_DIMS, ELEMENT_LOSSES, OVER_ALL, dims_along
from ..graph.scatter_rules import SCATTERS
from .dim_flow import DimFlow, Dims, Found, Rule
from .dim_layout_rules import argument, dim_argument


def along_dims(flow: DimFlow, row: Row) -> Found:
    """The dims it works along are whole; the others are parallel."""
    dims = flow.of(row.args[0])
    along = dims_along(row, len(dims))
    flow.mark_whole([dims[dim] for dim in sorted(along) if dim < len(dims)], f"{row.op} is over it")
    if row.outs is None:
        return _results(flow, dims, along, row.shape or ())
    return [_results(flow, dims, along, out[0] if out else ()) for out in row.outs]


def _results(flow: DimFlow, dims: Dims, along: set[int], shape: Sequence[int]) -> Dims:
    if len(shape) != len(dims):
        return tuple(term for dim, term in enumerate(dims) if dim not in along)
    return tuple(
        term if flow.terms.sizes[term] == size else flow.terms.free(size)
        for term, size in zip(dims, shape, strict=True)
    )


def gather(flow: DimFlow, row: Row) -> Found:
    """Elements of one dim; the result is shaped like the index."""
    table = flow.of(row.args[0])
    dim = dim_argument(row, 1, len(table))
    return _beside(flow, row, [flow.of(row.args[2]), table], {dim})


def scatter(flow: DimFlow, row: Row) -> Found:
    """Elements put into one dim of the first operand."""
    target = flow.of(row.args[0])
    dim = dim_argument(row, 1, len(target))
    others = [flow.of(item) for item in (argument(row, 2), argument(row, 3)) if isinstance(item, Ref)]
    return _beside(flow, row, [target, *others], {dim})


def replaced(flow: DimFlow, row: Row) -> Found:
    """One element or a stretch of one dim replaced by the second operand."""
    target, source = (flow.of(operand) for operand in row.args[:2])
    dim = dim_argument(row, 2, len(target))
    if len(source) < len(target):
        source = (*source[:dim], flow.terms.free(1), *source[dim:])
    return _beside(flow, row, [target, source], {dim})


def _beside(flow: DimFlow, row: Row, lists: Sequence[Dims], along: set[int]) -> Dims:
    """The first operand's dims, which are the others' too, but where elements move or are missing."""
    found = list(lists[0])
    for dims in lists[1:]:
        for place, term in enumerate(dims):
            if place in along or flow.terms.sizes[term] != flow.terms.sizes[found[place]]:
                flow.mark_whole((term, found[place]), f"{row.op} is over it")
            else:
                found[place] = flow.terms.unify(found[place], term)
    return tuple(found)


def element_loss(flow: DimFlow, row: Row) -> Found:
    """A sum over elements of operands that have the same dims."""
    operands = [flow.dims[ref.id] for ref in refs_of(row.args) if ref.id in flow.dims]
    shape = max((flow.row(ref).shape or () for ref in refs_of(row.args)), key=len)
    met = flow.broadcast(operands, shape)
    return met if row.shape == shape else None


def triangle(flow: DimFlow, row: Row) -> Found:
    """A triangle of the last two dims."""
    dims = flow.of(row.args[0])
    flow.mark_whole(dims[-2:], f"{row.op} is over it")
    return dims


def unfold(flow: DimFlow, row: Row) -> Found:
    """Windows of a dim: their number, and behind all dims their elements."""
    dims, shape = list(flow.of(row.args[0])), row.shape or ()
    dim = dim_argument(row, 1, len(dims))
    flow.mark_whole(dims[dim : dim + 1], f"{row.op} is over it")
    dims[dim : dim + 1] = [flow.terms.free(shape[dim])] if dims else []
    return (*dims, flow.terms.free(shape[-1]))


def diagonal(flow: DimFlow, row: Row) -> Found:
    """A diagonal across two dims, behind the others."""
    dims = flow.of(row.args[0])
    across = {dim_argument(row, 2, len(dims), 0), dim_argument(row, 3, len(dims), 1)}
    flow.mark_whole([dims[dim] for dim in across], f"{row.op} is over it")
    others = (term for dim, term in enumerate(dims) if dim not in across)
    return (*others, flow.terms.free((row.shape or ())[-1]))


ALONG_RULES: dict[str, Rule] = {
    **dict.fromkeys((*ALONG_DIMS, *OVER_ALL), along_dims),
    **dict.fromkeys(SCATTERS, scatter),
    **dict.fromkeys(TRIANGLES, triangle),
    **dict.fromkeys(ELEMENT_LOSSES, element_loss),
    "aten.gather.default": gather,
    "aten.unfold.default": unfold,
    "aten.diagonal.default": diagonal,
    "aten.select_scatter.default": replaced,
    "aten.slice_scatter.default": replaced,
}
