"""What was made for the keys that were asked for last: sizes change every step, and memory is bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Recent(Generic[K, T]):
    """At most `most` values; the one that was not asked for the longest goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[K, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: K, make: Callable[[], T]) -> T:
        """The value of a key, made where it isn't there."""
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        made = self._held[key] = make()
        if len(self._held) > self._most:
            self._held.popitem(last=False)
        return made
