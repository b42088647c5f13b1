"""Graphs of one model at unlike sizes, joined row by row: all is the same but for whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from .graph import LogicalGraph, Ref, Row

Number = Callable[[tuple[int, ...]], int]
"""Of an integer that the graphs have in one place, where they differ."""


class NoLine(Exception):
    """What graphs say in one place, which no size explains."""


class UnlikeRow(Exception):
    """A row that is not the same in all graphs. text: what they say of it."""

    def __init__(self, row: Row, text: str) -> None:
        super().__init__(text)
        self.row, self.text = row, text


def joined_rows(graphs: Sequence[LogicalGraph], number: Number) -> list[Row]:
    """The rows of graphs that have as many, with `number` of what differs; UnlikeRow where more does.

    number: may raise NoLine.
    """
    return [_row(number, rows) for rows in zip(*(graph.rows for graph in graphs), strict=True)]


def _row(number: Number, rows: tuple[Row, ...]) -> Row:
    """The first row itself where all are the same."""
    one = rows[0]
    said = [_said(row) for row in rows]
    try:
        found = _joined(number, said)
    except NoLine as error:
        raise UnlikeRow(one, str(error)) from None
    if found is said[0]:
        return one
    op, _, shape, dtype, outs, args, *named = found
    kwargs = dict(zip(one.kwargs, named, strict=True))
    return Row(
        one.id, op, args, kwargs, shape, dtype, outs, one.layer, one.module, one.phase, one.origin, one.where
    )


def _said(row: Row) -> tuple[object, ...]:
    if not row.kwargs:
        return row.op, (), row.shape, row.dtype, row.outs, row.args
    return row.op, tuple(row.kwargs), row.shape, row.dtype, row.outs, row.args, *row.kwargs.values()


def _joined(number: Number, given: Sequence[Any]) -> Any:
    """What all say, with `number` of integers that differ; the first itself where none does."""
    one, kind = given[0], type(given[0])
    if kind is tuple or kind is list:
        return _joined_tuples(number, given)
    for each in given:
        if type(each) is not kind or not (each.id == one.id if kind is Ref else _same(kind, one, each)):
            if kind is int and [type(other) for other in given] == [int] * len(given):
                return number(tuple(given))
            raise _no_line(given)
    return one


def _joined_tuples(number: Number, given: Sequence[Any]) -> Any:
    one = given[0]
    if not all(isinstance(each, (tuple, list)) and len(each) == len(one) for each in given):
        raise _no_line(given)
    parts = [_joined(number, items) for items in zip(*given, strict=True)]
    return one if all(map(is_, parts, one)) else tuple(parts)


def _same(kind: type, one: object, other: object) -> bool:
    """As texts where equal numbers may be unlike, as 0.0 and -0.0, or like ones not equal, as nan."""
    return one is other or (repr(one) == repr(other) if kind is float else one == other)


def _no_line(given: Sequence[object]) -> NoLine:
    return NoLine(f"{', '.join(map(_text, given[:-1]))} and {_text(given[-1])}")


def _text(value: object) -> str:
    return f"%{value.id}" if isinstance(value, Ref) else str(value)
