"""The tables of memory, with all parts of it, fit in a terminal of 100 columns, in a pipe and with lines."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import cache
from io import StringIO

import pytest

from hspmd_compiler.cli.show import show_sections
from hspmd_compiler.cost_models.estimate import Estimate, estimate
from hspmd_compiler.cost_models.steps.memory import PARTS, MemoryParts
from hspmd_compiler.pages.estimate_page import estimate_sections
from hspmd_compiler.pages.sections import Section, Table
from tests.cost_models.priced import DP, cluster, compiled, device, layers_of

WIDE = 100


@cache
def priced() -> Estimate:
    artifact, spec = compiled(DP), cluster([device()] * 2)
    return estimate(artifact.program, spec, artifact.manifest.optimizer, layers=layers_of(artifact))


def found() -> Estimate:
    """Every part of the peak has some bytes, of unlike sizes."""
    step = priced()
    parts = MemoryParts(*(123_456_789 * 10**at // 1000 for at, _ in enumerate(PARTS)))
    ranks = [
        replace(one, memory=replace(one.memory, peak=replace(parts, batch=one.rank + 1)))
        for one in step.ranks
    ]
    return replace(step, ranks=tuple(ranks))


def memory(for_scripts: bool = False) -> list[Section]:
    return [one for one in estimate_sections(found(), for_scripts) if one.key.startswith("memory")]


def test_memory_fits_in_a_hundred_columns_of_a_pipe() -> None:
    text = "\n".join(one.to_text() for one in memory())
    assert max(map(len, text.splitlines())) <= WIDE
    assert all(name in text for name in (*PARTS, "peak", "capacity", "share", "fits"))


@pytest.mark.parametrize("columns", [80, WIDE])
def test_memory_fits_a_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No word is cut where there are 100; of 80 each line is as long as that at most."""

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    show_sections(memory(), as_json=False)
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert max(map(len, text.splitlines())) <= columns
    if columns == WIDE:
        assert all(name in text for name in PARTS), text


def test_scripts_get_all_of_it_in_one_table() -> None:
    (table,) = memory(for_scripts=True)
    assert isinstance(table, Table)
    assert {"rank", "peak", "capacity", "share", "fits", "at instruction", *PARTS} == {*table.columns}
    assert [row[-len(PARTS) :] for row in table.rows] == [
        tuple(getattr(one.memory.peak, part) for part in PARTS) for one in found().ranks
    ]


def test_parts_that_no_rank_has_are_left_out() -> None:
    parts = next(one for one in estimate_sections(priced()) if one.key == "memory parts")
    assert isinstance(parts, Table)
    assert "platform" in parts.title and "platform" not in parts.columns and "parameters" in parts.columns
