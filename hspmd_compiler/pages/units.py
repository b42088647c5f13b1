"""Seconds, bytes, shares and sizes as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"))


def seconds_text(seconds: float) -> str:
    """Three digits and a unit: `1.23 s`, `45.6 ms`, `7.00 us`."""
    for size, unit in SECONDS:
        if abs(seconds) >= size * 0.9995:
            return f"{_digits(seconds / size)} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def bytes_text(size_bytes: float) -> str:
    """Three digits and a unit: `1.23 GB`, of a thousand millions; `12 bytes`."""
    for size, unit in BYTES:
        if abs(size_bytes) >= size * 0.9995:
            return f"{_digits(size_bytes / size)} {unit}"
    return f"{size_bytes:.0f} bytes"


def percent_text(part: float, whole: float) -> str:
    """`12 %`."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else "0 %"


def sizes_text(sizes: Sequence[int]) -> str:
    """Sizes of micro-batches, equal ones counted: `3 x 4, 2`."""
    runs = [(size, len(list(run))) for size, run in groupby(sizes)]
    return ", ".join(f"{count} x {size}" if count > 1 else str(size) for size, count in runs)


def _digits(number: float) -> str:
    decimals = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    return f"{number:,.{decimals}f}"
