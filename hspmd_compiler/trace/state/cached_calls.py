"""Calls whose results `functools.lru_cache` keeps: while a forward pass is traced, in a dict that is seen."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .changes import tensors_in
from .holders import Contents, DictEntries, StateHolder

Cached = functools._lru_cache_wrapper


@dataclass(frozen=True, slots=True, eq=False)
class CachedResults(DictEntries):
    """What a function with a cache keeps."""

    def at(self, key: object) -> str:
        return self.path


Caches = dict[int, tuple[Callable[..., Any], Callable[..., Any], CachedResults]]
"""By id of the function: it, what is called in its place, and what that keeps."""


@contextmanager
def caches_in_sight(holders: Sequence[StateHolder], caches: Caches) -> Iterator[list[StateHolder]]:
    """Inside, held functions with a cache keep their results in dicts, which are returned as holders."""
    changed: list[tuple[StateHolder, Contents]] = []
    for holder in holders:
        cached: Contents = {key: value for key, value in holder.read().items() if isinstance(value, Cached)}
        if cached:
            changed.append((holder, cached))
            caches.update(_new_ones(cached.values(), caches))
            holder.write({**holder.read(), **{key: caches[id(value)][1] for key, value in cached.items()}})
    try:
        yield [results for _, _, results in caches.values()]
    finally:
        for holder, cached in changed:
            holder.write({**holder.read(), **cached})


def _new_ones(functions: Iterable[Any], caches: Caches) -> Caches:
    return {id(one): (one, *_in_sight(one)) for one in functions if id(one) not in caches}


def _in_sight(function: Any) -> tuple[Callable[..., Any], CachedResults]:
    """A function with a dict in place of its cache; what was kept before, and holds no tensor, is taken."""
    store: dict[object, object] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        key = (args, tuple(sorted(kwargs.items())))
        if key not in store:
            store[key] = _kept(function, args, kwargs)
        return store[key]

    return call, CachedResults(f"the cache of {getattr(function, '__qualname__', 'a function')}", None, store)


def _kept(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    before = function.cache_info()
    if before.currsize:
        value = function(*args, **kwargs)
        is_new = function.cache_info().misses > before.misses
        if is_new:  # what is computed now is no value for others
            function.cache_clear()
        if is_new or not tensors_in(value):
            return value
    return function.__wrapped__(*args, **kwargs)
