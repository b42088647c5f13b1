"""How ranks hear of each other while their main threads work: one thread that talks to the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from time import monotonic
from typing import Any, Protocol

STATE, SUMMARY = "hspmd/watch/{}", "hspmd/watch/summary"
BEAT_S, HURRIED_S = 0.5, 0.02
GOODBYE_S = 1.0

Posted = Mapping[str, Any]


class Mailbox(Protocol):
    """What is needed of torch's key-value store."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def multi_get(self, keys: list[str]) -> list[bytes]: ...


def open_mailbox(store: Mailbox, rank: int) -> None:
    """Leave first messages, so that nobody waits for them; each rank, before it reads any."""
    store.set(STATE.format(rank), "{}")
    if rank == 0:
        store.set(SUMMARY, "{}")


@dataclass(slots=True)
class Post:
    """Tells this rank's message and hears those of others, twice a second, or as soon as it is hurried.

    Rank 0 hears every rank and tells a summary; the others hear the summary. own: this rank's message.
    hear: called in the thread of the post with what came, and when each message last changed; at
    rank 0 it answers with the summary.
    """

    store: Mailbox
    rank: int
    world_size: int
    own: Callable[[], Posted]
    hear: Callable[[Sequence[Posted], Sequence[float]], Posted]
    _beat: int = 0
    _wake: Event = field(default_factory=Event)
    _hurried: bool = False
    _done: bool = False
    _seen: dict[int, tuple[bytes, float]] = field(default_factory=dict)
    _thread: Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = Thread(target=self._run, name="hspmd-post", daemon=True)
        self._thread.start()

    def hurry(self, on: bool) -> None:
        """Talk at once and without pauses, or no more so."""
        self._hurried = on
        self._wake.set()

    def close(self) -> None:
        """Tell this rank's last message and end the thread; one that the store holds up is left behind."""
        self._done = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(GOODBYE_S)

    def _run(self) -> None:
        try:
            while not self._done:
                self._talk()
                self._wake.wait(HURRIED_S if self._hurried else BEAT_S)
                self._wake.clear()
            self._talk()
        except RuntimeError:  # the store is gone; whoever waits for its messages sees that none come
            return

    def _talk(self) -> None:
        self._beat += 1
        self.store.set(STATE.format(self.rank), self._text(self.own()))
        sources = range(self.world_size) if self.rank == 0 else (0,)
        keys = [STATE.format(rank) for rank in sources] if self.rank == 0 else [SUMMARY]
        texts = self.store.multi_get(keys)
        now = monotonic()
        for source, text in zip(sources, texts, strict=True):
            if source not in self._seen or self._seen[source][0] != text:
                self._seen[source] = (bytes(text), now)
        answer = self.hear(
            [json.loads(text) for text in texts], [self._seen[source][1] for source in sources]
        )
        if self.rank == 0:
            self.store.set(SUMMARY, self._text(answer))

    def _text(self, message: Posted) -> str:
        return json.dumps({**message, "beat": self._beat})
