"""A model's own checkpoints: inside, they keep what they compute instead of computing it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch.utils.checkpoint


class _Plain:
    """In the place of PyTorch's function that computes again by a backward pass of its own."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        """The call itself, recorded as any other."""
        return function(*args)


def _nothing_around(*_: object, **__: object) -> Iterator[None]:
    """In the place of what PyTorch does before and after a call that it will make again."""
    yield


def without_checkpoints() -> AbstractContextManager[object]:
    """Inside, `torch.utils.checkpoint` calls its function and no more, however the model imported it.

    Numbers stay as they are, but for dropout: a second call has no mask of its own. Memory is the strategy's.
    """
    return patch.multiple(
        torch.utils.checkpoint,
        CheckpointFunction=_Plain,
        _checkpoint_without_reentrant_generator=_nothing_around,
    )
