"""Output: tables for a terminal, plain text for a pipe, JSON for a script, progress for long work."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, Timer
from typing import TYPE_CHECKING

from ..base.log import listening
from ..pages.sections import Section, Table, cell_text, sections_to_json, sections_to_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID

PIPE_WIDTH, ANY_WIDTH = 120, 10_000
PATIENCE = 2.0  # seconds of silence before progress is shown


def show_sections(sections: Sequence[Section], as_json: bool) -> None:
    """Sections on standard output."""
    if as_json:
        show_json(sections_to_json(sections))
    elif sys.stdout.isatty():
        _show_rich(sections)
    else:
        sys.stdout.write(sections_to_text(sections))


def show_json(value: object) -> None:
    """One JSON value, indented."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def show_rendered(parts: Iterable[RenderableType]) -> None:
    """What rich draws, at a terminal or in a pipe."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    with reader_may_leave():
        for part in parts:
            console.print(part)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Rich leaves the process as failed where a pipe is closed; its reader has only seen enough."""
    try:
        yield
    except SystemExit:
        raise BrokenPipeError from None


def _show_rich(sections: Sequence[Section]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    for section in sections:
        if not isinstance(section, Table):
            console.print(f"[bold]{section.title}[/bold]", highlight=False)
            console.print("\n".join(section.lines), markup=False, highlight=False, soft_wrap=True)
            continue
        table = RichTable(title=section.title, title_justify="left")
        for index, name in enumerate(section.columns):
            is_number = all(isinstance(row[index], (int, float)) for row in section.rows)
            table.add_column(name, justify="right" if is_number else "left")
        for row in section.rows:
            table.add_row(*map(cell_text, row))
        if console.measure(table, options=console.options.update_width(ANY_WIDTH)).maximum > console.width:
            table.box, table.padding, table.pad_edge = SIMPLE_HEAD, (0, 0), False  # no lines between columns
        console.print(table, markup=False)


@contextmanager
def progress() -> Iterator[None]:
    """Shows tasks that run inside the block on standard error, once they last; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield
        return
    listener = ProgressListener()
    with listening(listener):
        try:
            yield
        finally:
            listener.close()


class ProgressListener:
    """Draws running tasks as bars after `PATIENCE` seconds; quick work draws nothing."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[int | None, int]] = {}
        self._bars: dict[str, TaskID] = {}
        self._progress: Progress | None = None
        self._lock = Lock()
        self._timer = Timer(PATIENCE, self._appear)
        self._timer.daemon = True
        self._timer.start()

    def started(self, title: str, total: int | None) -> None:
        with self._lock:
            self._running[title] = (total, 0)
            if self._progress is not None:
                self._bars[title] = self._progress.add_task(title, total=total)

    def advanced(self, title: str, done: int) -> None:
        with self._lock:
            self._running[title] = (self._running[title][0], done)
            if self._progress is not None:
                self._progress.update(self._bars[title], completed=done)

    def ended(self, title: str, seconds: float) -> None:
        with self._lock:
            self._running.pop(title, None)
            bar = self._bars.pop(title, None)
            if self._progress is not None and bar is not None:
                self._progress.remove_task(bar)

    def close(self) -> None:
        """Ends the drawing; no thread is left, so that a fork is safe afterwards."""
        self._timer.cancel()
        self._timer.join()
        if self._progress is not None:
            self._progress.stop()

    def _appear(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with self._lock:
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            for title, (total, done) in self._running.items():
                self._bars[title] = self._progress.add_task(title, total=total, completed=done)
            self._progress.start()
