"""A rank's watch: sees to it that a call which can't succeed ends on every rank, with the cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Event, Thread
from time import monotonic
from typing import Any

from ...base.log import logger
from ...errors import RankLost, RunError
from ..ending import end_process
from ..transport import PeerLost
from .calls import (
    Calls,
    all_at,
    error_from_json,
    error_to_json,
    failed,
    late,
    silence,
    unlike_calls,
)
from .post import GOODBYE_S, Mailbox, Post

JUDGE_S = 0.25
HEARING_S = 2.5


@dataclass(frozen=True, slots=True)
class Limits:
    """silent_s: until a silent or late rank is told of. end_s: until a silent rank ends all.

    grace_s: for the main thread to come out of a call by itself.
    """

    silent_s: float = 10.0
    end_s: float = 300.0
    grace_s: float = 3.0


class Watch:
    """Announces this rank's calls, and hears of those of the others by the store.

    A verdict, the error that ends the run on all ranks, is raised by the call that this rank is in, or by the
    next one. Where the call never returns, as in a collective whose member is stopped, the process
    is ended. places: where each rank is, for people.
    """

    def __init__(
        self, store: Mailbox, rank: int, places: Sequence[str], limits: Limits | None = None
    ) -> None:
        self._rank = rank
        self._places = places
        self._limits = limits or Limits()
        self._calls = Calls()
        self._depth = 0
        self._met = 0
        self._verdict: RunError | None = None
        self._waited_for = ""
        self._changed = Condition()
        self._closed = Event()
        self._heard = monotonic()
        self._root_left = self._all_left = False
        self._told: set[object] = set()
        self._since: dict[int, tuple[Calls, float]] = {}
        self._post = Post(store, rank, len(places), self._message, self._hear)
        self._judge = Thread(target=self._judging, name="hspmd-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._post.start()
        self._judge.start()

    @contextmanager
    def call(self, name: str, meets: bool = True) -> Iterator[None]:
        """See Transport."""
        if self._depth == 0:
            self._begin(name, meets)
        self._depth += 1
        try:
            yield
        except PeerLost as lost:
            raise self._cause(lost) from None
        finally:
            self._depth -= 1
            if self._depth == 0:
                with self._changed:
                    self._calls = self._calls.returned()

    def close(self, failure: str = "") -> None:
        """Tell the others that no more calls come, and why if by an error; watch no more.

        Rank 0, at whose store all meet, gives the others a moment to close, too.
        """
        if self._closed.is_set():
            return
        self._post.hurry(True)
        with self._changed:
            self._calls = self._calls.left(failure)
            if self._rank == 0:
                self._changed.wait_for(lambda: self._all_left, GOODBYE_S)
        self._closed.set()
        self._post.close()
        self._judge.join(JUDGE_S + JUDGE_S)

    def _begin(self, name: str, meets: bool) -> None:
        with self._changed:
            if self._verdict is not None:
                raise self._verdict
            self._calls = self._calls.begun(name)
            number = self._calls.number
        if meets:
            self._meet(number)

    def _meet(self, number: int) -> None:
        """Wait until every rank has begun this call."""
        self._post.hurry(True)
        try:
            with self._changed:
                came = self._changed.wait_for(
                    lambda: self._verdict is not None or self._met >= number,
                    self._limits.end_s + HEARING_S,  # a rank that is silent is known by then
                )
                verdict = self._verdict
        finally:
            self._post.hurry(False)
        if verdict is None and came:
            return
        with self._changed:
            self._calls = self._calls.returned()
        raise verdict or RankLost(
            f"not every rank came to {self._calls.name_of(number)} within {self._limits.end_s:.0f} s",
            details=[("waited for", self._waited_for or "not known")],
            rule="all ranks call the same methods in the same order",
        )

    def _cause(self, lost: PeerLost) -> RunError:
        """The verdict on a call that lost contact, or the error with what is known of the others."""
        with self._changed:
            self._changed.wait_for(lambda: self._verdict is not None, HEARING_S)
            if self._verdict is not None:
                return self._verdict
        if not self._waited_for:
            return lost
        details = [*lost.details, ("waited for", self._waited_for)]
        return PeerLost(lost.what, details=details, rule=lost.rule, fix="look what it does there")

    # In the thread of the post

    def _message(self) -> Mapping[str, Any]:
        with self._changed:
            return {"calls": self._calls.to_json()}

    def _hear(self, messages: Sequence[Mapping[str, Any]], since: Sequence[float]) -> Mapping[str, Any]:
        if self._rank == 0:
            return self._hear_all(messages, since)
        (summary,) = messages
        with self._changed:
            self._heard = since[0]
            self._met = summary.get("met", 0)
            self._waited_for = summary.get("late", "")
            self._root_left = summary.get("left", False)
            if summary.get("verdict") is not None and self._verdict is None:
                self._verdict = error_from_json(summary["verdict"])
            self._changed.notify_all()
        return {}

    def _hear_all(self, messages: Sequence[Mapping[str, Any]], since: Sequence[float]) -> Mapping[str, Any]:
        now = monotonic()
        ranks = [Calls.from_json(said["calls"]) if "calls" in said else Calls() for said in messages]
        quiet = {
            rank: now - heard
            for rank, heard in enumerate(since)
            if now - heard > self._limits.silent_s and not ranks[rank].has_left
        }
        verdict = failed(ranks) or unlike_calls(ranks) or self._judged_silent(quiet)
        behind = self._late(ranks, now, quiet)
        with self._changed:
            self._heard = now
            self._verdict = self._verdict or verdict
            self._all_left = all(calls.has_left for calls in ranks)
            self._waited_for = "; ".join(f"rank {rank}, which {ranks[rank].place}" for rank in behind)
            if verdict is None:
                self._met = all_at(ranks)
            self._changed.notify_all()
            return {
                "met": self._met,
                "late": self._waited_for,
                "left": self._calls.has_left,
                "verdict": None if self._verdict is None else error_to_json(self._verdict),
            }

    def _judged_silent(self, quiet: Mapping[int, float]) -> RankLost | None:
        """Say once who is silent; the verdict if it is for too long."""
        for rank, seconds in quiet.items():
            self._say(("silent", rank), self._silent_text(rank, seconds))
        gone = [rank for rank, seconds in quiet.items() if seconds > self._limits.end_s]
        return silence(gone, quiet[gone[0]], self._limits.end_s) if gone else None

    def _late(self, ranks: Sequence[Calls], now: float, quiet: Mapping[int, float]) -> list[int]:
        """Ranks that others wait for; those that let them wait for long are told of once a call."""
        for rank, calls in enumerate(ranks):
            if rank not in self._since or self._since[rank][0] != calls:
                self._since[rank] = (calls, now)
        behind = late(ranks)
        waiting = [self._since[rank][1] for rank, calls in enumerate(ranks) if calls.is_inside]
        for rank in behind:
            waits = now - max(self._since[rank][1], min(waiting))
            if waits > self._limits.silent_s and rank not in quiet:
                text = f"rank {rank} ({self._places[rank]}) lets the others wait: it {ranks[rank].place}"
                self._say((rank, ranks[rank].number), text)
        return behind

    # In the thread of the judge

    def _judging(self) -> None:
        while not self._closed.wait(JUDGE_S):
            with self._changed:
                seconds = monotonic() - self._heard
                if seconds > self._limits.silent_s and not self._root_left:
                    self._root_is_silent(seconds)
                verdict, number = self._verdict, self._inside()
            if verdict is not None and number:
                self._end(verdict, number)

    def _root_is_silent(self, seconds: float) -> None:
        if self._rank == 1:  # the others would say the same
            self._say(("silent", 0), self._silent_text(0, seconds))
        if seconds > self._limits.end_s and self._verdict is None:
            self._verdict = silence([0], seconds, self._limits.end_s)
            self._changed.notify_all()

    def _inside(self) -> int:
        return self._calls.number if self._calls.is_inside else 0

    def _end(self, verdict: RunError, number: int) -> None:
        """Give the main thread time to come out of its call; end the process if it can't."""
        if not self._closed.wait(self._limits.grace_s) and self._inside() == number:
            end_process(verdict)

    def _silent_text(self, rank: int, seconds: float) -> str:
        left = max(self._limits.end_s - seconds, 0)
        return (
            f"rank {rank} ({self._places[rank]}) has said nothing for {seconds:.0f} s;"
            f" it ends the run if it stays silent for {left:.0f} s more"
        )

    def _say(self, key: object, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            logger.warning("%s", text)
