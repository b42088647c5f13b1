"""A device that stands for a slower one: it waits beside what it computes. Of ranks on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, sleep, thread_time


@dataclass(frozen=True, slots=True)
class SlowFrom:
    """From a moment on it takes so many times longer. step: behind so many steps; or seconds: of the run."""

    factor: float
    step: int | None = None
    seconds: float | None = None

    def is_due(self, steps: int, seconds: float) -> bool:
        """Whether the moment has come."""
        if self.step is not None:
            return steps >= self.step
        return self.seconds is not None and seconds >= self.seconds


class SlowDevice:
    """Makes steps longer, by what this thread has computed in the one before.

    moments: in their order. started: when the run began, by `monotonic`, which all processes of a host share.
    """

    def __init__(
        self,
        moments: Sequence[SlowFrom],
        started: float,
        clock: Callable[[], float] = monotonic,
        computed: Callable[[], float] = thread_time,
        wait: Callable[[float], None] = sleep,
    ) -> None:
        self._moments = moments
        self._started = started
        self._clock, self._computed, self._wait = clock, computed, wait
        self._until = computed()

    def before_step(self, step: int) -> None:
        """Wait for what the step before would have taken longer. step: about to be taken, from 1."""
        seconds = self._clock() - self._started
        due = [each.factor for each in self._moments if each.is_due(step - 1, seconds)]
        longer = (due[-1] - 1 if due else 0.0) * (self._computed() - self._until)
        if longer > 0:
            self._wait(longer)
        self._until = self._computed()
