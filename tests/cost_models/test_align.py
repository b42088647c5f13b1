"""Estimates beside runs: what is paired, what differs by kind and rank, and where they part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.codec import Json
from hspmd_compiler.base.timeline import Span, SpanKind, Timeline
from hspmd_compiler.cost_models.align import align
from hspmd_compiler.cost_models.waits import with_waits
from hspmd_compiler.pages.alignment_page import alignment_page
from hspmd_compiler.pages.sections import sections_to_json, sections_to_text
from tests.timelines import SENDING_S, pinned, two_pipelines

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
    assert [(pair.rank, pair.estimated.kind) for pair in found.largest] == [
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


def without_waits(timeline: Timeline) -> Timeline:
    """As a run measures: an exchange begins when its instruction does, waiting or not."""
    spans: list[Span] = []
    for span in timeline.spans:
        if spans and spans[-1].kind is SpanKind.WAIT and spans[-1].rank == span.rank:
            assert spans[-1].position == span.position
            spans[-1] = replace(span, start_s=spans[-1].start_s)
        else:
            spans.append(span)
    return replace(timeline, spans=tuple(spans))


@given(st.dictionaries(st.sampled_from(ESTIMATED.ranks), st.floats(0.5, 3.0)), st.integers(1, 6))
def test_waits_are_found_again(slower: dict[int, float], micro_batches: int) -> None:
    """A receive waits until its sender sends, which ends where the rest of the receive begins."""
    told = two_pipelines("measured", slower, micro_batches)
    found = with_waits(without_waits(told))
    collective = [s for s in told.spans if s.kind in (SpanKind.WAIT, SpanKind.GRADIENT) and s.position == 100]
    assert [s for s in found.spans if s.position == 100] == [
        replace(s, label="gradient" if s.kind is SpanKind.WAIT else "") for s in collective
    ]
    waits = [s for s in found.spans if s.kind is SpanKind.WAIT and s.label == "recv"]
    long = [s for s in told.spans if s.label == "RECV" and s.length_s > SENDING_S + 1e-9]
    assert len(waits) >= len(long)
    for mine in waits:
        (sent,) = [s for s in found.of(mine.peers[0]) if _sends(s, mine)]
        assert mine.end_s == sent.start_s


def _sends(span: Span, waiting: Span) -> bool:
    """Whether a span sends what the other receives: forward to later ranks, backward to earlier ones."""
    return span.kind is SpanKind.SEND and span.peers == (waiting.rank,) and span.mb == waiting.mb


def test_waits_that_are_told_stay() -> None:
    assert with_waits(ESTIMATED) is ESTIMATED
