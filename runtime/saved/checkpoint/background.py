"""Work beside training, in a thread of its own: what it came to, or why it failed."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar

from ....errors import HspmdError

T = TypeVar("T")


class BackgroundWork(Generic[T]):
    """Runs `work(is_given_up)` at once. A thread of it never keeps a process alive.

    value: what it came to. problem: why it failed, empty if it hasn't.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], T]) -> None:
        self.value: T | None = None
        self.problem = ""
        self._given_up = Event()
        self._thread = Thread(target=self._run, args=(work,), name="hspmd-checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> None:
        """Until it is over, or for at most so long."""
        self._thread.join(seconds)

    def give_up(self) -> None:
        """Tell it to end early."""
        self._given_up.set()

    def _run(self, work: Callable[[Callable[[], bool]], T]) -> None:
        try:
            self.value = work(self._given_up.is_set)
        except HspmdError as error:
            self.problem = "; ".join([error.what, *(text for _, text in error.details)])
        except BaseException as error:  # nobody else hears of it
            self.problem = f"{type(error).__name__}: {error}"
