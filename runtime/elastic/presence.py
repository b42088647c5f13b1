"""Which devices are there when: what a launcher makes happen, to replay what a cluster does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Presence:
    """From a moment on, exactly these devices are there. Either after so many steps or so many seconds."""

    devices: frozenset[int]
    after_step: int | None = None
    after_s: float | None = None

    def is_due(self, step: int, seconds: float) -> bool:
        """Whether the moment has come."""
        return (self.after_step is not None and step >= self.after_step) or (
            self.after_s is not None and seconds >= self.after_s
        )


class PresenceSchedule:
    """Moments in order; each happens once."""

    def __init__(self, moments: Sequence[Presence] = ()) -> None:
        self._left = list(moments)

    def due(self, step: int, seconds: float) -> Presence | None:
        """The next moment if it has come."""
        if self._left and self._left[0].is_due(step, seconds):
            return self._left.pop(0)
        return None
