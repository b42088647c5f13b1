"""Progress of long work, told to whoever listens: the libraries say what they do, the CLI shows it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import Protocol

logger = logging.getLogger("hspmd_compiler")


class Listener(Protocol):
    """Shows running tasks to a person. A task without a known total has `total` None."""

    def started(self, title: str, total: int | None) -> None: ...

    def advanced(self, title: str, done: int) -> None: ...

    def ended(self, title: str, seconds: float) -> None: ...


_listener: ContextVar[Listener | None] = ContextVar("hspmd_listener", default=None)


class Task:
    """A running task; `advance` is called once per finished item."""

    __slots__ = ("done", "title")

    def __init__(self, title: str) -> None:
        self.title = title
        self.done = 0

    def advance(self, count: int = 1) -> None:
        """Counts `count` more items as done."""
        self.done += count
        listener = _listener.get()
        if listener is not None:
            listener.advanced(self.title, self.done)


@contextmanager
def task(title: str, total: int | None = None) -> Iterator[Task]:
    """Names the work of a `with` block, for the listener and for the debug log."""
    listener = _listener.get()
    start = perf_counter()
    if listener is not None:
        listener.started(title, total)
    try:
        yield Task(title)
    finally:
        seconds = perf_counter() - start
        logger.debug("%s took %.3f s", title, seconds)
        if listener is not None:
            listener.ended(title, seconds)


@contextmanager
def unheard() -> Iterator[None]:
    """Without warnings: what is done again inside has been warned of the first time."""
    disabled = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = disabled


@contextmanager
def warnings_kept() -> Iterator[list[str]]:
    """Warnings inside are not told but kept: whether they matter turns out later."""
    kept: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            kept.append(record.getMessage())
            return False
        return True

    logger.addFilter(keep)
    try:
        yield kept
    finally:
        logger.removeFilter(keep)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Makes `listener` hear every task started inside the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
