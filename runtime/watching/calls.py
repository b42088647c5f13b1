"""What ranks tell of the methods they call, and what follows from all of it; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...base.by_key import by_key
from ...base.number_ranges import number_ranges
from ...errors import HspmdError, RankLost, RunError
from ..transport import PeerLost

REMEMBERED = 8
ENDED = "has ended"
NOT_CALLED = "nothing yet"


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one rank, counted from 1. history: (first number, name) of the latest runs of equal names.

    is_inside: the last one has not returned. has_left: no more will come. failure: why, if by an error.
    """

    number: int = 0
    history: tuple[tuple[int, str], ...] = ()
    is_inside: bool = False
    has_left: bool = False
    failure: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calls:
        return cls(**{**data, "history": tuple((first, name) for first, name in data["history"])})

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def begun(self, name: str) -> Calls:
        """One call more."""
        number, history = self.number + 1, self.history
        if not history or history[-1][1] != name:
            history = (*history, (number, name))[-REMEMBERED:]
        return Calls(number, history, True)

    def returned(self) -> Calls:
        """The last call is over."""
        return replace(self, is_inside=False)

    def left(self, failure: str = "") -> Calls:
        """This rank makes no more calls."""
        return replace(self, is_inside=False, has_left=True, failure=failure)

    def name_of(self, number: int) -> str | None:
        """The name of a call, None where it is not made, or not remembered."""
        if number > self.number:
            return ENDED if self.has_left else None
        return next((name for first, name in reversed(self.history) if first <= number), None)

    @property
    def place(self) -> str:
        """Where this rank is, in words."""
        if self.has_left:
            return ENDED
        name = self.name_of(self.number)
        if name is None:
            return f"has called {NOT_CALLED}"
        return (
            f"is in its call {self.number}, {name}"
            if self.is_inside
            else (f"is outside of its engine, after its call {self.number}, {name}")
        )


def unlike_calls(ranks: Sequence[Calls]) -> RunError | None:
    """The error where ranks call different methods, or one goes on where another has ended."""
    starts = {first for calls in ranks for first, _ in calls.history}
    ends = {calls.number + 1 for calls in ranks if calls.has_left}
    for number in sorted(starts | ends):
        names = {
            rank: name for rank, calls in enumerate(ranks) if (name := calls.name_of(number)) is not None
        }
        ranks_of = by_key((name, rank) for rank, name in names.items())
        if len(ranks_of) > 1:
            return RunError(
                "the ranks call different methods of their engines",
                details=[(_ranks(those), f"{name} (call {number})") for name, those in ranks_of.items()],
                rule="all ranks call the same methods in the same order, and take the same number of steps",
                fix="call it on every rank; let every rank's data have as many batches",
            )
    return None


def failed(ranks: Sequence[Calls]) -> PeerLost | None:
    """The error, a consequence, where ranks have ended by an error of their own."""
    found = [(f"rank {rank}", calls.failure) for rank, calls in enumerate(ranks) if calls.failure]
    if not found:
        return None
    return PeerLost(
        f"{found[0][0]} failed: {found[0][1]}", details=found[1:], fix="its own message says more"
    )


def all_at(ranks: Iterable[Calls]) -> int:
    """The latest call that every rank has begun."""
    return min(calls.number for calls in ranks)


def late(ranks: Sequence[Calls]) -> list[int]:
    """Ranks that have not come to a call in which others are."""
    furthest = max((calls.number for calls in ranks if calls.is_inside), default=0)
    return [rank for rank, calls in enumerate(ranks) if calls.number < furthest and not calls.has_left]


def silence(ranks: Sequence[int], seconds: float, limit_s: float) -> RankLost:
    """The error for ranks that have said nothing for too long."""
    return RankLost(
        f"{_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} said nothing for {seconds:.0f} s",
        rule=f"a rank that is silent for {limit_s:.0f} s ends all (--timeout, or load(timeout=))",
        fix="look whether its process is stopped, its machine gone, or the network between cut",
    )


def error_to_json(error: HspmdError) -> dict[str, object]:
    """An error for all ranks as data."""
    return {
        "kind": type(error).__name__,
        "what": error.what,
        "details": list(error.details),
        "rule": error.rule,
        "fix": error.fix,
    }


def error_from_json(data: Mapping[str, Any]) -> RunError:
    """Undo `error_to_json`."""
    kind = {each.__name__: each for each in (PeerLost, RankLost)}.get(data["kind"], RunError)
    details = [(name, text) for name, text in data["details"]]
    return kind(data["what"], details=details, rule=data["rule"], fix=data["fix"])


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {number_ranges(ranks)}"
