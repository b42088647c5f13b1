"""Timelines as files of Chrome's trace JSON: the same back, and bad values of a file told."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base import trace_file
from hspmd_compiler.base.timeline import MemoryPoint, Span, SpanKind, Timeline
from hspmd_compiler.base.trace_file import nanoseconds, read_timeline, read_trace, write_trace
from hspmd_compiler.errors import TimelineError
from tests.timelines import pinned, two_pipelines

RANKS = st.integers(0, 65535)
TIMES = st.integers(0, 10**15).map(lambda whole: whole / 1e9)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=trace_file.LONGEST_NAME)
KINDS = {kind.value for kind in SpanKind}
PLACES = st.integers(-1, 2**62)


@st.composite
def drawn_span(draw: st.DrawFn) -> Span:
    start_s, end_s = sorted((draw(TIMES), draw(TIMES)))
    label = draw(NAMES.filter(lambda name: name not in KINDS))
    place = draw(PLACES), draw(PLACES), tuple(draw(st.lists(RANKS, max_size=8))), draw(st.integers(0, 2**62))
    return Span(draw(RANKS), start_s, end_s, draw(st.sampled_from(SpanKind)), label, *place)


@st.composite
def drawn_timeline(draw: st.DrawFn, source: str) -> Timeline:
    points = st.builds(MemoryPoint, RANKS, TIMES, st.integers(0, 2**62))
    spans = draw(st.lists(drawn_span(), min_size=1, max_size=4))
    return Timeline(
        source,
        tuple(spans),
        tuple(draw(st.lists(points, max_size=3))),
        draw(st.dictionaries(RANKS, NAMES, max_size=3)),
        tuple(draw(st.lists(drawn_span(), max_size=2))),
    )


@given(st.data())
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    sources = data.draw(st.sampled_from([("estimated",), ("measured",), ("estimated", "measured")]))
    lines = tuple(data.draw(drawn_timeline(source)) for source in sources)
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    write_trace(lines, path)
    assert read_trace(path) == lines


def test_members_of_a_meeting_share_its_group(tmp_path: Path) -> None:
    """In memory and in the file, which would be as large as its ranks squared."""
    everyone = tuple(range(600))
    spans = tuple(Span(rank, 0.0, 1.0, SpanKind.GRADIENT, group=everyone) for rank in everyone)
    write_trace(Timeline("estimated", spans), tmp_path / "t.json")
    assert (tmp_path / "t.json").stat().st_size < 150 * len(everyone)
    (line,) = read_trace(tmp_path / "t.json")
    assert line.spans == spans and len({id(span.group) for span in line.spans}) == 1
    assert line.spans[5].peers == everyone[:5] + everyone[6:]


def test_a_file_that_will_not_be_read_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace_file, "TRACE_BYTES", 100)
    write_trace(two_pipelines("estimated"), tmp_path / "t.json")
    assert "t.json has" in caplog.text and "--against" in caplog.text


def test_times_are_kept_to_the_nanosecond(tmp_path: Path) -> None:
    """A span that begins where another ends does so in the file too."""
    thirds = [number / 3 for number in range(9)]
    spans = tuple(Span(0, low, high, SpanKind.FORWARD) for low, high in pairwise(thirds))
    write_trace(Timeline("estimated", spans), tmp_path / "t.json")
    (back,) = read_trace(tmp_path / "t.json")
    for before, after in pairwise(back.spans):
        assert before.end_s == after.start_s
    assert [nanoseconds(span.start_s) for span in back.spans] == [nanoseconds(time) for time in thirds[:-1]]


def test_chrome_finds_what_it_knows(tmp_path: Path) -> None:
    """Phases, and ts and dur in microseconds on one row for each rank; pid tells what was measured."""
    write_trace(two_pipelines("measured"), tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"X", "C", "M"}
    assert {event["pid"] for event in events} == {1}
    first = next(event for event in events if event["ph"] == "X" and event["tid"] == 1)
    span = two_pipelines("measured").of(1)[0]
    assert first["cat"] == span.kind.value
    assert first["ts"] + first["dur"] == pytest.approx(span.end_s * 1e6)


def test_what_others_add_is_passed_over(tmp_path: Path) -> None:
    lines = two_pipelines("estimated"), two_pipelines("measured")
    path = tmp_path / "t.json"
    write_trace(lines, path)
    content = json.loads(path.read_text())
    content["traceEvents"] += [{"ph": "i", "ts": 3}, {"ph": "M", "name": "thread_sort_index", "args": {}}]
    path.write_text(json.dumps(content["traceEvents"]))
    assert read_trace(path) == lines
    assert read_timeline(path, "measured") == lines[1]


EVENT: dict[str, Any] = {"ph": "X", "name": "F", "cat": "forward", "pid": 0, "tid": 0, "ts": 1, "dur": 1}
BAD: dict[str, Any] = {
    "values": [
        EVENT,
        {**EVENT, "ts": -1.0, "dur": 1e300},
        3,
        {**EVENT, "cat": "fly", "pid": 2, "tid": 70000, "args": {"mb": -2, "peers": [-1], "bytes": 0.5}},
        {"ph": "C", "name": "m", "pid": 0, "tid": 0, "ts": 0, "args": {"bytes": -1}},
        {"ph": "M", "name": "thread_name", "pid": 0, "args": {"name": 5}},
        {"ph": "X", "name": "F" * 1000, "cat": "forward", "pid": 0, "tid": 0, "dur": "1", "more": 1},
    ],
    "not_finite": [{**EVENT, "ts": float("nan")}, {**EVENT, "dur": float("inf")}],
    "many": [{**EVENT, "cat": "cpu_op"}] * 5000,
    "events": {"traceEvents": 1},
    "groups": {"groups": ["0-3", "5-2"], "traceEvents": [{**EVENT, "args": {"group": 7}}]},
    "huge_groups": {"groups": ["0-65535"] * 65, "traceEvents": [EVENT]},
    "nothing": {"spans": []},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    content = BAD[name]
    Path("t.json").write_text(json.dumps(content if isinstance(content, dict) else {"traceEvents": content}))
    with pytest.raises(TimelineError) as told:
        read_trace(Path("t.json"))
    pinned("timelines", f"bad_{name}", str(told.value))


def test_no_file_no_text_no_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bytes.json").write_bytes(b"{\xff")
    Path("half.json").write_text('{"traceEvents": [')
    Path("deep.json").write_text("[" * 100000)
    Path("large.json").write_text(json.dumps({"traceEvents": [0] * 100}))
    write_trace(two_pipelines("estimated"), Path("t.json"))
    texts = []
    for name in ("absent.json", "bytes.json", "half.json", "deep.json", "t.json", "large.json"):
        monkeypatch.setattr(trace_file, "TRACE_BYTES", 100 if name == "large.json" else 1 << 27)
        with pytest.raises(TimelineError) as told:
            read_timeline(Path(name), "measured")
        texts.append(str(told.value))
    monkeypatch.setattr(trace_file, "TRACE_BYTES", 1 << 27)
    monkeypatch.setattr(trace_file, "MOST_EVENTS", 99)
    with pytest.raises(TimelineError) as told:
        read_trace(Path("large.json"))
    with pytest.raises(TimelineError) as unwritten:
        write_trace(two_pipelines("estimated"), tmp_path / "nowhere" / "t.json")
    unwritten_text = str(unwritten.value).replace(f"{tmp_path}/", "")
    pinned("timelines", "unreadable", "\n".join([*texts, str(told.value), unwritten_text]))
