"""HTML from values, every text escaped: tables, stacked bars, the legend, and data for the script."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from ...base.codec import Json
from ...base.timeline import SpanKind
from ..sections import Cell, Table, cell_text
from ..units import percent_text, seconds_text
from .kinds import LOOKS, TimeShare

BAR_WIDTH = 1000
MOST_ROWS = 128
"""Of bars and of a table: more are read in the JSON of `hspmd estimate`."""


def table_html(table: Table) -> str:
    """Head and rows; of many the first ones."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "".join(f"<tr>{''.join(map(_cell_html, row))}</tr>" for row in table.rows[:MOST_ROWS])
    left = len(table.rows) - MOST_ROWS
    more = f"<p>{left:,} more rows are not shown.</p>" if left > 0 else ""
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    inner = f"{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="wide"><table>{inner}</table></div>{more}'


def _cell_html(cell: Cell) -> str:
    is_number = isinstance(cell, (int, float)) and not isinstance(cell, bool)
    return f"<td{' class=number' if is_number else ''}>{escape(cell_text(cell))}</td>"


def bar_html(shares: Mapping[TimeShare, float], whole_s: float, scale_s: float) -> str:
    """One bar of a step; scale_s: the seconds of the bar's full width."""
    x, parts = 0.0, []
    for share, seconds in shares.items():
        width = BAR_WIDTH * seconds / scale_s if scale_s > 0 else 0.0
        if width > 0:
            told = escape(f"{share.value}: {seconds_text(seconds)}, {percent_text(seconds, whole_s)}")
            place = f'x="{x:.2f}" y="0" width="{width:.2f}" height="14"'
            parts.append(f'<rect class="{class_of(share)}" {place}><title>{told}</title></rect>')
        x += width
    text = ", ".join(
        f"{share.value} {percent_text(seconds, whole_s)}" for share, seconds in shares.items() if seconds > 0
    )
    box = f'viewBox="0 0 {BAR_WIDTH} 14" preserveAspectRatio="none" role="img" aria-label="{escape(text)}"'
    return f'<svg class="bar" {box}>{"".join(parts)}</svg>'


def class_of(share: TimeShare) -> str:
    """The style of a share's bars."""
    return f"share-{share.name.lower()}"


def legend_html(kinds: Iterable[SpanKind]) -> str:
    """Name, colour and meaning of each kind."""
    items = (
        f'<li><i class="kind-{kind.value}"></i><b>{escape(look.title)}</b> {escape(look.meaning)}</li>'
        for kind, look in ((kind, LOOKS[kind]) for kind in kinds)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def data_html(value: Json) -> str:
    """JSON that a script reads; no text in it can end its element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" id="drawn">{text}</script>'


def policy_html(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """What the page may do: nothing but run these scripts and styles; no network."""
    rules = [
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        f"script-src {' '.join(map(_hash, scripts))}",
        f"style-src {' '.join(map(_hash, styles))}",
    ]
    return f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(rules)}">'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
