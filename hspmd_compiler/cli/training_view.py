"""Steps of a running training, for a person at a terminal, for a log, or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress

Record = Mapping[str, object]

RANKS = "ranks"


class View(Protocol):
    """Shows the records of rank 0, in the launcher's process."""

    def show(self, record: Record) -> None: ...


@contextmanager
def view_for(as_json: bool, steps: int | None) -> Iterator[View]:
    """The view that fits the output; nothing is drawn, and no thread runs, before the first record."""
    if as_json:
        yield JsonLines()
    elif sys.stdout.isatty():
        bar = ProgressBar(steps)
        try:
            yield bar
        finally:
            bar.close()
    else:
        yield LogLines()


class JsonLines:
    """One JSON object per record."""

    def show(self, record: Record) -> None:
        print(json.dumps(record), flush=True)


class LogLines:
    """One line per record."""

    def show(self, record: Record) -> None:
        for line in record_lines(record):
            print(line, flush=True)


class ProgressBar:
    """The line of each step above a bar that moves on."""

    def __init__(self, steps: int | None) -> None:
        self._steps = steps
        self._progress: Progress | None = None

    def show(self, record: Record) -> None:
        progress = self._progress or self._start()
        for line in record_lines(record):
            progress.console.print(line, markup=False, highlight=False)
        if RANKS not in record:
            progress.advance(progress.tasks[0].id)

    def close(self) -> None:
        """Leaves the last state on the screen."""
        if self._progress is not None:
            self._progress.stop()

    def _start(self) -> Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        )
        self._progress.add_task("steps", total=self._steps)
        self._progress.start()
        return self._progress


def record_lines(record: Record) -> list[str]:
    """A record as text: where each rank runs, or one step."""
    if RANKS in record:
        places = record[RANKS]
        return [f"rank {rank}: {at}" for rank, at in enumerate(places)] if isinstance(places, list) else []
    return [step_line(record)]


def step_line(record: Record) -> str:
    """`step    3  epoch 0  loss 5.432100  lr 1.00e-03  |g| 1.234  0.123 s  512 tokens`."""
    parts = [
        f"step {record['step']:>5}  epoch {record['epoch']}",
        f"loss {record['loss']:.6f}",
        f"lr {record['lr']:.2e}",
        *([f"|g| {record['grad_norm']:.4f}"] if record["grad_norm"] is not None else []),
        f"{record['seconds']:.3f} s",
        f"{record['samples']} samples" if record["tokens"] is None else f"{record['tokens']} tokens",
    ]
    return "  ".join(parts)
