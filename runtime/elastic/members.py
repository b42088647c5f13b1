"""The processes of a launcher that are alive, and what they have told: one poll hears all of them."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from ...base.log import logger
from ..failure import Failure
from .messages import Arrived, Downward, Failed, Halt, Lines, ToldRecord, Upward, WorldMember

ASLEEP_S = 1.0
"""A launcher that wasn't running itself for so long judges nobody by the silence of that time."""

START_S = 120.0
"""Until the first sign of life; a busy machine is slow to start a process."""

Record = dict[str, object]


class RankProcess(Protocol):
    """A process that a launcher watches, of its own or of another's. where: for people. ready: descriptors
    that can be read."""

    status: int | None
    lines: Lines

    @property
    def where(self) -> str: ...

    @property
    def descriptors(self) -> Sequence[int]: ...

    @property
    def waited_for(self) -> Sequence[int]: ...

    def tell(self, message: Downward) -> None: ...

    def is_heard(self, ready: set[int]) -> bool: ...

    def has_ended(self, ready: set[int]) -> bool: ...

    def read(self) -> bytes | None: ...

    def read_all(self) -> bytes: ...

    def kill(self) -> None: ...

    def bury(self) -> int: ...


@dataclass(slots=True)
class LiveRank:
    """A process as its launcher knows it. heard_at: its last beat, or its start. is_starting: it has told
    nothing yet. arrived: where it came to last."""

    member: WorldMember
    process: RankProcess
    heard_at: float
    halt: Halt | None = None
    arrived: Arrived | None = None
    is_starting: bool = False

    @property
    def name(self) -> str:
        return f"device {self.member.device} ({self.process.where})"


class LiveRanks:
    """Who is alive. silent_s: whoever doesn't beat for so long is killed, so that it is gone in fact.

    start_s: as long for whoever has given no sign of life yet.
    also: (descriptor, what to do once it can be read), beside those of the members.
    """

    def __init__(
        self, silent_s: float, on_record: Callable[[Record], None], start_s: float = START_S
    ) -> None:
        self.alive: dict[int, LiveRank] = {}
        self.also: dict[int, Callable[[], None]] = {}
        self._silent_s = silent_s
        self._start_s = max(start_s, silent_s)
        self._on_record = on_record
        self._polled_at = monotonic()

    @property
    def descriptors(self) -> list[int]:
        """What a new child must close."""
        return [each for rank in self.alive.values() for each in rank.process.descriptors]

    def add(self, member: WorldMember, process: RankProcess) -> None:
        self.alive[member.id] = LiveRank(member, process, monotonic(), is_starting=True)

    def tell(self, message: Downward, only: Iterable[int] | None = None) -> None:
        """Tell all, or only these."""
        for id in list(self.alive) if only is None else only:
            if id in self.alive:
                self.alive[id].process.tell(message)

    def poll(self, wait_s: float) -> list[LiveRank]:
        """Hear what there is, for at most so long; those that have died since."""
        ready = self._ready(wait_s)
        for descriptor, act in list(self.also.items()):
            if descriptor in ready:
                act()
        for rank in list(self.alive.values()):
            if rank.process.is_heard(ready):
                self._hear(rank, rank.process.read())
        self._fence()
        dead = [rank for rank in self.alive.values() if rank.process.has_ended(ready)]
        for rank in dead:
            self._hear(rank, rank.process.read_all())
            rank.process.bury()
            del self.alive[rank.member.id]
        return dead

    def _ready(self, wait_s: float) -> set[int]:
        """Descriptors that can be read. Not epoll: its own descriptor would be every child's, too."""
        with selectors.PollSelector() as selector:
            for rank in self.alive.values():
                for descriptor in rank.process.waited_for:
                    selector.register(descriptor, selectors.EVENT_READ)
            for descriptor in self.also:
                selector.register(descriptor, selectors.EVENT_READ)
            return {key.fd for key, _ in selector.select(wait_s)}

    def _hear(self, rank: LiveRank, data: bytes | None) -> None:
        if not data:
            return
        rank.heard_at, rank.is_starting = monotonic(), False
        for message in rank.process.lines.take(data):
            self._note(rank, message)

    def _note(self, rank: LiveRank, message: Upward | Downward) -> None:
        self._keep(rank, message)
        if isinstance(message, ToldRecord):
            self._on_record(message.record)
        elif isinstance(message, Failed):
            raise Failure.from_json(message.failure).error(f"rank on {rank.name}")

    @staticmethod
    def _keep(rank: LiveRank, message: Upward | Downward) -> None:
        if isinstance(message, Halt):
            rank.halt = message
        elif isinstance(message, Arrived):
            rank.arrived = message

    def _fence(self) -> None:
        now = monotonic()
        if now - self._polled_at > ASLEEP_S:
            for rank in self.alive.values():
                rank.heard_at = now
        self._polled_at = now
        for rank in self.alive.values():
            if now - rank.heard_at > (self._start_s if rank.is_starting else self._silent_s):
                logger.warning("%s has been silent for %.1f s: killed", rank.name, now - rank.heard_at)
                rank.process.kill()
                rank.heard_at = now


def how_it_ended(rank: LiveRank) -> str:
    """For people."""
    status = rank.process.status or 0
    if os.WIFSIGNALED(status):
        return f"died with signal {os.WTERMSIG(status)}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)} before it was done"
