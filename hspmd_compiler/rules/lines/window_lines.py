"""The table's lines of windows along a dim, and of diagonals: the dims they read across are whole."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Row
from ..cuts import dim_argument
from ..op_apply import put
from ..op_rule import Dims, Linear, OpRule, Shapes, chosen, numbered

NEW, INSIDE = "new", "inside"
"""Letters: of the number of windows in a dim's place, and of the last dim, for elements of one of them."""


def _windows(row: Row, rank: int, argument: str) -> tuple[Dims, Dims, list[str]]:
    """Letters before and behind, and those that are whole."""
    dims, place = numbered(rank), dim_argument(row, rank, argument)
    counted = (*dims[:place], (NEW,), *dims[place + 1 :]) if dims else ()
    return dims, (*counted, (INSIDE,)), [NEW, INSIDE, f"d{place}"]


def _unfolded(row: Row, shapes: Shapes) -> OpRule:
    dims, windows, whole = _windows(row, len(shapes[0] or ()), "dimension")
    return chosen(row, [dims], [windows], whole=whole)


def _folded(row: Row, _shapes: Shapes) -> OpRule:
    dims, windows, whole = _windows(row, len(row.shape or ()), "dim")
    return chosen(row, [windows], [dims], whole=whole)


def _across(row: Row, rank: int) -> tuple[Dims, Dims, list[str]]:
    """Letters of a tensor and of a diagonal of it, and those that are whole."""
    dims, places = numbered(rank), {dim_argument(row, rank, name) for name in ("dim1", "dim2")}
    others = tuple(names for place, names in enumerate(dims) if place not in places)
    return dims, (*others, (INSIDE,)), [INSIDE, *(f"d{place}" for place in places)]


def _diagonal(row: Row, shapes: Shapes) -> OpRule:
    dims, line, whole = _across(row, len(shapes[0] or ()))
    return chosen(row, [dims], [line], whole=whole)


def _diagonal_gradient(row: Row, _shapes: Shapes) -> OpRule:
    dims, line, whole = _across(row, len(row.shape or ()))
    return chosen(row, [line], [dims], whole=whole)


def _diagonal_scatter(row: Row, _shapes: Shapes) -> OpRule:
    dims, line, whole = _across(row, len(row.shape or ()))
    return chosen(row, [dims, line], [dims], whole=whole)


_MOVES = dict[str, Any](linear=Linear.BATCH, empty_ok=True, flops=0)
for _op, _letters, _more in (
    ("unfold.default", _unfolded, _MOVES | {"says": "dim -> windows inside"}),
    ("unfold_backward.default", _folded, _MOVES | {"shape": "input_sizes", "says": "windows inside -> dim"}),
    ("diagonal.default", _diagonal, _MOVES | {"says": "dim1 dim2 -> inside"}),
    (
        "diagonal_backward.default",
        _diagonal_gradient,
        _MOVES | {"shape": "input_sizes", "says": "inside -> dim1 dim2"},
    ),
    (
        "diagonal_scatter.default",
        _diagonal_scatter,
        _MOVES | {"linear": Linear.TOGETHER, "says": "dim1 dim2, inside -> dim1 dim2"},
    ),
):
    put(OpRule(f"aten.{_op}", by_shapes=_letters, **_more))
