"""The launchers of a run as one of them sees them: who takes part, who is silent, who is gone."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic

from ....base.log import logger
from ....errors import RankLost
from ..messages import Beat
from .launcher_messages import Expelled, LauncherMessage, Standing, to_launcher_line
from .links import LauncherPlace, Link, has_ended
from .majority import may_go_on

BEAT_S = 0.5
ASLEEP_S = 1.0
"""A launcher that wasn't running itself for so long judges nobody by the silence of that time."""
TAKEN_PART = "the run has begun without it"


class LauncherMesh:
    """place: of this launcher. members: launchers that take part. devices: of each one's host.

    silent_s: until one that says nothing counts as lost.
    """

    def __init__(
        self,
        place: LauncherPlace,
        listener: socket.socket,
        links: Mapping[int, Link],
        devices: Mapping[int, tuple[int, ...]],
        silent_s: float,
    ) -> None:
        self.place = place
        self.links = dict(links)
        self.devices = devices
        self.members = set(devices)
        self._gone: set[int] = set()
        self._listener = listener
        self._silent_s = silent_s
        self._beat_at = self._looked_at = monotonic()
        listener.setblocking(False)

    @property
    def own(self) -> int:
        return self.place.number

    @property
    def others(self) -> list[int]:
        """Those who take part, but for this one."""
        return sorted(self.members - {self.own})

    @property
    def descriptors(self) -> list[int]:
        """What children must close: a copy would hide an end from the others."""
        links = [each.descriptor for each in self.links.values()]
        return [each for each in (self._listener.fileno(), *links) if each >= 0]

    def watched(self) -> dict[int, Callable[[], None]]:
        """By descriptor: what to do once it can be read."""
        links = [each for each in self.links.values() if each.is_open]
        return {self._listener.fileno(): self._refuse, **{each.descriptor: each.receive for each in links}}

    def launcher_of(self, device: int) -> int | None:
        """That takes part and has a device."""
        return next((each for each in sorted(self.members) if device in self.devices[each]), None)

    def tell(self, message: LauncherMessage) -> None:
        """All who take part."""
        for number in self.others:
            self.links[number].send(message)

    def attend(self) -> list[int]:
        """Beat, and send what is left; those who take part and are not heard any more."""
        now = monotonic()
        if now - self._beat_at >= BEAT_S:
            self._beat_at = now
            self.tell(Beat())
        for link in self.links.values():
            link.flush()
            if now - self._looked_at > ASLEEP_S:
                link.heard_at = now
        self._looked_at = now
        return [number for number in self.others if not self._is_heard(number, now)]

    def go_on_without(self, lost: list[int]) -> None:
        """Cut those off; RankLost where this side may be the smaller one."""
        before = set(self.members)
        for number in lost:
            logger.warning("the launcher at %s is lost, and its ranks with it", self.place.name(number))
            if not self.links[number].is_open and has_ended(self.place.addresses[number]):
                self._gone.add(number)
        here = before - set(lost)
        if not may_go_on(before, here, self._gone):
            raise RankLost(
                "this launcher has lost contact to those that may go on",
                details=[
                    (self.place.name(each), "heard" if each in here else self._doubt(each))
                    for each in sorted(before)
                ],
                rule="more than half of the launchers that may live go on; of two halves the one with the"
                " first of them: so no two go on apart",
                fix="look at the network and the hosts; start again from a checkpoint if nobody went on",
            )
        self.members = here
        for number in lost:
            self.cut(number, "it was silent for too long")

    def cut(self, number: int, why: str) -> None:
        """No longer listen to a launcher, and tell it so."""
        link = self.links[number]
        link.send(Expelled(why))
        link.close()

    def keep(self, standing: Standing) -> None:
        """Those that the decider goes on with; what others say has no effect."""
        for number in self.others:
            if number not in standing.launchers:
                self.members.discard(number)
                self.cut(number, "the deciding launcher goes on without it")

    def close(self) -> None:
        """Let go of all."""
        for link in self.links.values():
            link.flush()
            link.close()
        self._listener.close()

    def _is_heard(self, number: int, now: float) -> bool:
        link = self.links[number]
        return link.is_open and now - link.heard_at <= self._silent_s

    def _doubt(self, number: int) -> str:
        return "ended" if number in self._gone else "not heard, may live"

    def _refuse(self) -> None:
        """Whoever comes now is no part of the run; or it only looks whether somebody is here."""
        with suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            with connection, suppress(OSError):
                connection.send(to_launcher_line(Expelled(TAKEN_PART)))
