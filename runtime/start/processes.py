"""Starts the ranks of this host and watches them: one that fails ends all, and is named."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, sleep

from ..failure import Failure
from .rank_process import Child, Emit, LocalRank, RankBody, start

READ_SIZE = 1 << 16
POLL_SECONDS = 0.05
CAUSE_SECONDS = 3.0  # how long a lost connection waits for the failure that caused it
END_SECONDS = 2.0  # how long a rank gets to end before it is killed


def run_ranks(ranks: Sequence[int], body: RankBody, on_record: Emit) -> None:
    """Run `body` in one forked process per rank until all are done; records come to `on_record` here.

    The first failure ends all ranks within seconds and is raised as that rank's. A rank that only
    lost its connection is blamed when no other failure shows up. The caller must not have started
    threads or process groups.
    """
    life = os.pipe()
    children: list[Child] = []
    try:
        for index, rank in enumerate(ranks):
            children.append(start(LocalRank(rank, index), body, life, children))
        _Watch(children, on_record).until_done()
    finally:
        _end(children)
        for descriptor in (*life, *(child.channel for child in children)):
            os.close(descriptor)


class _Watch:
    """Reads the children's pipes until all are done or one has failed."""

    def __init__(self, children: list[Child], on_record: Emit) -> None:
        self._children = children
        self._on_record = on_record
        self._consequence: tuple[float, Child, Failure] | None = None
        self._selector = selectors.DefaultSelector()
        for child in children:
            self._selector.register(child.channel, selectors.EVENT_READ, child)

    def until_done(self) -> None:
        """Return when every child is done; raise the failure that came first."""
        with self._selector:
            while any(child.status is None for child in self._children):
                for key, _ in self._selector.select(POLL_SECONDS):
                    self._read(key.data)
                for child in self._children:
                    _reap(child)
                self._judge()
        if self._consequence is not None:
            _, child, failure = self._consequence
            raise failure.error(child.name)

    def _read(self, child: Child) -> None:
        """Everything that a child has written so far."""
        while child.channel in self._selector.get_map():
            try:
                data = os.read(child.channel, READ_SIZE)
            except BlockingIOError:
                return
            if not data:
                self._selector.unregister(child.channel)
            for record in child.take(data):
                self._on_record(record)

    def _judge(self) -> None:
        """Raise a failure that is a cause; remember the first that is a consequence for a while."""
        for child in self._children:
            if child.status is not None:
                self._read(child)
            failure = child.death()
            if failure is None:
                continue
            if not failure.is_consequence:
                raise failure.error(child.name)
            if self._consequence is None:
                self._consequence = (monotonic(), child, failure)
        if self._consequence is not None and monotonic() - self._consequence[0] > CAUSE_SECONDS:
            _, child, failure = self._consequence
            raise failure.error(child.name)


def _reap(child: Child) -> None:
    if child.status is None:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            child.status = status


def _end(children: Sequence[Child]) -> None:
    """End every child that still runs: asked first, then killed."""
    _signal(children, signal.SIGTERM)
    deadline = monotonic() + END_SECONDS
    while any(child.status is None for child in children) and monotonic() < deadline:
        for child in children:
            _reap(child)
        sleep(0.01)
    _signal(children, signal.SIGKILL)
    for child in children:
        if child.status is None:
            _, child.status = os.waitpid(child.pid, 0)


def _signal(children: Sequence[Child], number: signal.Signals) -> None:
    for child in children:
        if child.status is None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)
