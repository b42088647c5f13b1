"""The table's lines of cuts and joins of one dim: letters side by side, whose pieces keep their holders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.graph import Row
from ..call_rule import argument_of
from ..cuts import dim_argument
from ..in_code.slice_rules import bounds, cat, select, select_backward, slice_, slice_backward, split
from ..op_apply import put
from ..op_rule import Dims, Linear, OpRule, Shapes, chosen, lengths_of, numbered
from ..rules import integer, items

PART, WHOLE, NEW = "part", "whole", "new"
"""Letters: of what a slice keeps, of a dim that is picked from, and of a dim that replaces it."""


def _with(dims: Dims, place: int, *names: str) -> Dims:
    """A dim's letter replaced by another, or by none."""
    return (*dims[:place], *((name,) for name in names), *dims[place + 1 :])


def _among(low: int, size: int, high: int) -> str:
    """A part of a dim of `size` elements."""
    around = (str(low) if low else "", PART, str(size - high) if size > high else "")
    return "|".join(filter(None, around))


def _picked(row: Row, dims: Dims, place: int, results: Sequence[Dims], why: str) -> OpRule:
    """A dim of the operand is whole, and so is what comes in its place."""
    return chosen(row, [_with(dims, place, WHOLE)], results, whole=(WHOLE,), why=why)


def _sliced(row: Row, shapes: Shapes) -> OpRule:
    source = shapes[0] or ()
    dims, place = numbered(len(source)), dim_argument(row, len(source))
    low, high, step = bounds(row, source[place])
    if step != 1:
        new = _with(dims, place, NEW)
        return _picked(row, dims, place, [new], "every n-th element of it is picked")
    read, written = _with(dims, place, _among(low, source[place], high)), _with(dims, place, PART)
    return chosen(row, [read], [written], lengths=((PART, high - low),))


def _split(row: Row, shapes: Shapes) -> OpRule:
    source = shapes[0] or ()
    dims, place = numbered(len(source)), dim_argument(row, len(source))
    parts = numbered(len(row.outs or ()), PART)
    lengths = [meta[0][place] if meta is not None else 0 for meta in row.outs or ()]
    read = _with(dims, place, "|".join(name for (name,) in parts))
    written = [_with(dims, place, name) for (name,) in parts]
    return chosen(row, [read], written, lengths=lengths_of(parts, lengths))


def _selected(row: Row, shapes: Shapes) -> OpRule:
    dims = numbered(len(shapes[0] or ()))
    place = dim_argument(row, len(dims))
    count = 1 if row.outs is None else len(row.outs)
    rest = _with(dims, place)
    return _picked(row, dims, place, [rest] * count, "single elements of it are picked")


def _select_gradient(row: Row, shapes: Shapes) -> OpRule:
    dims = numbered(len(row.shape or ()))
    place = dim_argument(row, len(dims))
    return chosen(row, [_with(dims, place)], [_with(dims, place, NEW)])


def _slice_gradient(row: Row, shapes: Shapes) -> OpRule:
    target = row.shape or ()
    dims, place = numbered(len(target)), dim_argument(row, len(target))
    low, high, step = bounds(row, target[place])
    if step != 1:
        return _picked(row, dims, place, [_with(dims, place, NEW)], "")
    return chosen(row, [_with(dims, place, PART)], [_with(dims, place, _among(low, target[place], high))])


def _joined(row: Row, shapes: Shapes) -> OpRule:
    """Empty vectors, which torch takes beside parts of any shape, have a letter that nothing has."""
    rank = len(row.shape or ())
    dims, place = numbered(rank), dim_argument(row, rank)
    parts = numbered(len(shapes), PART)
    read = [
        _with(dims, place, name) if len(shape or ()) == rank else ((WHOLE,),)
        for (name,), shape in zip(parts, shapes, strict=True)
    ]
    joined = "|".join(name for (name,), dims_of in zip(parts, read, strict=True) if dims_of != ((WHOLE,),))
    return chosen(row, read, [_with(dims, place, joined)], whole=(WHOLE,), linear=Linear.BATCH)


def _padded(row: Row, shapes: Shapes) -> OpRule:
    """Dims with something around them are whole; numbers but zero are no sum."""
    read = written = numbered(len(shapes[0] or ()))
    amounts = [integer(amount) for amount in items(row.args[1])]
    for place in range(len(read)):
        if any(amounts[2 * place : 2 * place + 2]):
            dim = len(read) - 1 - place
            written = _with(written, dim, f"{NEW}{dim}")
    whole = [name for pair in zip(read, written, strict=True) if pair[0] != pair[1] for (name,) in pair]
    linear = Linear.NO if argument_of(row, "value") else Linear.BATCH
    return chosen(row, [read], [written], whole=whole, linear=linear, why="it is padded")


PARTS = "part0|part1|... -> part0, part1, ..."
PICKED = "a dim from which elements are picked is whole"
CUTS_AND_JOINS = {
    "aten.slice.Tensor": (_sliced, slice_, "before|part|behind -> part"),
    "aten.split.Tensor": (_split, split, PARTS),
    "aten.split_with_sizes.default": (_split, split, PARTS),
    "aten.chunk.default": (_split, split, PARTS),
    "aten.unbind.int": (_selected, split, PICKED),
    "aten.select.int": (_selected, select, PICKED),
    "aten.select_backward.default": (_select_gradient, select_backward, "... -> ... new, whole='new'"),
    "aten.slice_backward.default": (_slice_gradient, slice_backward, "part -> before|part|behind"),
    "aten.cat.default": (_joined, cat, "part0, part1, ... -> part0|part1|..."),
    "aten.constant_pad_nd.default": (_padded, None, "dim -> new, whole='dim new'"),
}
for _op, (_letters, _code, _says) in CUTS_AND_JOINS.items():
    _more = dict[str, Any](code=_code, empty_ok=_code is None, linear=Linear.ONE, flops=0, says=_says)
    put(OpRule(_op, by_shapes=_letters, **_more))
