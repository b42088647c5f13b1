"""The page of a step in headless Chromium: what is drawn where, what a mouse and keys bring about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hspmd_compiler.base.timeline import MemoryPoint, Span, SpanKind, Timeline
from hspmd_compiler.pages.timeline.kinds import LOOKS
from hspmd_compiler.pages.timeline_page import write_timeline_page
from tests.pages.browser import Connection, Page, browser, chromium
from tests.timelines import two_pipelines, with_tensor_parallel

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium here: the page is not looked at")

GUTTER, AXIS, HEAD, ROW, LANE = 190, 24, 20, 41, 18
"""Pixels of the drawing: beside and above the rows, a group's head, a rank's row, one of its two lanes."""
ESTIMATED = two_pipelines("estimated", micro_batches=6)
MEASURED = two_pipelines("measured", {3: 1.4}, micro_batches=6)
CAPACITY = {0: 900_000_000, 2: 600_000_000}


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def page(connection: Connection) -> Iterator[Page]:
    opened = Page(connection)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "step.html"
    write_timeline_page(path, ESTIMATED, MEASURED, title="two pipelines", capacity=CAPACITY)
    return path


def opened(page: Page, file: Path, section: str = "timeline", dark: bool = False) -> None:
    """The file with one section at the top of the window."""
    page.open(file, dark=dark)
    page.run(f"document.getElementById('{section}').scrollIntoView()")
    page.settle()


def corner(page: Page, section: str = "timeline") -> tuple[float, float]:
    """Where the canvas of a section begins in the window."""
    box = f"document.querySelector('#{section} canvas').getBoundingClientRect()"
    x, y = page.run(f"[{box}.left, {box}.top]")
    return x, y


def stretch(page: Page) -> tuple[float, float]:
    """The seconds that are shown."""
    low, high = page.run("[timelinePage.view.low / 1e9, timelinePage.view.high / 1e9]")
    return low, high


def place(page: Page, span: Span, lane: int, share: float = 0.5) -> tuple[float, float]:
    """Where a span's part is in the window."""
    return placing(page)(span, lane, share)


def placing(page: Page) -> Callable[[Span, int, float], tuple[float, float]]:
    """Places in the window by the scale that the axis has; each rank is a group of its own."""
    (left, top), (low, high) = corner(page), stretch(page)
    width = page.run("document.querySelector('#timeline .rows').clientWidth") - GUTTER - 8

    def put(span: Span, lane: int, share: float) -> tuple[float, float]:
        time_s = span.start_s + span.length_s * share
        x = left + GUTTER + (time_s - low) / (high - low) * width
        return x, top + AXIS + span.rank * (HEAD + ROW) + HEAD + 3 + lane * LANE + 3

    return put


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def assert_drawn(page: Page) -> None:
    """Each span that is in sight and wider than a few pixels has its kind's colour near both of its ends."""
    low, high = stretch(page)
    put, parting = placing(page), dashed(page)
    points, kinds = [], []
    for lane, line in enumerate((ESTIMATED, MEASURED)):
        for span in line.spans:
            inside = low < span.start_s and span.end_s < high
            if inside and span.length_s > 0.008 * (high - low):
                # the red frame around where they part is two pixels wide
                points += [put(span, lane, share) for share in (0.25, 0.75)]
                kinds += [span.kind] * 2
    assert len(points) > 50
    colours = {rgb(look.colour) for kind, look in LOOKS.items() if kind is not SpanKind.WAIT}
    for kind, (x, _), seen in zip(kinds, points, page.pixels(points), strict=True):
        if abs(x - parting) < 2:
            continue
        if kind is SpanKind.WAIT:
            assert seen not in colours
        else:
            assert seen == rgb(LOOKS[kind].colour), (kind, x)


def dashed(page: Page) -> float:
    """Where the line stands at which they part."""
    at = page.run("timelinePage.spans.x(timelinePage.data.marks[0].times[0][1])")
    return corner(page)[0] + float(at)


def test_every_span_is_where_its_time_is(page: Page, file: Path) -> None:
    opened(page, file)
    assert stretch(page) == pytest.approx((0, MEASURED.end_s))
    assert_drawn(page)
    assert page.errors == []


def test_nothing_is_asked_of_a_network(page: Page, file: Path) -> None:
    opened(page, file)
    assert page.asked == [file.as_uri()]


def test_after_a_step_there_is_nothing(page: Page, file: Path) -> None:
    """The estimated lane ends before the measured one, on one scale."""
    opened(page, file)
    after = Span(0, ESTIMATED.end_s, MEASURED.end_s, SpanKind.OTHER)
    points = [place(page, after, 0), (10, 10)]
    assert page.pixels(points) == [(255, 255, 255)] * 2


