"""What the launcher asks of children, while it hears all ranks: a program for what is left, a checkpoint.

A child that a signal has stopped is killed, and another one is asked: nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...base.log import logger
from ...errors import RankLost
from ..failure import Failure
from .choosing import Chooser, Situation, Successor
from .forked import Process, Writer, fork
from .members import LiveRank, LiveRanks
from .messages import Failed, ToldRecord

FOLDER = "folder"
Newest = Callable[[int], str]
"""The newest whole checkpoint of at most so many steps, "" where there is none."""


@dataclass
class AskedCheckpoint:
    """A child that looks for one. found: its folder, once it has told."""

    process: Process
    found: str | None = None

    def hear(self) -> None:
        """Take what it has told."""
        data = self.process.read()
        for message in self.process.lines.take(data or b""):
            if isinstance(message, ToldRecord):
                self.found = str(message.record[FOLDER])
            elif isinstance(message, Failed):
                raise Failure.from_json(message.failure).error("the search for a checkpoint")
        if data == b"" and self.found is None:
            raise RankLost("the process that searches for a checkpoint died", fix="look for its own message")


@dataclass
class Searches:
    """members: whose poll hears the children, too. descriptors: what a child must not keep. poll: hears
    all, for a moment; those that have died."""

    chooser: Chooser
    members: LiveRanks
    descriptors: Callable[[], list[int]]
    poll: Callable[[], list[LiveRank]]

    def successor(self, situation: Situation) -> Successor | None:
        """What to go on with, None where one more has died while it was searched for."""
        known = self.chooser.known(situation)
        if known is None:
            self._find([situation], in_background=False)
        while known is None:
            if self.poll():
                return None
            known = self.chooser.known(situation)
            process = self.chooser.process
            if known is None and process is None:
                raise RankLost("the process that searches for a program died", fix="look for its own message")
            if known is None and process is not None and process.is_stopped:
                logger.warning("the search for a program (%s) is stopped: begun anew", process.where)
                self._find([situation], in_background=False)
        return known

    def prepare(self, situations: Sequence[Situation]) -> None:
        """Find what follows them, while training runs."""
        self._find(situations, in_background=True)

    def checkpoint(self, newest: Newest, steps: int) -> str | None:
        """What `newest` says, which may read long; None where one has died meanwhile."""
        asked = self._asked(newest, steps)
        try:
            while asked.found is None:
                if self.poll():
                    return None
                if asked.found is None and asked.process.is_stopped:
                    logger.warning(
                        "the search for a checkpoint (%s) is stopped: begun anew", asked.process.where
                    )
                    self._leave(asked)
                    asked = self._asked(newest, steps)
            return asked.found
        finally:
            self._leave(asked)

    def end(self) -> None:
        """End all children."""
        self.chooser.end()

    def _asked(self, newest: Newest, steps: int) -> AskedCheckpoint:
        def body(_: int, told: int) -> None:
            Writer(told)(ToldRecord({FOLDER: newest(steps)}))

        asked = AskedCheckpoint(fork(body, self.descriptors(), False))
        self.members.also[asked.process.heard] = asked.hear
        return asked

    def _leave(self, asked: AskedCheckpoint) -> None:
        self.members.also.pop(asked.process.heard, None)
        asked.process.kill()
        asked.process.bury()

    def _find(self, situations: Sequence[Situation], in_background: bool) -> None:
        if self.chooser.process is not None:
            self.members.also.pop(self.chooser.process.heard, None)
        self.chooser.end()
        self.chooser.begin(situations, self.descriptors(), in_background)
        if self.chooser.process is not None:
            self.members.also[self.chooser.process.heard] = self._heard

    def _heard(self) -> None:
        process = self.chooser.process
        assert process is not None, "it is listened to"
        error = self.chooser.take()
        if self.chooser.is_over:
            self.members.also.pop(process.heard, None)
            self.chooser.end()
        if error is not None:
            raise error
