"""Estimates beside runs: what is paired, what differs by kind and rank, and where they part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.codec import Json
from hspmd_compiler.base.timeline import Span, SpanKind, Timeline
from hspmd_compiler.cost_models.align import align
from hspmd_compiler.pages.alignment_page import alignment_page
from hspmd_compiler.pages.sections import sections_to_json, sections_to_text
from tests.timelines import pinned, two_pipelines, with_tensor_parallel

ESTIMATED = two_pipelines("estimated")


def later(timeline: Timeline, seconds: float) -> Timeline:
    """The same with another zero of its clock."""
    spans = (replace(s, start_s=s.start_s + seconds, end_s=s.end_s + seconds) for s in timeline.spans)
    return replace(timeline, spans=tuple(spans))


def test_a_run_as_estimated_parts_nowhere() -> None:
    """The clock's zero does not matter."""
    found = align(ESTIMATED, later(two_pipelines("measured"), 1.5))
    assert found.first is None
    assert not found.largest
    assert not found.only_estimated
    assert not found.only_measured
    assert {round(each.ratio or 1.0, 6) for each in found.kinds} == {1.0}
    keys = {(span.rank, span.position, span.mb) for span in ESTIMATED.spans}
    assert len(found.pairs) == len(keys)


@given(st.sampled_from(ESTIMATED.ranks), st.floats(1.2, 3.0))
def test_the_rank_that_is_slower_is_the_largest_difference(rank: int, factor: float) -> None:
    found = align(ESTIMATED, two_pipelines("measured", {rank: factor}))
    assert [(each.pair.rank, each.kind) for each in found.largest] == [
        (rank, SpanKind.BACKWARD),
        (rank, SpanKind.FORWARD),
    ]
    for each in found.by_rank:
        computes = each.kind in (SpanKind.FORWARD, SpanKind.BACKWARD)
        if each.kind is not SpanKind.WAIT:
            assert each.ratio == pytest.approx(factor if each.rank == rank and computes else 1.0)
    assert found.first is None or found.first.lag_s > 0


def test_an_alignment_as_text_and_json() -> None:
    measured = two_pipelines("measured", {3: 1.4})
    gone = replace(measured, spans=tuple(s for s in measured.spans if s.kind is not SpanKind.UPDATE))
    extra = Span(0, 0.0, 0.001, SpanKind.LOSS, position=200)
    sections = alignment_page(align(ESTIMATED, replace(gone, spans=(*gone.spans, extra))))
    pinned("timelines", "against", sections_to_text(sections))
    told = sections_to_json(sections)
    assert isinstance(told, dict)
    assert set(told) == {"step", "parts", "kinds", "ranks"}
    rank_3 = {"rank": 3, "kind": "forward"}
    assert any(_contains(row, rank_3) and _ratio(row) == pytest.approx(1.4) for row in _rows(told["ranks"]))


def _rows(value: Json) -> list[dict[str, Json]]:
    assert isinstance(value, list)
    return [row for row in value if isinstance(row, dict)]


def _contains(row: dict[str, Json], part: dict[str, object]) -> bool:
    return all(row[key] == value for key, value in part.items())


def _ratio(row: dict[str, Json]) -> object:
    return row["measured / estimated"]


def test_nothing_in_common() -> None:
    other = Timeline("measured", (Span(9, 0.0, 1.0, SpanKind.FORWARD, position=0),))
    told = sections_to_text(alignment_page(align(ESTIMATED, other)))
    assert "no instruction is in both: they are not of one program" in told


def test_waits_and_exchanges_inside_are_apart_from_an_instruction() -> None:
    """A forward pass with a collective in it, of which the run waited half a second more."""

    def step(source: str, wait_s: float, compute_s: float) -> Timeline:
        times = (0.0, compute_s, compute_s + wait_s, compute_s + wait_s + 0.25)
        kinds = (SpanKind.FORWARD, SpanKind.WAIT, SpanKind.COLLECTIVE)
        parts = zip(times, times[1:], kinds, strict=False)
        return Timeline(source, tuple(Span(0, *part, position=0, mb=0) for part in parts))

    found = align(step("estimated", 0.0, 1.0), step("measured", 0.5, 2.0))
    (pair,) = found.pairs
    assert (pair.kind, pair.lag_s) == (SpanKind.FORWARD, 1.5)
    assert [(each.kind, each.more_s) for each in found.largest] == [(SpanKind.FORWARD, 1.0)]
    assert [(each.kind, each.more_s) for each in found.kinds] == [
        (SpanKind.FORWARD, 1.0),
        (SpanKind.COLLECTIVE, 0.0),
        (SpanKind.WAIT, 0.5),
    ]


def test_ranks_of_a_stage_are_told_once() -> None:
    both = (with_tensor_parallel(line, 4) for line in (ESTIMATED, two_pipelines("measured", {3: 1.4})))
    assert [each.pair.rank for each in align(*both).largest] == [12, 12]
