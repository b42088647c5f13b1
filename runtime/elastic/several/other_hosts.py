"""Other hosts' ranks as the deciding launcher knows them: each stands in for a process of its own."""

from __future__ import annotations

import json
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from ....errors import RankLost
from ...failure import Failure
from ..members import LiveRank
from ..messages import Downward, Lines, NextGeneration, WorldMember, packed
from .launcher_messages import (
    Ended,
    Expelled,
    Following,
    FromRank,
    KillRank,
    KnownRank,
    LauncherMessage,
    RunOver,
    Spawn,
    Standing,
    ToRank,
)
from .links import Link
from .mesh import LauncherMesh
from .shared_files import SharedFiles

HEAR_S = 0.02


@dataclass(slots=True)
class RemoteProcess:
    """A process of another launcher, with what a launcher asks of one of its own."""

    member: WorldMember
    launcher: int
    where: str
    send: Callable[[RemoteProcess, Downward], None]
    end: Callable[[RemoteProcess], None]
    status: int | None = None
    lines: Lines = field(default_factory=Lines)
    told: bytes = b""
    descriptors: tuple[int, ...] = ()
    waited_for: tuple[int, ...] = ()

    def tell(self, message: Downward) -> None:
        """By its launcher."""
        self.send(self, message)

    def is_heard(self, ready: set[int]) -> bool:
        """Whether it has told something."""
        return bool(self.told)

    def has_ended(self, ready: set[int]) -> bool:
        """Whether its launcher has said so, or is gone itself."""
        return self.status is not None

    def read(self) -> bytes:
        """What it has told since."""
        told, self.told = self.told, b""
        return told

    read_all = read

    def kill(self) -> None:
        """By its launcher."""
        self.end(self)

    def bury(self) -> int:
        """How it ended."""
        return self.status or 0