def test_hovering_tells_what_a_bar_is(page: Page, file: Path) -> None:
    opened(page, file)
    span = next(s for s in MEASURED.of(3) if s.kind is SpanKind.BACKWARD and s.mb == 2)
    page.mouse("Moved", *place(page, span, 1))
    assert page.run("document.querySelector('.tip').innerText.split('\\n')") == [
        "backward of micro-batch 2",
        "rank 3, RTX 3090, pipeline 1, stage 1, measured",
        f"takes 112 ms: from {span.start_s * 1e3:.0f} ms to {span.end_s * 1e3:.0f} ms",
        f"instruction {span.position}",
        "estimated: 80.0 ms",
    ]
    sending = next(s for s in ESTIMATED.of(1) if s.kind is SpanKind.SEND)
    page.mouse("Moved", *place(page, sending, 0))
    told = page.run("document.querySelector('.tip').innerText")
    assert "67.1 MB\nwith rank 0" in told
    page.mouse("Moved", 5, 5)
    assert page.run("document.querySelector('.tip').hidden")


def test_the_wheel_zooms_at_the_pointer(page: Page, file: Path) -> None:
    opened(page, file)
    span = next(s for s in ESTIMATED.of(2) if s.kind is SpanKind.BACKWARD and s.mb == 2)
    x, y = place(page, span, 0)
    page.mouse("Wheel", x, y, deltaX=0, deltaY=-900)
    low, high = stretch(page)
    assert 0.1 < (high - low) / MEASURED.end_s < 0.5
    assert place(page, span, 0)[0] == pytest.approx(x, abs=4)  # a mouse is at whole pixels
    assert_drawn(page)
    page.mouse("Wheel", x, y, deltaX=0, deltaY=5000)
    assert stretch(page) == pytest.approx((0, MEASURED.end_s))


def test_buttons_and_dragging_move_and_zoom(page: Page, file: Path) -> None:
    opened(page, file)

    def click(text: str) -> tuple[float, float]:
        page.run(
            f"[...document.querySelectorAll('.tools button')].find(b => b.innerText === '{text}').click()"
        )
        page.settle()
        return stretch(page)

    low, high = click("+")
    assert high - low == pytest.approx(MEASURED.end_s / 2)
    assert click("▶")[0] == pytest.approx(low + (high - low) / 4)
    assert click("◀")[0] == pytest.approx(low)
    x, y = corner(page)
    page.drag(x + 600, y + 60, -100, 0)
    assert stretch(page)[0] == pytest.approx(low + (high - low) * 100 / (1248 - GUTTER - 10), rel=0.02)
    assert_drawn(page)
    low, high = click("−")
    assert high - low == pytest.approx(MEASURED.end_s)
    click("+")
    assert click("whole step") == pytest.approx((0, MEASURED.end_s))


def test_marks_lead_to_where_they_part(page: Page, file: Path) -> None:
    opened(page, file)
    texts = page.run("[...document.querySelectorAll('.marks button')].map(b => b.innerText)")
    assert texts[0].startswith("first: rank 3, forward of micro-batch 1 ")
    assert texts[1].startswith("differs most: rank 3, backward of micro-batch 0 ")
    page.run("document.querySelectorAll('.marks button')[1].click()")
    page.settle()
    low, high = stretch(page)
    spans = [s for line in (ESTIMATED, MEASURED) for s in line.of(3) if s.mb == 0 and s.position == 7]
    assert low < min(span.start_s for span in spans)
    assert max(span.end_s for span in spans) < high < low + 1
    (x, y), span = place(page, spans[-1], 1, 0.0), spans[-1]
    assert span.kind is SpanKind.BACKWARD
    assert page.pixels([(x, y + 4)]) == [rgb("#d0021b")]


def test_keys_do_what_the_mouse_does(page: Page, file: Path) -> None:
    opened(page, file)
    page.run("document.querySelector('#timeline canvas').focus()")
    page.press("ArrowRight")
    heard = "document.querySelector('#timeline .heard').textContent"
    assert page.run(heard).startswith(
        "forward of micro-batch 0\nrank 0, A100, pipeline 0, stage 0, estimated"
    )
    page.press("ArrowRight")
    assert page.run(heard).startswith("send of micro-batch 0")
    page.press("ArrowDown")
    assert ", measured\n" in page.run(heard)
    page.press("ArrowDown")
    assert "\nrank 1, A100, pipeline 0, stage 1, estimated" in page.run(heard)
    page.press("+")
    low, high = stretch(page)
    assert high - low == pytest.approx(MEASURED.end_s / 2)
    page.press("ArrowRight", shift=True)
    assert stretch(page)[0] > low
    page.press("0")
    assert stretch(page) == pytest.approx((0, MEASURED.end_s))


