"""Where the rows of a result lie, if an operator treats each row of its operands alone."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.graph import Ref, Row, refs_of
from ...ir.own_names import ANCHORS, OF_USERS
from ...rules.in_code.pointwise_operators import LINEAR, PRODUCTS, SETTLING, SUMS
from ...rules.rules import integer, items

Shape = tuple[int, ...]

SAME = ("aten.clone.default", "aten.detach.default", "aten.alias.default", "aten._to_copy.default")
ELEMENTWISE = frozenset((*SETTLING, *SUMS, *PRODUCTS, *LINEAR, *SAME, *OF_USERS, *ANCHORS))
ALONG: Mapping[str, tuple[int, int | None]] = {
    **dict.fromkeys(("aten.split.Tensor", "aten.split_with_sizes.default"), (2, 0)),
    **dict.fromkeys(("aten._softmax.default", "aten._log_softmax.default", "aten.slice.Tensor"), (1, 0)),
    **dict.fromkeys(("aten._softmax_backward_data.default", "aten.slice_backward.default"), (2, None)),
    "aten.cat.default": (1, 0),
}
"""What works along one dim and keeps all dims: the place of the argument that names it, and its default."""
OVER = ("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default")
VIEWS = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")


class NotAlone(Exception):
    """Rows may meet in this operator, or it is not known that they don't."""


def rows_of_result(row: Row, dims: Mapping[int, int], shapes: Mapping[int, Shape]) -> int | None:
    """The dim of the rows in the result, or in each of several; None where all rows are added up.

    dims: of the operands that have such rows. shapes: of all operands. Raises NotAlone.
    """
    if row.op in ELEMENTWISE:
        return _elementwise(row, dims, shapes)
    if row.op in ALONG:
        return _along(row, dims)
    if row.op in OVER:
        return _over(row, dims, shapes)
    if row.op == "aten.mm.default":
        return _product(row, dims)
    return _moved(row, dims, shapes)


def _elementwise(row: Row, dims: Mapping[int, int], shapes: Mapping[int, Shape]) -> int:
    """The same dim of all operands with rows, counted from the last; no other operand is as long there."""
    behind = {len(shapes[each]) - dim for each, dim in dims.items()}
    if len(behind) != 1 or row.shape is None:
        raise NotAlone
    (place,) = behind
    for each in {ref.id for ref in refs_of((row.args, row.kwargs))} - dims.keys():
        if len(shapes[each]) >= place and shapes[each][-place] != 1:
            raise NotAlone
    return len(row.shape) - place


def _only(row: Row, dims: Mapping[int, int]) -> tuple[int, int]:
    """The operand of an operator that takes one, and its dim of rows."""
    first = row.args[0]
    if not isinstance(first, Ref) or first.id not in dims:
        raise NotAlone
    return first.id, dims[first.id]


def _along(row: Row, dims: Mapping[int, int]) -> int:
    place, default = ALONG[row.op]
    found = set(dims.values())
    if len(found) != 1 or any(ref.id not in dims for ref in refs_of(row.args)):
        raise NotAlone
    (dim,) = found
    given = row.args[place] if len(row.args) > place else default
    meta = row.outs[0] if row.outs else None
    rank = len(row.shape if meta is None else meta[0])  # type: ignore[arg-type]
    if given is None or integer(given) % rank == dim:
        raise NotAlone
    return dim


def _over(row: Row, dims: Mapping[int, int], shapes: Mapping[int, Shape]) -> int | None:
    """A sum over the rows takes them in any order."""
    operand, dim = _only(row, dims)
    rank = len(shapes[operand])
    over = [integer(each) % rank for each in items(row.args[1] if len(row.args) > 1 else ())] or range(rank)
    if dim in over:
        return None
    keeps = len(row.args) > 2 and bool(row.args[2])
    return dim if keeps else dim - sum(each < dim for each in over)


def _product(row: Row, dims: Mapping[int, int]) -> int | None:
    """Rows of the left one, or columns of the right one; or products of rows, added up."""
    found = tuple(dims.get(ref.id) for ref in refs_of(row.args))
    if found in ((0, None), (None, 1)):
        return 0 if found[0] == 0 else 1
    if found == (1, 0):
        return None
    raise NotAlone


def _moved(row: Row, dims: Mapping[int, int], shapes: Mapping[int, Shape]) -> int:
    """Operators that move dims."""
    operand, dim = _only(row, dims)
    shape, rank = shapes[operand], len(shapes[operand])
    if row.op == "aten.unsqueeze.default":
        return dim + (integer(row.args[1]) % (rank + 1) <= dim)
    if row.op == "aten.squeeze.dim" and integer(row.args[1]) % rank != dim:
        return dim - (integer(row.args[1]) % rank < dim)
    if row.op in ("aten.t.default", "aten.transpose.int"):
        pair = [integer(each) % rank for each in row.args[1:]] or [0, 1]
        return pair[1 - pair.index(dim)] if dim in pair and rank > 1 else dim
    if row.op == "aten.permute.default":
        return [integer(each) % rank for each in items(row.args[1])].index(dim)
    if row.op == "aten.expand.default" and row.shape is not None:
        return dim + len(row.shape) - rank
    if row.op in VIEWS and dim == 0 and row.shape and row.shape[0] == shape[0]:
        return 0
    raise NotAlone
