"""The page of a step as a text, and what it says: one file of bounded size, each second accounted for."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.number_ranges import number_ranges
from hspmd_compiler.base.timeline import MemoryPoint, Span, SpanKind, Timeline
from hspmd_compiler.errors import TimelineError
from hspmd_compiler.pages.timeline import drawn as drawn_module
from hspmd_compiler.pages.timeline.drawn import FIELDS, coarse, drawn
from hspmd_compiler.pages.timeline.kinds import LOOKS, TimeShare
from hspmd_compiler.pages.timeline.places import places_of
from hspmd_compiler.pages.timeline.summary import ORDER, explained, shares_by_rank
from hspmd_compiler.pages.timeline_page import timeline_html, write_timeline_page
from hspmd_compiler.pages.units import bytes_text, seconds_text
from tests.timelines import pinned, two_pipelines, with_tensor_parallel

ESTIMATED = two_pipelines("estimated")
MEASURED = two_pipelines("measured", {3: 1.4})


class Elements(HTMLParser):
    """The elements of a page, in order, with the texts right inside of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("", {}, ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def named(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


def page_of(*lines: Timeline, **more: Any) -> Elements:
    return Elements(timeline_html(*lines, **{"capacity": {}, **more}))


def data_of(page: Elements) -> Any:
    (text,) = [text for attributes, text in page.named("script") if attributes.get("id") == "drawn"]
    return json.loads(text)


def test_it_is_one_file_that_may_run_its_own_script_only() -> None:
    page = page_of(ESTIMATED, MEASURED)
    assert not [each for _, each, _ in page.found if {"src", "href", "style", "onclick"} & each.keys()]
    policy = next(each["content"] for each, _ in page.named("meta") if "http-equiv" in each)
    assert policy is not None
    scripts = [text for each, text in page.named("script") if "type" not in each]
    for text in (*scripts, *(text for _, text in page.named("style"))):
        made = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{made}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_spans_arrive_as_they_are() -> None:
    """Decoded as the script does it."""
    data = data_of(page_of(ESTIMATED, MEASURED))
    kinds = list(SpanKind)
    for told, line in zip(data["lines"], (ESTIMATED, MEASURED), strict=True):
        for row, flat in zip(data["rows"], told["spans"], strict=True):
            start, found = 0, []
            for at in range(0, len(flat), FIELDS):
                gap, length, kind, label, position, mb, peers, size = flat[at : at + FIELDS]
                start += gap
                texts = data["texts"][label], data["texts"][peers]
                found.append((start, start + length, kinds[kind], position, mb, size, *texts))
            assert found == [
                (
                    *(round(t * 1e9) for t in (s.start_s, s.end_s)),
                    *(s.kind, s.position, s.mb, s.size_bytes, s.label, number_ranges(s.peers)),
                )
                for s in line.of(row["rank"])
            ]


def test_no_text_ends_the_script() -> None:
    evil = "</script><script>alert(1)</script><!--"
    line = replace(ESTIMATED, spans=tuple(replace(span, label=evil) for span in ESTIMATED.spans))
    page = page_of(line, title=evil, facts=((evil, evil),))
    assert len(page.named("script")) == 2
    assert data_of(page)["texts"][1] == evil
    assert page.named("h1")[0][1] == evil


def test_what_is_said_to_a_newcomer() -> None:
    lines = [ESTIMATED, MEASURED]
    said = [*explained(lines[:1], places_of(lines)), "", *explained(lines, places_of(lines))]
    pinned("timelines", "explained", "\n".join(said))


@st.composite
def overlapping(draw: st.DrawFn) -> list[tuple[int, int, SpanKind]]:
    spans = []
    for _ in range(draw(st.integers(1, 8))):
        low = draw(st.integers(0, 30))
        spans.append((low, low + draw(st.integers(0, 9)), draw(st.sampled_from(SpanKind))))
    return spans


@given(overlapping())
def test_every_second_counts_once(drawn_spans: list[tuple[int, int, SpanKind]]) -> None:
    """By brute force: of all that a rank does at a second, what comes first in the list of shares."""
    spans = [Span(0, float(low), float(high), kind) for low, high, kind in drawn_spans]
    begin, end = min(low for low, _, _ in drawn_spans), max(high for _, high, _ in drawn_spans)
    expected = dict.fromkeys(TimeShare, 0)
    for second in range(begin, end):
        going_on = [LOOKS[kind].share for low, high, kind in drawn_spans if low <= second < high]
        expected[min(going_on, key=ORDER.__getitem__, default=TimeShare.WAITING)] += 1
    assert shares_by_rank(Timeline("estimated", tuple(spans)))[0] == expected


def test_bars_are_as_long_as_their_seconds() -> None:
    page = page_of(ESTIMATED, MEASURED)
    shares = [shares_by_rank(line) for line in (ESTIMATED, MEASURED)]
    expected = [
        1000 * each[share] / MEASURED.end_s
        for rank in ESTIMATED.ranks
        for each in (shares[0][rank], shares[1][rank])
        for share in TimeShare
        if each[share] > 0
    ]
    widths = [float(each["width"] or 0) for each, _ in page.named("rect")]
    assert widths == pytest.approx(expected, abs=0.01)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), max_size=60),
    st.integers(2, 20),
)
def test_many_spans_become_few(drawn_spans: list[tuple[int, int]], budget: int) -> None:
    spans = [Span(0, low, low + length, SpanKind.SEND, size_bytes=1) for low, length in drawn_spans]
    some = [span for span in spans if span.end_s > span.start_s]
    found = coarse(spans, 0.0, 1050.0, budget)
    assert len(found) <= budget
    assert sum(span.size_bytes for span in found) == len(some)
    if some:
        assert min(span.start_s for span in found) == min(span.start_s for span in some)
        assert max(span.end_s for span in found) == max(span.end_s for span in some)
    if len(some) <= budget:
        assert sorted(found, key=id) == sorted(some, key=id)


