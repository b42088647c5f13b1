"""What an inspection shows, as values: tables and listings that a terminal, a text or JSON can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import TypeAlias

from ..base.codec import Json
from .folded import Cell as Cell
from .folded import Levels, folded

GAP, WIDE = "  ", 100
"""Between columns, and how wide a table is before its names are broken."""


@dataclass(frozen=True, slots=True)
class Table:
    """key: name of the table for scripts. Column names are the keys of its rows there. folds: columns that
    are put together for people where there are many rows, see `folded`.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folds: Levels = ()

    def to_json(self) -> Json:
        """One object per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_text(self) -> str:
        """Aligned columns, numbers to the right; names of a wide table are broken at spaces."""
        rows = folded(self.columns, self.rows, self.folds)
        cells = [tuple(map(cell_text, row)) for row in rows]
        names: list[Sequence[str]] = [(name,) for name in self.columns]
        if sum(_widths(names, cells)) + len(GAP) * (len(names) - 1) > WIDE:
            names = [_broken(name, [row[at] for row in cells]) for at, name in enumerate(self.columns)]
        widths = _widths(names, cells)
        right = [all(_is_numeric(row[column]) for row in rows) for column in range(len(widths))]
        lines = [
            GAP.join(
                text.rjust(width) if to_right else text.ljust(width)
                for text, width, to_right in zip(row, widths, right, strict=True)
            ).rstrip()
            for row in (*zip_longest(*names, fillvalue=""), *cells)
        ]
        return "\n".join([self.title, *lines])


@dataclass(frozen=True, slots=True)
class Listing:
    """Lines that are shown as they are."""

    key: str
    title: str
    lines: tuple[str, ...]

    def to_json(self) -> Json:
        """The lines."""
        return list(self.lines)

    def to_text(self) -> str:
        """The title over the lines."""
        return "\n".join([self.title, *self.lines])


Section: TypeAlias = Table | Listing


def sections_to_json(sections: Sequence[Section]) -> Json:
    """All sections by their keys."""
    return {section.key: section.to_json() for section in sections}


def sections_to_text(sections: Sequence[Section]) -> str:
    """All sections, with an empty line between them."""
    return "\n\n".join(section.to_text() for section in sections) + "\n"


def _widths(names: Sequence[Sequence[str]], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, (*lines, *(row[at] for row in cells)))) for at, lines in enumerate(names)]


def _broken(name: str, cells: Sequence[str]) -> list[str]:
    """A name in lines no longer than what stands below it, or than its longest word."""
    return wrap(name, max(map(len, (*name.split(), *cells)), default=1)) or [""]


def cell_text(cell: Cell) -> str:
    """A cell for people: thousands grouped."""
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        return str(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.3f}"


def _is_numeric(cell: Cell) -> bool:
    return cell == "" or (isinstance(cell, (int, float)) and not isinstance(cell, bool))
