"""A cluster as a drawing: a box per kind of node, its figures and its links as tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..cluster.overview import NodeGroup, Overview, link_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

MATRIX = 6  # kinds of nodes that fit beside each other
WIDTH = 110  # columns where there is no terminal


def draw(name: str, seen: Overview) -> None:
    """Draws on standard output. name: the file's."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    with console.capture() as capture:
        _draw_on(console, name, seen)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _draw_on(console: Console, name: str, seen: Overview) -> None:
    from rich.columns import Columns

    console.print(f"cluster {name}: {seen.title}", markup=False)
    console.print()
    console.print(Columns([_box(group) for group in seen.groups]))
    console.print(_figure_table(seen))
    if any(link is not None for row in seen.matrix for link in row):
        console.print(_link_matrix(seen) if len(seen.groups) <= MATRIX else _link_list(seen))
    for item in seen.links:
        console.print(f"{' and '.join(item.between)}: {link_text(item.link)}", markup=False)
    if seen.notes:
        console.print()
    for note in seen.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


def _box(group: NodeGroup) -> Panel:
    from rich.panel import Panel
    from rich.text import Text

    count = len(group.nodes)
    title = f"{count} nodes, {group.title}" if count > 1 else group.title
    return Panel(Text("\n".join(group.lines())), title=Text(title), expand=False)


def _figure_table(seen: Overview) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table("device", "figure", "value", "status", "from", box=SIMPLE_HEAD, pad_edge=False)
    for kind, figures in seen.figures:
        for index, figure in enumerate(figures):
            cells = (
                "" if index else kind,
                figure.name,
                figure.text,
                "" if figure.status is None else figure.status.value,
                figure.note,
            )
            table.add_row(*map(Text, cells), end_section=index == len(figures) - 1)
    return table


def _link_matrix(seen: Overview) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table("between nodes", box=SIMPLE_HEAD, pad_edge=False)
    for group in seen.groups:
        table.add_column(Text(group.title))
    for group, links in zip(seen.groups, seen.matrix, strict=True):
        table.add_row(Text(group.title), *(Text("" if link is None else link_text(link)) for link in links))
    return table


def _link_list(seen: Overview) -> Table:
    """Each link once, with how many pairs of nodes that are alike have it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    pairs: dict[str, list[str]] = {}
    for low, row in enumerate(seen.groups):
        for high, column in enumerate(seen.groups[low:], low):
            if seen.matrix[low][high] is not None:
                text = link_text(seen.matrix[low][high])
                pairs.setdefault(text, []).append(f"{row.title} and {column.title}")
    table = Table("link", "between", box=SIMPLE_HEAD, pad_edge=False)
    for text, held in pairs.items():
        more = f", and {len(held) - 1} more pairs" if len(held) > 1 else ""
        table.add_row(Text(text), Text(f"{held[0]}{more}"))
    return table
