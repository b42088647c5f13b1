"""The program for the devices that are left, chosen by a child of the launcher, ahead where there is time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from ...base.typed import read
from ...errors import HspmdError
from ..failure import Failure
from .forked import Process, Writer, fork
from .messages import Failed, ToldRecord

NICE = 10


@dataclass(frozen=True, slots=True)
class Situation:
    """What there is to go on with. devices: of the processes alive, by world rank of the next generation.

    program, strategy: whose state is held, empty where nobody holds any. held_as: by world rank, the rank of
    that program whose state the process has, None where it has none. stale: world ranks that have only what
    they own of this step. copies: file of the copies that were kept beside, empty without; copied_as: as
    `held_as`, the world rank whose copies the process has.
    """

    devices: tuple[int, ...]
    program: str = ""
    strategy: str = ""
    held_as: tuple[int | None, ...] = ()
    stale: tuple[int, ...] = ()
    copies: str = ""
    copied_as: tuple[int | None, ...] = ()

    def without(self, device: int) -> Situation:
        """The same once the process of a device is lost."""
        lost = self.devices.index(device)
        kept = [rank for rank in range(len(self.devices)) if rank != lost]
        return replace(
            self,
            devices=tuple(self.devices[rank] for rank in kept),
            held_as=tuple(self.held_as[rank] for rank in kept),
            stale=tuple(rank - (rank > lost) for rank in self.stale if rank != lost),
            copied_as=tuple(of for rank, of in enumerate(self.copied_as) if rank != lost),
        )

    def renewed(self, device: int) -> Situation:
        """The same once the process of a device is replaced by a new one, which has nothing."""
        lost = self.devices.index(device)
        held_as = tuple(None if rank == lost else own for rank, own in enumerate(self.held_as))
        copied_as = tuple(None if rank == lost else of for rank, of in enumerate(self.copied_as))
        stale = tuple(rank for rank in self.stale if rank != lost)
        return replace(self, held_as=held_as, stale=stale, copied_as=copied_as)


@dataclass(frozen=True, slots=True)
class Successor:
    """A program for a situation. members: world rank by rank of the program. plan: file with the moves.

    restored: file with the moves out of copies, empty where all comes from who trains it. copies: file of
    those that are kept under the program. missing: (parameter, what nobody has of it). note: how it was
    found, for people.
    """

    program: str
    strategy: str
    members: tuple[int, ...]
    plan: str = ""
    restored: str = ""
    copies: str = ""
    missing: tuple[tuple[str, str], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Found:
    """number: of the situation among those that were asked for."""

    number: int
    successor: Successor


Choose = Callable[[Situation], Successor]


class Chooser:
    """Runs `choose` in children, one at a time. Successors stay known by their situation.

    is_over: the child has no more to tell.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._known: dict[Situation, Successor] = {}
        self._asked: list[Situation] = []
        self.process: Process | None = None
        self.is_over = False

    @property
    def descriptors(self) -> list[int]:
        """What other children must close."""
        return [] if self.process is None else self.process.descriptors

    def known(self, situation: Situation) -> Successor | None:
        """What was found for it."""
        return self._known.get(situation)

    def begin(self, situations: Sequence[Situation], closing: Iterable[int], in_background: bool) -> None:
        """Find successors of these in a child, where none is at work. See `take`."""
        self._asked = [each for each in situations if each not in self._known]
        if self._asked:
            asked = list(self._asked)
            self.process = fork(lambda _, told: self._find(asked, told, in_background), closing, False)

    def take(self) -> HspmdError | None:
        """Hear what the child has found; the error of one that has failed."""
        process = self.process
        if process is None:
            return None
        data = process.read()
        self.is_over = data == b""
        for message in process.lines.take(data or b""):
            if isinstance(message, ToldRecord):
                found = read(_Found, message.record)
                self._known[self._asked[found.number]] = found.successor
            elif isinstance(message, Failed):
                self.is_over = True
                return Failure.from_json(message.failure).error("the search for a program")
        return None

    def end(self) -> None:
        """End the child."""
        if self.process is not None:
            self.process.kill()
            self.process.bury()
            self.process = None

    def _find(self, asked: Sequence[Situation], told: int, in_background: bool) -> None:
        if in_background:
            with suppress(OSError):
                os.nice(NICE)
        tell = Writer(told)
        for number, situation in enumerate(asked):
            try:
                tell(ToldRecord(asdict(_Found(number, self._choose(situation)))))
            except Exception:
                if not in_background:
                    raise  # else it is told when it happens