def test_memory_beyond_a_device_is_red(page: Page, file: Path) -> None:
    """Rank 2 has 600 MB and holds more, rank 0 does not come near its 900 MB."""
    opened(page, file, "memory")
    left, top = corner(page, "memory")
    full = [(left + 600, top + AXIS + rank * 60 + HEAD + 20) for rank in (0, 2)]
    assert page.pixels(full) == [rgb("#6aa5c9")] * 2
    peak = max((p for p in ESTIMATED.memory if p.rank == 2), key=lambda point: point.bytes)
    assert peak.bytes > CAPACITY[2]
    assert page.run("timelinePage.memory.textAt(600, 24 + 2 * 60 + 30)").endswith("its device has 600 MB")
    told = page.run("timelinePage.memory.textAt(600, 24 + 30)")
    assert f"at most {max(p.bytes for p in ESTIMATED.memory if p.rank == 0) / 1e6:.0f} MB" in told
    reds = [(left + x, top + AXIS + 2 * 60 + HEAD + 8) for x in range(250, 1000, 3)]
    assert rgb("#d0021b") in page.pixels(reds)


def test_a_cell_of_the_matrix(page: Page, file: Path) -> None:
    opened(page, file, "matrix")
    left, top = corner(page, "matrix")
    cell, gutter = page.run("[timelinePage.matrix.cell, 84]")

    def middle(source: int, target: int) -> tuple[float, float]:
        return left + gutter + (target + 0.5) * cell, top + gutter + (source + 0.5) * cell

    sent, nothing = page.pixels([middle(0, 1), middle(1, 4)])
    assert nothing == (255, 255, 255)
    assert sent[2] > sent[0] + 60
    page.mouse("Moved", *middle(0, 1))
    assert page.run("document.querySelector('.tip').innerText") == "rank 0 sends 403 MB\nto rank 1"


def test_dark(page: Page, file: Path) -> None:
    opened(page, file, dark=True)
    after = Span(0, ESTIMATED.end_s, MEASURED.end_s, SpanKind.OTHER)
    assert page.pixels([(5, 5), place(page, after, 0)]) == [rgb("#14181f")] * 2


EVIL = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'>"


def test_no_label_is_markup(page: Page, tmp_path: Path) -> None:
    spans = tuple(replace(span, label=EVIL) for span in ESTIMATED.spans)
    labels = {rank: f"rank {rank}: {EVIL}, pipeline 0 stage {rank}" for rank in ESTIMATED.ranks}
    line = replace(ESTIMATED, spans=spans, labels=labels)
    write_timeline_page(tmp_path / "evil.html", line, title=EVIL, facts=((EVIL, EVIL),))
    opened(page, tmp_path / "evil.html")
    assert page.run("typeof window.hurt") == "undefined"
    assert page.errors == []
    assert page.asked == [(tmp_path / "evil.html").as_uri()]
    assert page.run("document.querySelector('h1').innerText") == EVIL
    assert page.run("document.querySelectorAll('img').length") == 0
    x, y = corner(page)
    page.mouse("Moved", x + GUTTER + 5, y + AXIS + HEAD + 8)
    assert EVIL in page.run("document.querySelector('.tip').innerText")


def test_a_thousand_ranks(page: Page, tmp_path: Path) -> None:
    """Few elements, one rank of each stage first, and the last of all ranks after scrolling."""
    stages = tuple(0.02 + 0.003 * (number % 5) for number in range(8))
    small = two_pipelines("estimated", micro_batches=8, forwards_s=(stages,) * 16)
    line = with_tensor_parallel(small, 8)
    assert len(line.ranks) == 1024
    write_timeline_page(tmp_path / "large.html", line)
    opened(page, tmp_path / "large.html")
    assert page.run("document.querySelectorAll('*').length") < 4000
    rows = "timelinePage.spans.items.filter(item => item.row !== undefined).length"
    assert page.run(rows) == 128
    page.run("document.querySelector('.tools input').click()")
    page.settle()
    assert page.run(rows) == 1024
    page.run("document.querySelector('#timeline .rows').scrollTop = 1e9")
    page.settle()
    x, y = corner(page)
    height = page.run("document.querySelector('#timeline .rows').clientHeight")
    told = page.run(f"timelinePage.spans.textAt({GUTTER} + 500, {height} - 15)")
    assert "rank 1023" in told
    (seen,) = page.pixels([(x + GUTTER + 500, y + height - 15)])
    assert seen != (255, 255, 255)


def test_one_timeline_and_little_to_show(page: Page, tmp_path: Path) -> None:
    """A rank without a label or memory, a step without length, and none at all."""
    one = Timeline("measured", (Span(7, 0.0, 2.0, SpanKind.FORWARD, mb=0), Span(7, 2.0, 2.0, SpanKind.SEND)))
    empty = Timeline("estimated", (), (MemoryPoint(0, 0.0, 5),))
    for number, line in enumerate((one, empty, Timeline("estimated", ()))):
        write_timeline_page(tmp_path / f"{number}.html", line)
        opened(page, tmp_path / f"{number}.html")
        assert page.errors == []
