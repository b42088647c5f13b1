"""An exception of one rank as data, so that its launcher can tell it as that rank's."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .. import errors
from ..errors import HspmdError, RankLost, RunError
from .transport import PeerLost


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a rank. is_consequence: the rank only lost contact to one that had failed.

    kind: name of an HspmdError, "" for any other exception.
    """

    kind: str
    what: str
    at: tuple[str, ...] = ()
    details: tuple[tuple[str, str], ...] = ()
    rule: str = ""
    fix: str = ""
    is_consequence: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        if isinstance(error, HspmdError):
            return cls(
                type(error).__name__,
                error.what,
                error.at,
                error.details,
                error.rule,
                error.fix,
                isinstance(error, PeerLost),
            )
        text = " ".join("".join(traceback.format_exception_only(error)).split())
        return cls("", text, details=(("trace", _trace(error)),))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        at = tuple(data["at"])
        details = tuple((name, text) for name, text in data["details"])
        return cls(**{**data, "at": at, "details": details})

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def error(self, who: str) -> HspmdError:
        """The error to raise; `who` names the rank that failed."""
        kind = PeerLost if self.is_consequence else getattr(errors, self.kind or "RankFailed", RunError)
        what = self.what if self.kind else f"{who} failed: {self.what}"
        told = ("told by", who) if issubclass(kind, RankLost) else ("rank", who.removeprefix("rank "))
        details = [*self.details, told] if self.kind else self.details
        built = kind(what, at=self.at, details=details, rule=self.rule, fix=self.fix)
        assert isinstance(built, HspmdError), "only errors of ours are named by kind"
        return built


def _trace(error: BaseException) -> str:
    """The innermost calls, innermost last, in one line."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " > ".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