def test_a_page_is_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MOST_SPANS", 500), ("MOST_POINTS", 300), ("MOST_TEXTS", 50), ("MOST_CELLS", 8)):
        monkeypatch.setattr(drawn_module, name, most)
    line = with_tensor_parallel(two_pipelines("estimated", micro_batches=16), 8)
    unlike = tuple(replace(span, label=f"{number} " * 100) for number, span in enumerate(line.spans))
    memory = tuple(MemoryPoint(point.rank, point.time_s, point.bytes) for point in line.memory)
    line = replace(line, spans=unlike, memory=memory)
    traffic = {(source, target): 1 for source in line.ranks for target in line.ranks}
    data: Any = drawn([line], places_of([line]), {}, traffic, None)
    (told,) = data["lines"]
    assert 0 < sum(map(len, told["spans"])) <= 500 * FIELDS
    assert 0 < sum(map(len, told["memory"])) <= 300 * 2
    assert len(data["texts"]) <= 50
    assert max(map(len, data["texts"])) <= 100
    assert len(data["matrix"]["names"]) <= 8
    assert sum(size for *_, size in data["matrix"]["cells"]) == len(traffic)
    assert all(min(map(len, rows)) > 0 for rows in (told["spans"], told["memory"]))


def test_of_many_ranks_a_stage_has_one_bar() -> None:
    line = with_tensor_parallel(ESTIMATED, 8)
    page = page_of(line)
    names = [text for _, text in page.named("span") if text]
    assert names[0] == "pipeline 0, stage 0 (mean of 8 ranks)"
    assert len(page.named("svg")) == 5


def test_where_ranks_stand() -> None:
    labels = {
        4: "rank 4: A100, pipeline 1 stage 0",
        0: "rank 0: pipeline 1 stage 2 tp 3, host one, slot 2",
        2: "a label of somebody else",
    }
    spans = tuple(Span(rank, 0.0, 1.0, SpanKind.OTHER) for rank in (0, 1, 2, 4))
    found = places_of([Timeline("estimated", spans, (), labels)])
    assert [place.text for place in found] == [
        "rank 1",
        "rank 2",
        "rank 4 (A100, pipeline 1, stage 0)",
        "rank 0 (host one, pipeline 1, stage 2)",
    ]


def test_units() -> None:
    seconds = [0, 1e-9, 999e-9, 1.5e-6, 0.00999, 0.0999, 0.9996, 12.34, 1234.5]
    assert [seconds_text(each) for each in seconds] == [
        *("0 ns", "1 ns", "999 ns", "1.50 us", "9.99 ms", "99.9 ms", "1.00 s", "12.3 s", "1,234 s"),
    ]
    assert [bytes_text(each) for each in (0, 12, 1000, 6.7e7, 80e9, 2e12)] == [
        *("0 bytes", "12 bytes", "1.00 KB", "67.0 MB", "80.0 GB", "2.00 TB"),
    ]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TimelineError, match=r"can't write .*: No such file or directory"):
        write_timeline_page(tmp_path / "nowhere" / "page.html", ESTIMATED)
