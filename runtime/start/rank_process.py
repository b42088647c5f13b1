"""A rank as a forked child: runs its body, reports through a pipe, dies with its parent."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .. import ending
from ..failure import Failure

Record = Mapping[str, object]
Emit = Callable[[Record], None]
RECORD, FAILED, DONE = "record", "failed", "done"


@dataclass(frozen=True, slots=True)
class LocalRank:
    """A rank and its index among the ranks of this host."""

    rank: int
    local_index: int


RankBody = Callable[[LocalRank, Emit], None]


@dataclass(slots=True)
class Child:
    """A forked rank as its parent sees it: `channel` is the read end of its pipe."""

    rank: int
    pid: int
    channel: int
    buffer: bytes = b""
    is_done: bool = False
    failure: Failure | None = None
    status: int | None = None

    @property
    def name(self) -> str:
        return f"rank {self.rank} (pid {self.pid})"

    def take(self, data: bytes) -> list[Record]:
        """Records in what the child wrote; failure and end are noted."""
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        records: list[Record] = []
        for line in lines:
            ((kind, content),) = json.loads(line).items()
            if kind == RECORD:
                records.append(content)
            elif kind == FAILED:
                self.failure = self.failure or Failure.from_json(content)
            else:
                self.is_done = True
        return records

    def death(self) -> Failure | None:
        """Why a child that has ended is a failure, if it is one."""
        if self.failure is not None or self.status is None or (self.is_done and self.status == 0):
            return self.failure
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            how = f"died with signal {number} ({signal.Signals(number).name})"
        else:
            how = f"ended with exit code {os.waitstatus_to_exitcode(self.status)} before it was done"
        return Failure("RankLost", f"{self.name} {how}")


def start(local: LocalRank, body: RankBody, life: tuple[int, int], others: list[Child]) -> Child:
    """Fork a rank. life: a pipe whose write end only the parent keeps; when it closes, the rank exits."""
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(write_end)
        os.set_blocking(read_end, False)
        return Child(local.rank, pid, read_end)
    code = 1
    try:
        for descriptor in (read_end, life[1], *(other.channel for other in others)):
            os.close(descriptor)
        code = _live(local, body, life[0], write_end)
    finally:
        os._exit(code)


def _live(local: LocalRank, body: RankBody, life: int, channel: int) -> int:
    """The child's life; its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent takes Ctrl-C and ends its ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_die_with_parent, args=(life,), daemon=True).start()
    ending.tell = lambda error: _write(channel, FAILED, Failure.of(error).to_json())
    try:
        body(local, lambda record: _write(channel, RECORD, record))
    except BaseException as error:
        _write(channel, FAILED, Failure.of(error).to_json())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    _write(channel, DONE, None)
    return 0


def _die_with_parent(life: int) -> None:
    os.read(life, 1)
    os._exit(1)


def _write(channel: int, kind: str, content: object) -> None:
    line = json.dumps({kind: content}).encode() + b"\n"
    while line:
        line = line[os.write(channel, line) :]
