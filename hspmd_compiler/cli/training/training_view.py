"""Steps of a running training, for a person at a terminal, for a log, or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from ...base.number_ranges import number_ranges
from ...pages.units import bytes_text
from .checkpoint_flags import CHECKPOINT, RESUMED
from .elastic_flags import COPIES, REGROUP
from .switch_flags import SWITCHED, UNREACHED

if TYPE_CHECKING:
    from rich.progress import Progress

Record = Mapping[str, object]

PHASES = ("halted", "chosen", "groups", "state")
"""Of a change of the ranks."""
RANKS, LEFT_OUT = "ranks", "left_out"


class TrainingView(Protocol):
    """Shows the records of rank 0, in the launcher's process."""

    def show(self, record: Record) -> None: ...

    def close(self) -> None:
        """Say what is to be said at the end."""


@contextmanager
def view_for(as_json: bool, steps: int | None, draws: bool = True) -> Iterator[TrainingView]:
    """The view that fits the output; nothing is drawn, and no thread runs, before the first record.

    draws: False for who starts processes later, too: no thread may ever run then.
    """
    for_people = ProgressBar(steps) if draws and sys.stdout.isatty() else LogLines()
    view: TrainingView = JsonLines() if as_json else for_people
    try:
        yield view
    finally:
        view.close()


class JsonLines:
    """One JSON object per record."""

    def show(self, record: Record) -> None:
        print(json.dumps(record), flush=True)

    def close(self) -> None:
        """See View."""


class LogLines:
    """One line per record."""

    def __init__(self) -> None:
        self._text = RecordText()

    def show(self, record: Record) -> None:
        for line in self._text.lines(record):
            print(line, flush=True)

    def close(self) -> None:
        """See View."""
        for line in self._text.summary():
            print(line, flush=True)


class ProgressBar:
    """The line of each step above a bar that moves on."""

    def __init__(self, steps: int | None) -> None:
        self._steps = steps
        self._text = RecordText()
        self._progress: Progress | None = None

    def show(self, record: Record) -> None:
        progress = self._progress or self._start()
        for line in self._text.lines(record):
            progress.console.print(line, markup=False, highlight=False)
        if "step" in record:
            progress.advance(progress.tasks[0].id)

    def close(self) -> None:
        """Leaves the last state on the screen."""
        if self._progress is not None:
            for line in self._text.summary():
                self._progress.console.print(line, markup=False, highlight=False)
            self._progress.stop()

    def _start(self) -> Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        )
        self._progress.add_task("steps", total=self._steps)
        self._progress.start()
        return self._progress


class RecordText:
    """Records as text: where each rank runs, a step, and once that samples at an epoch's end are left out."""

    def __init__(self) -> None:
        self._left_out = 0

    def lines(self, record: Record) -> list[str]:
        """The lines of one record."""
        if RANKS in record:
            places = record[RANKS]
            return (
                [f"rank {rank}: {at}" for rank, at in enumerate(places)] if isinstance(places, list) else []
            )
        news, resumed = record.get(CHECKPOINT), record.get(RESUMED)
        if isinstance(news, dict):
            return [checkpoint_line(news)]
        if isinstance(resumed, dict):
            return [resumed_line(resumed)]
        switched = record.get(SWITCHED)
        if isinstance(switched, dict):
            return [switch_line(switched)]
        change = record.get(REGROUP)
        if isinstance(change, dict):
            return [regroup_line(change)]
        copies = record.get(COPIES)
        if isinstance(copies, dict):
            return [copies_line(copies)]
        if UNREACHED in record:
            return [unreached_line(record)]
        left = record.get(LEFT_OUT)
        if not isinstance(left, dict):
            return [step_line(record)]
        was_told, self._left_out = self._left_out > 0, left["total"]
        text = f"the last {left['samples']} samples of epoch {left['epoch']} fill no batch and are left out"
        return [] if was_told else [f"warning: {text}"]

    def summary(self) -> list[str]:
        """What is said at the end."""
        return [f"left out in all: {self._left_out} samples"] if self._left_out else []


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


def switch_line(switched: Record) -> str:
    """`before step 10: from A to B, 12.3 MB moved, 0.045 s`."""
    moved = bytes_text(float(str(switched["moved_bytes"])))
    ends = f"from {switched['source']} to {switched['target']}"
    return f"before step {switched['step']}: {ends}, {moved} moved, {switched['seconds']:.3f} s"


def regroup_line(change: Record) -> str:
    """Who went and came, and how long it took until the first step after it, by phase."""
    gone, come = (number_ranges(change[key]) for key in ("lost", "joined"))  # type: ignore[arg-type]
    who = [*([f"lost device {gone}"] if gone else []), *([f"device {come} joined"] if come else [])]
    phases = ", ".join(f"{phase} {change[f'{phase}_s']:.3f}" for phase in PHASES)
    moved = bytes_text(float(str(change["bytes_moved"])))
    note = f" ({change['note']})" if change["note"] else ""
    return (
        f"{', '.join(who)}: goes on under {change['strategy']}{note},"
        f" {change['resumed_s']:.3f} s to the next step ({phases}), {moved} moved"
    )


def copies_line(copies: Record) -> str:
    """How many lost ranks need no checkpoint, and what that costs."""
    survived, wanted = copies["survived"], copies["wanted"]
    who = f"no {survived} lost ranks need"
    if survived in (0, 1):
        who = "no lost rank needs" if survived else "a lost rank needs"
    memory, sent = (bytes_text(float(str(copies[key]))) for key in ("memory_bytes", "step_bytes"))
    text = f"copies: {who} a checkpoint; up to {memory} a rank, {sent} a step over all ranks"
    return (
        text if survived == wanted else f"warning: {text}; {wanted} were wanted, and there are too few ranks"
    )


def unreached_line(record: Record) -> str:
    """That switches were asked for before steps that the run has not taken."""
    switches, taken = record[UNREACHED], record["taken"]
    assert isinstance(switches, list) and isinstance(taken, list)
    told = ", ".join(f"{step}:{name}" for step, name in switches)
    return f"warning: the run took steps {taken[0]} to {taken[1]}, and made no switch {told}"


def checkpoint_line(news: Record) -> str:
    """What becomes of a checkpoint."""
    if news["is_late"]:
        return f"warning: the checkpoint due after step {news['step']} waits for the one before"
    if news["problem"]:
        return f"warning: there is no checkpoint of step {news['step']}: {news['problem']}"
    took = f"{news['seconds']:.3f} s, of which training waited {news['copied_s']:.3f} s"
    return f"checkpoint of step {news['step']}: {news['size_bytes']:,} bytes in {took}"


def resumed_line(resumed: Record) -> str:
    """From where training goes on, or from where it can't."""
    if resumed["problem"]:
        return f"warning: {resumed['folder']} can't be used: {resumed['problem']}"
    return f"goes on from {resumed['folder']}" if resumed["folder"] else "no checkpoint yet: begins anew"
