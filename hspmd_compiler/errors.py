"""The one family of errors: what clashes, at which user line, which rule, how to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

USER_MISTAKE = 2
OUR_FAILURE = 1


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, or its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


class HspmdError(Exception):
    """A message in four parts; `str()` is the text that the CLI prints.

    what: one line, what clashes. at: user lines. details: (name, text) rows that show the values.
    rule: the rule that is broken. fix: what the user can do about it.
    """

    exit_code = USER_MISTAKE

    def __init__(
        self,
        what: str,
        *,
        at: str | Iterable[str] = (),
        details: Sequence[tuple[str, str]] = (),
        rule: str = "",
        fix: str = "",
    ) -> None:
        self.what = what
        self.at = (at,) if isinstance(at, str) else tuple(at)
        self.details = tuple(details)
        self.rule = rule
        self.fix = fix
        super().__init__(self.text())

    def text(self) -> str:
        """The message, one part a line, parts that are empty left out."""
        width = max([4, *(len(name) for name, _ in self.details)])
        lines = [f"{type(self).__name__}: {self.what}"]
        lines += [f"  {'at':<{width}} {line}" for line in self.at if line]
        lines += [f"  {name:<{width}} {text}" for name, text in self.details]
        lines += [f"  {'rule':<{width}} {self.rule}"] if self.rule else []
        lines += [f"  {'fix':<{width}} {self.fix}"] if self.fix else []
        return "\n".join(lines)


class TraceError(HspmdError):
    """The model can't be captured as one exact graph."""


class AnnotationError(HspmdError):
    """A sharding annotation is ill-typed or can't be read."""


class StrategyError(HspmdError):
    """A strategy breaks a rule, or doesn't fit the model."""


class ClusterError(HspmdError):
    """A cluster description breaks a rule."""


class EstimateError(HspmdError):
    """A price can't be worked out from what is given."""


class DeduceError(HspmdError):
    """An annotation can't be deduced for an operator."""


class RuleMissing(DeduceError):
    """An operator has no rule."""


class ArtifactError(HspmdError):
    """An artifact is missing, damaged, of another version, or of another model."""


class SwitchError(HspmdError):
    """There is no switch between two strategies, or not of what is left of the first."""


class TimelineError(HspmdError):
    """A file of a timeline can't be read or written, or lacks the timeline that is asked for."""


class VerifyError(HspmdError):
    """The rank programs do not fit together, or compute another number."""

    exit_code = OUR_FAILURE


class OptionError(HspmdError):
    """An option has a value that it can't have."""


class RunError(HspmdError):
    """A run can't start, or a rank of it died."""


class RankLost(RunError):
    """A rank died, was stopped, or can't be reached."""

    exit_code = OUR_FAILURE


class RankFailed(RunError):
    """A rank ended by an exception that nobody expected."""

    exit_code = OUR_FAILURE


class InternalError(HspmdError):
    """A failure of ours."""

    exit_code = OUR_FAILURE
