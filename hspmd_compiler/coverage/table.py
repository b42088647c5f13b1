"""The matrix as people read it: a table for README, and sections for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ..base.by_key import by_key
from ..pages.sections import Listing, Section, Table
from .matrix import MatrixCell, Outcome
from .strategies import Column

MARKS = {Outcome.EXACT: "exact", Outcome.FAILED: "FAILED", Outcome.NOT_RUN: "not run"}


def markdown(cells: Sequence[MatrixCell]) -> str:
    """The table of README: a row per model, a column per strategy, then why cells are not exact."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    rows = [["model", *columns], ["---", *("---" for _ in columns)], *_rows(cells)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    notes = [f"- {who}: {why.splitlines()[0]}" for who, why in _reasons(cells)]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def sections(cells: Sequence[MatrixCell], columns: Sequence[Column]) -> list[Section]:
    """Table, meaning of the columns, worst differences, and what failed or was not run, in full."""
    heads = tuple(dict.fromkeys(cell.column for cell in cells))
    meanings = tuple((column.name, column.meaning) for column in columns)
    parts: list[Section] = [
        Table("matrix", "models and strategies", ("model", *heads), tuple(map(tuple, _rows(cells)))),
        Table("strategies", "strategies", ("strategy", "meaning"), meanings),
        Listing("summary", "summary", (summary(cells),)),
    ]
    lines = [line for who, why in _reasons(cells) for line in f"{who}: {why}".splitlines()]
    return [*parts, Listing("reasons", "not exact", tuple(lines))] if lines else parts


def summary(cells: Sequence[MatrixCell]) -> str:
    """How many cells are exact, and how far the worst is off."""
    exact = [cell for cell in cells if cell.outcome is Outcome.EXACT]
    worst = max((max(cell.errors) for cell in exact if cell.errors), default=0.0)
    return f"{len(exact)} of {len(cells)} cells exact; largest relative difference {worst:.2g}"


def _rows(cells: Sequence[MatrixCell]) -> list[list[str]]:
    marks = by_key((cell.model, MARKS[cell.outcome]) for cell in cells)
    return [[name, *of] for name, of in marks.items()]


def _reasons(cells: Sequence[MatrixCell]) -> list[tuple[str, str]]:
    """Which cells of a model are not exact, and why; equal reasons are told once."""
    columns = by_key(((cell.model, cell.why), cell.column) for cell in cells if cell.why)
    return [(f"{model} ({', '.join(names)})", why) for (model, why), names in columns.items()]
