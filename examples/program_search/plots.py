"""Bars and curves as SVG files, which any browser shows: no library of plots is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path

COLOURS = ("#9aa5b1", "#5b7083", "#c6703b", "#2f6f9f", "#3f8f5f", "#8fbf9f", "#d9c9a8")
LEFT, TOP, HEIGHT, BELOW, LEGEND = 70, 40, 260, 60, 22
BAR, GAP = 14, 18
WIDTH = 640
Point = tuple[float, float]


def draw_bars(
    path: Path, title: str, groups: Mapping[str, Sequence[float | None]], series: Sequence[str], unit: str
) -> None:
    """A group of bars for each name, one bar for each series; None: no bar."""
    highest = max((value for values in groups.values() for value in values if value is not None), default=1.0)
    step = BAR * len(series) + GAP
    width = max(LEFT + step * len(groups) + GAP, _least_width(title, series))
    parts = [*_frame(title, series, width), *_linear_axis(highest, width, unit)]
    for number, (name, values) in enumerate(groups.items()):
        left = LEFT + GAP / 2 + step * number
        for place, value in enumerate(values):
            if value is not None:
                parts.append(
                    _bar(left + BAR * place, value / highest, COLOURS[place], f"{name}: {value:.4g}")
                )
        parts.append(_text(left + BAR * len(series) / 2, TOP + HEIGHT + 16, name, "middle"))
    _write(path, parts, width)


def draw_curves(
    path: Path, title: str, curves: Mapping[str, Sequence[Point]], across: str, unit: str
) -> None:
    """Lines through points, seconds on a logarithmic axis."""
    points = [point for curve in curves.values() for point in curve]
    low = floor(log10(min(y for _, y in points)))
    high = max(ceil(log10(max(y for _, y in points))), low + 1)
    most = max(x for x, _ in points)

    def place(point: Point) -> Point:
        x, y = point
        across_ = LEFT + (WIDTH - LEFT - GAP) * x / most
        return across_, TOP + HEIGHT * (1 - (log10(y) - low) / (high - low))

    parts = [*_frame(title, list(curves), WIDTH), *_log_axis(low, high, unit)]
    for number, curve in enumerate(curves.values()):
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, curve))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[number]}" stroke-width="2"/>')
        parts += [_dot(place(point), COLOURS[number], f"{point[0]:g}: {point[1]:.4g}") for point in curve]
    for x in sorted({x for x, _ in points}):
        parts.append(_text(place((x, 10.0**low))[0], TOP + HEIGHT + 16, f"{x:g}", "middle"))
    parts.append(_text(WIDTH / 2, TOP + HEIGHT + 34, across, "middle"))
    _write(path, parts, WIDTH)


def _least_width(title: str, series: Sequence[str]) -> float:
    """Of what stands above and below the bars."""
    return LEFT + max(7 * len(title), sum(30 + 7 * len(name) for name in series)) + GAP


def _frame(title: str, series: Sequence[str], width: float) -> Iterator[str]:
    yield _text(LEFT, 20, title, "start", 'font-weight="bold"')
    left = float(LEFT)
    for number, name in enumerate(series):
        top = TOP + HEIGHT + BELOW - LEGEND
        yield f'<rect x="{left:.1f}" y="{top}" width="10" height="10" fill="{COLOURS[number]}"/>'
        yield _text(left + 14, top + 9, name, "start")
        left += 30 + 7 * len(name)
    yield f'<line x1="{LEFT}" y1="{TOP + HEIGHT}" x2="{width:.0f}" y2="{TOP + HEIGHT}" stroke="#333"/>'


def _linear_axis(highest: float, width: float, unit: str) -> Iterator[str]:
    for part in (0.25, 0.5, 0.75, 1.0):
        yield from _grid(TOP + HEIGHT * (1 - part), f"{highest * part:.3g}", width)
    yield _text(LEFT - 6, TOP - 8, unit, "end")


def _log_axis(low: int, high: int, unit: str) -> Iterator[str]:
    for power in range(low, high + 1):
        yield from _grid(TOP + HEIGHT * (1 - (power - low) / (high - low)), f"{10.0**power:g}", WIDTH)
    yield _text(LEFT - 6, TOP - 8, unit, "end")


def _grid(top: float, name: str, width: float) -> Iterator[str]:
    yield f'<line x1="{LEFT}" y1="{top:.1f}" x2="{width:.0f}" y2="{top:.1f}" stroke="#ddd"/>'
    yield _text(LEFT - 6, top + 4, name, "end")


def _bar(left: float, part: float, colour: str, told: str) -> str:
    size = (
        f'x="{left:.1f}" y="{TOP + HEIGHT * (1 - part):.1f}" width="{BAR - 2}" height="{HEIGHT * part:.1f}"'
    )
    return f'<rect {size} fill="{colour}"><title>{escape(told)}</title></rect>'


def _dot(place: Point, colour: str, told: str) -> str:
    where = f'cx="{place[0]:.1f}" cy="{place[1]:.1f}"'
    return f'<circle {where} r="3.5" fill="{colour}"><title>{escape(told)}</title></circle>'


def _text(left: float, top: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _write(path: Path, parts: Sequence[str], width: float) -> None:
    height = TOP + HEIGHT + BELOW
    size = f'width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    path.write_text("\n".join([head, ground, *parts, "</svg>"]) + "\n", encoding="utf-8")