class OtherHosts:
    """Of a run on several hosts, as its decider has them."""

    def __init__(self, mesh: LauncherMesh, files: SharedFiles) -> None:
        self._mesh = mesh
        self._files = files
        self._remote: dict[int, RemoteProcess] = {}
        self._told = Standing(())
        self._watched: set[int] = set()
        self.orders: list[NextGeneration] = []

    @property
    def descriptors(self) -> list[int]:
        """What children must close."""
        return self._mesh.descriptors

    @property
    def address(self) -> str:
        """Where all hosts reach this one."""
        return self._mesh.place.addresses[self._mesh.own][0]

    def has(self, device: int) -> bool:
        """Whether somebody who takes part has a device."""
        return self._mesh.launcher_of(device) is not None

    def spawn(self, member: WorldMember) -> RemoteProcess | None:
        """Start a process at its launcher; None where that is this one."""
        launcher = self._mesh.launcher_of(member.device)
        assert launcher is not None, "asked before"
        if launcher == self._mesh.own:
            return None
        self._mesh.links[launcher].send(Spawn(member))
        return self._stand_in(member, launcher)

    def attend(self, also: dict[int, Callable[[], None]]) -> None:
        """Hear the launchers. also: what the poll waits for, by descriptor."""
        lost = self._mesh.attend()
        self._deal()
        if lost:
            self._mesh.go_on_without(lost)
            self._bury(lost)
            self.say(self._told.next_id, self._told.respawns, self._told.shown)
        for descriptor in self._watched:
            also.pop(descriptor, None)
        watched = self._mesh.watched()
        also.update({descriptor: partial(self._hear, act) for descriptor, act in watched.items()})
        self._watched = set(watched)

    def say(self, next_id: int, respawns: int, shown: int) -> None:
        """What one who takes over must know."""
        standing = Standing(tuple(sorted(self._mesh.members)), next_id, respawns, shown)
        if standing != self._told:
            self._told = standing
            self._mesh.tell(standing)

    def gather(self, timeout_s: float) -> list[LiveRank]:
        """The ranks of all launchers that follow this one, which has taken over."""
        waiting = set(self._mesh.others)
        found: list[LiveRank] = []
        deadline = monotonic() + timeout_s
        while waiting:
            watched = self._mesh.watched()
            for descriptor in select.select([*watched], [], [], HEAR_S)[0]:
                watched[descriptor]()
            lost = [each for each in self._mesh.attend() if each in waiting]
            for number in sorted(waiting):
                self._first_words(self._mesh.links[number], waiting, found)
            lost = sorted(waiting) if monotonic() > deadline else [each for each in lost if each in waiting]
            if lost:
                self._mesh.go_on_without(lost)
                waiting -= set(lost)
        return found

    def over(self, error: BaseException | None) -> None:
        """Tell all how the run has ended."""
        self._mesh.tell(RunOver(None if error is None else Failure.of(error).to_json()))
        deadline = monotonic() + 1.0
        while monotonic() < deadline and any(self._mesh.links[each].is_open for each in self._mesh.others):
            watched = self._mesh.watched()
            for descriptor in select.select([*watched], [], [], HEAR_S)[0]:
                watched[descriptor]()
            self._mesh.attend()
        self._mesh.close()

    def _first_words(self, link: Link, waiting: set[int], found: list[LiveRank]) -> None:
        """Nothing but beats comes before it says that it follows."""
        while link.inbox and link.number in waiting:
            message = link.inbox.pop(0)
            self._check(message, link)
            if isinstance(message, Following):
                waiting.discard(link.number)
                found += [self._known(each, link.number) for each in message.ranks]
                self.orders += [self._files.found(each) for each in message.orders]

    def _known(self, known: KnownRank, launcher: int) -> LiveRank:
        process = self._stand_in(known.member, launcher)
        return LiveRank(known.member, process, monotonic(), known.halt, known.arrived)

    def _stand_in(self, member: WorldMember, launcher: int) -> RemoteProcess:
        where = self._mesh.place.name(launcher)
        process = RemoteProcess(member, launcher, where, self._tell, self._kill)
        self._remote[member.id] = process
        return process

    def _tell(self, process: RemoteProcess, message: Downward) -> None:
        link = self._mesh.links[process.launcher]
        if isinstance(message, NextGeneration):
            for file in self._files.to_send(message, process.launcher):
                link.send(file)
            message = self._files.named(message)
        link.send(ToRank(process.member.id, packed(message)))

    def _kill(self, process: RemoteProcess) -> None:
        self._mesh.links[process.launcher].send(KillRank(process.member.id))

    def _hear(self, receive: Callable[[], None]) -> None:
        """One that was given up while it slept hears that before it shows what its own ranks did."""
        receive()
        self._deal()

    def _deal(self) -> None:
        for number in self._mesh.others:
            link = self._mesh.links[number]
            for message in link.taken():
                self._check(message, link)
                process = self._remote.get(getattr(message, "id", -1))
                if process is None or process.launcher != number:
                    continue
                if isinstance(message, FromRank):
                    process.told += json.dumps(message.message).encode() + b"\n"
                elif isinstance(message, Ended):
                    process.status = message.status

    def _check(self, message: LauncherMessage, link: Link) -> None:
        if isinstance(message, Expelled):
            raise expelled(self._mesh.place.name(link.number), message)
        if isinstance(message, RunOver) and message.failure is not None:
            raise Failure.from_json(message.failure).error(
                f"the launcher at {self._mesh.place.name(link.number)}"
            )

    def _bury(self, launchers: list[int]) -> None:
        for process in self._remote.values():
            if process.launcher in launchers and process.status is None:
                process.status = int(signal.SIGKILL)


def expelled(who: str, message: Expelled) -> RankLost:
    """What ends a launcher that the others have given up."""
    return RankLost(
        "the other launchers go on without this one",
        details=[(who, message.why)],
        rule="a launcher that is silent for --elastic-silence is given up, with its ranks",
        fix="look at the network, or whether the host was too busy; choose a longer --elastic-silence",
    )
