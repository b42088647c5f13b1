"""Rows of a model in which tokens of one packed row meet though nothing tells their documents.

A step of packed rows equals one eager call on all of them side by side. So tokens may meet only where
positions that come with the batch say which of them belong together, and random numbers may not count rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import DeduceError
from ...ir.graph import LogicalGraph, OriginKind, Phase, Row, row_inputs
from ...ir.own_names import PACKED, PACKED_BACKWARD

ATTENTION = "_scaled_dot_product"
ALONG = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "roll", "flip", "convolution", "sort")
"""Parts of names of operators that read other tokens of a row."""
SHIFTS = (1, -1)
"""By how much a row shifted by one is longer or shorter."""


def check_tokens_apart(graphs: Sequence[LogicalGraph], tokens: Sequence[int]) -> None:
    """One DeduceError for all rows in which packed rows would not be as they are side by side.

    graphs: the model's at several lengths, `tokens` of each.
    """
    found = [
        (row, text)
        for number, row in enumerate(graphs[0].rows)
        if row.phase is Phase.FORWARD
        for text in _problems([graph.rows[number] for graph in graphs], tokens)
    ]
    if not found:
        return
    raise DeduceError(
        "tokens of packed rows meet, or count, in a way that their documents don't tell",
        at=list(dict.fromkeys(line for row, _ in found if (line := _line(graphs[0], row)))),
        details=[(row.op, text) for row, text in found[:10]],
        rule="a step of rows of any number of tokens equals one eager call on all rows side by side",
        fix="give the model position_ids that restart with each document and labels that are shifted already,"
        " and no dropout; or let the samples vary: sizes: {samples: [1, 64]}",
    )


def _problems(rows: Sequence[Row], tokens: Sequence[int]) -> Iterator[str]:
    row = rows[0]
    if row.origin.kind is OriginKind.RANDOM:
        yield "random numbers are drawn by row, not by token"
    if row.op in (PACKED, PACKED_BACKWARD):
        return
    if ATTENTION in row.op:
        yield "attention that keeps no documents apart"
    elif any(part in row.op for part in ALONG) and _dims(rows, tokens, 0):
        yield "reads other tokens of a row"
    elif len(_dims(rows, tokens, 0)) > 1:
        yield "has a number for each two tokens"
    elif any(_dims(rows, tokens, more) for more in SHIFTS):
        yield "shifts the tokens of a row"


def _line(graph: LogicalGraph, row: Row) -> str:
    """Where the user's code makes a value; of random numbers, where it first reads them."""
    readers = (other.where for other in graph.rows if row.id in row_inputs(other))
    return row.where or next(readers, "")


def _dims(rows: Sequence[Row], tokens: Sequence[int], more: int) -> tuple[int, ...]:
    """Dims that are as long as a row, and `more`, at each length."""
    shapes = [row.shape or () for row in rows]
    if len({len(shape) for shape in shapes}) != 1:
        return ()
    return tuple(
        dim
        for dim in range(len(shapes[0]))
        if all(shape[dim] == count + more for shape, count in zip(shapes, tokens, strict=True))
    )
