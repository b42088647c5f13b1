"""A launcher that another one decides for: it starts and watches its ranks, and passes on what is said.

Where the decider is lost, it turns to the next launcher that takes part, or is that one itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....base.log import logger
from ....errors import RunError
from ...failure import Failure
from ..agent import Tell
from ..forked import Writer, fork
from ..members import START_S, LiveRank, LiveRanks
from ..messages import Downward, NextGeneration, Upward, WorldMember, packed, unpacked
from .launcher_messages import (
    Ended,
    Expelled,
    Following,
    FromRank,
    KillRank,
    KnownRank,
    LauncherMessage,
    RunOver,
    SentFile,
    Spawn,
    Standing,
    ToRank,
)
from .mesh import LauncherMesh
from .other_hosts import expelled
from .shared_files import SharedFiles

POLL_S = 0.02


class PassedRanks(LiveRanks):
    """Ranks of a launcher that passes on what they tell."""

    def __init__(self, silent_s: float, start_s: float, tell: Callable[[int, Upward], None]) -> None:
        super().__init__(silent_s, lambda record: None, start_s)
        self._pass_on = tell

    def _note(self, rank: LiveRank, message: Upward | Downward) -> None:
        self._keep(rank, message)
        self._pass_on(rank.member.id, message)  # type: ignore[arg-type]  # ranks tell nothing else


@dataclass(frozen=True, slots=True)
class Inherited:
    """What one who takes over has. ranks: its own. orders: that it has passed on."""

    ranks: dict[int, LiveRank]
    orders: tuple[NextGeneration, ...]
    standing: Standing


class Follower:
    """body: lives as a rank. silent_s: until a rank that says nothing is killed; start_s: one that
    has said nothing yet."""

    def __init__(
        self,
        mesh: LauncherMesh,
        files: SharedFiles,
        body: Callable[[int, int, Tell], None],
        silent_s: float,
        start_s: float = START_S,
    ) -> None:
        self._mesh = mesh
        self._files = files
        self._body = body
        self._ranks = PassedRanks(
            silent_s, start_s, lambda id, message: self._up(FromRank(id, packed(message)))
        )
        self._orders: dict[int, NextGeneration] = {}
        self._standing = Standing(tuple(sorted(mesh.members)))
        self._decider = min(mesh.members)

    def follow(self) -> Inherited | None:
        """Until the run is over, or this one is to decide."""
        inherited = None
        try:
            inherited = self._follow()
        finally:
            if inherited is None:
                self._end()
        return inherited

    def _follow(self) -> Inherited | None:
        while self._decider != self._mesh.own:
            self._ranks.also = self._mesh.watched()
            for rank in self._ranks.poll(POLL_S):
                self._up(Ended(rank.member.id, rank.process.bury()))
            lost = self._mesh.attend()
            for message in self._mesh.links[self._decider].taken():
                if self._obeyed(message):
                    return None
            if self._decider in lost:
                self._turn([each for each in lost if not self._mesh.links[each].is_open])
        self._ranks.also = {}
        return Inherited(self._ranks.alive, tuple(self._orders.values()), self._standing)

    def _obeyed(self, message: LauncherMessage) -> bool:
        try:
            return self._obey(message)
        except ValueError as error:
            raise RunError(
                "the deciding launcher sends what is no order",
                details=[(self._mesh.place.name(self._decider), str(error))],
                rule="an order names files of the artifact, of checkpoints, or that were sent and are whole",
                fix="look whether all hosts run the same version, and what else reaches this port",
            ) from error

    def _obey(self, message: LauncherMessage) -> bool:
        """Whether the run is over."""
        if isinstance(message, RunOver):
            if message.failure is not None:
                raise Failure.from_json(message.failure).error("the deciding launcher")
            return True
        if isinstance(message, Expelled):
            raise expelled(self._mesh.place.name(self._decider), message)
        if isinstance(message, Standing):
            self._standing = message
            self._mesh.keep(message)
        elif isinstance(message, Spawn):
            self._spawn(message.member)
        elif isinstance(message, SentFile):
            self._files.take(message)
        elif isinstance(message, ToRank | KillRank) and message.id in self._ranks.alive:
            self._command(self._ranks.alive[message.id], message)
        return False

    def _command(self, rank: LiveRank, message: ToRank | KillRank) -> None:
        if isinstance(message, KillRank):
            rank.process.kill()
            return
        told: Downward = unpacked(message.message)
        if isinstance(told, NextGeneration):
            told = self._files.found(told)
            rank.halt = None
            self._orders = {at: each for at, each in self._orders.items() if at >= told.held}
            self._orders[told.generation] = told
        rank.process.tell(told)

    def _turn(self, closed: list[int]) -> None:
        """To the first of those that are left."""
        lost = sorted({self._decider, *closed})
        self._mesh.go_on_without(lost)
        self._decider = min(self._mesh.members)
        if self._decider == self._mesh.own:
            logger.warning("this launcher decides now")
            return
        known = tuple(KnownRank(each.member, each.halt, each.arrived) for each in self._ranks.alive.values())
        self._up(Following(known, tuple(self._files.named(each) for each in self._orders.values())))

    def _up(self, message: LauncherMessage) -> None:
        self._mesh.links[self._decider].send(message)

    def _spawn(self, member: WorldMember) -> None:
        process = fork(
            lambda control, told: self._body(member.id, control, Writer(told)),
            [*self._ranks.descriptors, *self._mesh.descriptors],
        )
        self._ranks.add(member, process)

    def _end(self) -> None:
        for rank in self._ranks.alive.values():
            rank.process.kill()
        for rank in self._ranks.alive.values():
            rank.process.bury()
        self._mesh.close()
