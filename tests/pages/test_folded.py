"""Long tables for people: a line for all ranks that are alike, a row for each for scripts."""

from __future__ import annotations

from hspmd_compiler.pages.folded import MOST_LINES, Row, folded
from hspmd_compiler.pages.sections import Table

COLUMNS = ("rank", "stage", "pipeline", "rows", "bytes")
LEVELS = (("rank",), ("pipeline", "rows"))


def ranks(pipelines: int, degree: int) -> tuple[Row, ...]:
    """Pipelines of two stages."""
    return tuple(
        (
            (pipeline * 2 + stage) * degree + at,
            stage,
            pipeline,
            f"{pipeline * 4}:{pipeline * 4 + 4}",
            100 + stage,
        )
        for pipeline in range(pipelines)
        for stage in range(2)
        for at in range(degree)
    )


def test_few_ranks_have_a_line_each() -> None:
    rows = ranks(2, MOST_LINES // 4)
    assert folded(COLUMNS, rows, LEVELS) == rows


def test_ranks_of_a_stage_are_a_line() -> None:
    found = folded(COLUMNS, ranks(3, 8), LEVELS)
    assert found[:2] == [("0-7", 0, 0, "0:4", 100), ("8-15", 1, 0, "0:4", 101)] and len(found) == 6


def test_pipelines_that_do_the_same_are_a_line() -> None:
    rows = ranks(100, 4)
    assert folded(COLUMNS, rows, LEVELS) == [
        ("0-3,8-11,..,792-795", 0, "0-99", "0:4,4:8,..,396:400", 100),
        ("4-7,12-15,..,796-799", 1, "0-99", "0:4,4:8,..,396:400", 101),
    ]


def test_scripts_get_all_rows() -> None:
    table = Table("ranks", "ranks", COLUMNS, ranks(100, 4), LEVELS)
    assert len(table.to_text().splitlines()) == 4
    rows = table.to_json()
    assert isinstance(rows, list) and len(rows) == 800
