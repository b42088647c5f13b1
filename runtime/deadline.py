"""Calls into a library that may never return, with an end."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


class NoAnswer(RuntimeError):
    """A call has not returned in time; its thread is left behind."""


def within(seconds: float, work: Callable[[], Result]) -> Result:
    """What `work` returns or raises, or NoAnswer where it takes longer."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise NoAnswer(f"no answer within {seconds:.0f} s")
    return results[0]
