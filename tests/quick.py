"""Which rows of a table the quick suite has: those that are named; the slow one has all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick_are(rows: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Parameters of a test: these rows are quick, the others slow. A name that is no row is a mistake."""
    every = list(rows)
    assert all(row in every for row in quick), f"no rows: {[row for row in quick if row not in every]}"
    return [pytest.param(row, marks=() if row in quick else pytest.mark.slow) for row in every]
