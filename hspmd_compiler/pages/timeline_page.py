"""One self-contained HTML page of a step: where the time went, all ranks over time, memory, traffic.

It needs no network and runs no script but its own; labels of the timelines are texts in it, never markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from ..base.json_yaml import write_text
from ..base.timeline import SpanKind, Timeline
from ..cost_models.align import Alignment, align
from ..errors import TimelineError
from .alignment_page import alignment_page, parting_lines
from .sections import Cell, Table, cell_text
from .timeline.drawn import drawn, sent
from .timeline.kinds import LOOKS, SHARE_COLOURS, TimeShare
from .timeline.markup import MOST_ROWS, bar_html, class_of, data_html, legend_html, policy_html, table_html
from .timeline.places import LabelledRank, places_of
from .timeline.summary import explained, length_s, shares_by_rank, together, told

SCRIPTS = ("view.js", "rows.js", "spans.js", "memory.js", "matrix.js", "main.js")
RANKS_WITH_A_BAR = 32
"""Of more ranks each stage has one bar."""


def write_timeline_page(
    path: Path,
    estimated: Timeline,
    measured: Timeline | None = None,
    *,
    title: str = "One training step",
    capacity: Mapping[int, int] | None = None,
    traffic: Mapping[tuple[int, int], int] | None = None,
    facts: Sequence[tuple[str, Cell]] = (),
) -> None:
    """Write the page, of one timeline or of two on one scale.

    capacity: bytes of memory by rank. traffic: bytes by (sender, receiver), else what the sends tell.
    facts: more lines for the head, such as MFU.
    """
    page = timeline_html(
        estimated, measured, title=title, capacity=capacity or {}, traffic=traffic, facts=facts
    )
    write_text(path, page, TimelineError)


def timeline_html(
    estimated: Timeline,
    measured: Timeline | None = None,
    *,
    title: str = "One training step",
    capacity: Mapping[int, int],
    traffic: Mapping[tuple[int, int], int] | None = None,
    facts: Sequence[tuple[str, Cell]] = (),
) -> str:
    """The page as a text."""
    lines = [line for line in (estimated, measured) if line is not None]
    places = places_of(lines)
    alignment = None if measured is None else align(estimated, measured)
    moved = sent(lines[0]) if traffic is None else traffic
    body = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(sentence)}</p>" for sentence in explained(lines, places)),
        *_facts(facts),
        *_where(lines, places),
        *_timeline(lines, places, alignment),
        *_memory(lines, capacity),
        *_matrix(moved, traffic is None),
        data_html(drawn(lines, places, capacity, moved, alignment)),
    ]
    return _document(title, body)


def _document(title: str, body: Sequence[str]) -> str:
    assets = files("hspmd_compiler.pages.timeline") / "assets"
    inner = "\n".join((assets / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{inner}\n}})();\n'
    style = (assets / "page.css").read_text(encoding="utf-8") + _colours()
    head = [
        '<meta charset="utf-8">',
        policy_html([script], [style]),
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
    ]
    parts = ["<!DOCTYPE html>", '<html lang="en"><head>', *head, "</head><body>", *body]
    return "\n".join([*parts, f"<script>{script}</script>", "</body></html>", ""])


def _colours() -> str:
    """Styles of kinds and shares; what waits has a colour for each theme in page.css."""
    kinds = [
        (f".kind-{kind.value}", look.colour) for kind, look in LOOKS.items() if kind is not SpanKind.WAIT
    ]
    shares = [
        (f".{class_of(s)}", colour) for s, colour in SHARE_COLOURS.items() if s is not TimeShare.WAITING
    ]
    return "".join(f"{name}{{background:{colour};fill:{colour}}}\n" for name, colour in (*kinds, *shares))


def _facts(facts: Sequence[tuple[str, Cell]]) -> Iterator[str]:
    if facts:
        rows = tuple((name, cell_text(value)) for name, value in facts)
        yield table_html(Table("facts", "", ("fact", "value"), rows))


def _where(lines: Sequence[Timeline], places: Sequence[LabelledRank]) -> Iterator[str]:
    """Stacked bars for each rank or stage, and the same as a table."""
    steps_s = [length_s(line) for line in lines]
    by_rank = [shares_by_rank(line) for line in lines]
    yield '<section id="where"><h2>Where the time went</h2>'
    seen = [share for share in TimeShare if any(each[share] for line in by_rank for each in line.values())]
    items = "".join(f'<li><i class="{class_of(share)}"></i>{escape(share.value)}</li>' for share in seen)
    yield f'<ul class="legend short">{items}</ul>'
    yield '<div class="bars" tabindex="0" role="group" aria-label="bars of all ranks">'
    rows: list[tuple[Cell, ...]] = []
    groups = list(_bar_groups(places))
    for name, ranks in groups[:MOST_ROWS]:
        for line, shares, step_s in zip(lines, by_rank, steps_s, strict=True):
            some = [shares[rank] for rank in ranks if rank in shares]
            if some:
                mean = together(some)
                rows.append((name, line.source, *(mean[share] * 1e3 for share in TimeShare)))
                yield f"<span>{escape(name if line is lines[0] else '')}</span><small>{line.source}</small>"
                yield bar_html(mean, step_s, max(steps_s))
                yield f"<small>{escape(told(mean, step_s))}</small>"
    yield "</div>"
    if len(groups) > MOST_ROWS:
        yield f"<p>{len(groups) - MOST_ROWS:,} more are not shown.</p>"
    columns = ("of", "timeline", *(f"{share.value} ms" for share in TimeShare))
    yield "<details><summary>The same as a table</summary>"
    yield f"{table_html(Table('shares', 'milliseconds of a step', columns, tuple(rows)))}</details></section>"


def _bar_groups(places: Sequence[LabelledRank]) -> Iterator[tuple[str, list[int]]]:
    """(name, ranks) of each bar."""
    if len(places) <= RANKS_WITH_A_BAR:
        yield from ((place.text, [place.rank]) for place in places)
        return
    for group, members in groupby(places, key=lambda place: place.group):
        ranks = [place.rank for place in members]
        yield f"{group} (mean of {len(ranks)} ranks)", ranks


def _timeline(
    lines: Sequence[Timeline], places: Sequence[LabelledRank], alignment: Alignment | None
) -> Iterator[str]:
    kinds = {span.kind for line in lines for span in line.spans}
    yield '<section id="timeline"><h2>Every rank over time</h2>'
    yield legend_html(kind for kind in SpanKind if kind in kinds)
    both = (
        " Of each rank the upper row is the estimate, the lower one was measured;"
        " a red frame marks where they part."
    )
    yield f"<p>Numbers in the bars are micro-batches.{both if len(lines) > 1 else ''}</p>"
    yield '<div class="tools"></div><div class="rows"></div>'
    if alignment is not None:
        yield "<h3>Where estimate and run part</h3>"
        yield '<ol class="marks"></ol>'
        yield "".join(f"<p>{escape(text)}</p>" for text in parting_lines(alignment) if not _is_mark(text))
        yield "<details><summary>Estimated and measured by kind and rank</summary>"
        yield from (table_html(s) for s in alignment_page(alignment) if isinstance(s, Table))
        yield "</details>"
    yield "</section>"


def _is_mark(line: str) -> bool:
    """Whether the list of marks tells it."""
    return line.startswith(("first: ", "largest: ", "then: "))


def _memory(lines: Sequence[Timeline], capacity: Mapping[int, int]) -> Iterator[str]:
    if any(line.memory for line in lines):
        yield '<section id="memory"><h2>Memory over time</h2>'
        limit = " The dashed line is what its device has; red is beyond it." if capacity else ""
        both = " Filled: estimated; line: measured." if len([x for x in lines if x.memory]) > 1 else ""
        yield f"<p>What each rank holds.{limit}{both}</p>"
        yield '<div class="rows"></div></section>'


def _matrix(traffic: Mapping[tuple[int, int], int], is_of_sends: bool) -> Iterator[str]:
    if any(traffic.values()):
        what = "messages between stages" if is_of_sends else "all that they exchange"
        yield '<section id="matrix"><h2>Who sends to whom</h2>'
        yield f"<p>Bytes of one step, {what}. Rows send, columns receive; a strong colour is much.</p>"
        yield '<div class="matrix"></div></section>'
