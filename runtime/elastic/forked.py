"""Processes of a launcher: forked, watched by pidfd, told and heard by pipes; they end with it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

from ..failure import Failure
from .messages import Downward, Failed, Lines, Upward, to_line

READ_SIZE = 1 << 16


@dataclass(slots=True)
class Process:
    """A child. pidfd: readable once it has ended. heard: read end of what it tells. control: write end of
    what it is told, -1 where it is told nothing."""

    pid: int
    pidfd: int
    heard: int
    control: int = -1
    status: int | None = None
    lines: Lines = field(default_factory=Lines)

    @property
    def descriptors(self) -> list[int]:
        return [each for each in (self.pidfd, self.heard, self.control) if each >= 0]

    @property
    def waited_for(self) -> list[int]:
        """What a launcher waits for."""
        return [self.heard, self.pidfd]

    @property
    def where(self) -> str:
        """For people."""
        return f"pid {self.pid}"

    def is_heard(self, ready: set[int]) -> bool:
        """Whether it has told something. ready: descriptors that can be read."""
        return self.heard in ready

    def has_ended(self, ready: set[int]) -> bool:
        """Whether it has ended."""
        return self.pidfd in ready

    def tell(self, message: Downward) -> None:
        """Write to it; one that has ended hears nothing."""
        with suppress(BrokenPipeError):
            os.write(self.control, to_line(message))

    def read(self) -> bytes | None:
        """What it has written since, b"" at the end, None where there is nothing yet."""
        try:
            return os.read(self.heard, READ_SIZE)
        except BlockingIOError:
            return None

    def read_all(self) -> bytes:
        """All that it has written, where it has ended."""
        parts = []
        while part := self.read():
            parts.append(part)
        return b"".join(parts)

    def kill(self) -> None:
        """SIGKILL, which a stopped process obeys, too."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it since this was asked."""
        with suppress(ChildProcessError):  # it has ended
            return os.waitid(os.P_PIDFD, self.pidfd, os.WSTOPPED | os.WNOHANG) is not None
        return False

    def bury(self) -> int:
        """Wait for its end, let go of everything; how it ended."""
        if self.status is None:
            _, self.status = os.waitpid(self.pid, 0)
            for descriptor in self.descriptors:
                os.close(descriptor)
        return self.status


def fork(body: Callable[[int, int], None], closing: Iterable[int], is_told: bool = True) -> Process:
    """Run `body(control, heard)` in a child, which ends with it. closing: descriptors that it must not keep.

    A copy of the write end of another's pipe would hide the end of the launcher from that other.
    """
    heard, told = os.pipe()
    control, order = os.pipe() if is_told else (-1, -1)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        for descriptor in (told, control):
            if descriptor >= 0:
                os.close(descriptor)
        os.set_blocking(heard, False)
        return Process(pid, os.pidfd_open(pid), heard, order)
    code = 1
    try:
        for descriptor in (heard, order, *closing):
            if descriptor >= 0:
                os.close(descriptor)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher takes Ctrl-C and ends all
        for number in (signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(number)):  # the launcher's own
                signal.signal(number, signal.SIG_DFL)
        body(control, told)
        code = 0
    except BaseException as error:
        with suppress(OSError):
            Writer(told)(Failed(Failure.of(error).to_json()))
        if not isinstance(error, Exception):
            traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Writer:
    """Writes messages to a pipe, whole, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = Lock()

    def __call__(self, message: Upward) -> None:
        line = to_line(message)
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]
