"""A cache of keys is for generating: models of transformers that make one don't see where documents begin."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager

from torch import nn

POSITIONS = "position_ids"
USE_CACHE = "use_cache"
OWNER = "transformers"


@contextmanager
def without_key_cache(model: nn.Module, inputs: Container[str]) -> Iterator[None]:
    """Inside, configurations of transformers that ask for a cache don't, if the batch has positions.

    The loss of one document in a row is the same with and without one. Of several, positions that begin
    anew tell them apart only without.
    """
    found = _asking(model, inputs)
    for config in found:
        setattr(config, USE_CACHE, False)
    try:
        yield
    finally:
        for config in found:
            setattr(config, USE_CACHE, True)


def loses_key_cache(model: nn.Module, inputs: Container[str]) -> bool:
    """Whether a model asks for a cache that it doesn't get."""
    return bool(_asking(model, inputs))


def _asking(model: nn.Module, inputs: Container[str]) -> list[object]:
    """Configurations that ask for a cache, each once, if the batch has positions."""
    if POSITIONS not in inputs:
        return []
    held = {id(config): config for module in model.modules() if (config := _config(module)) is not None}
    return [config for config in held.values() if getattr(config, USE_CACHE, None) is True]


def _config(module: nn.Module) -> object | None:
    config = getattr(module, "config", None)
    owners = {base.__module__.partition(".")[0] for base in type(config).__mro__}
    return config if OWNER in owners else None
