"""Backward passes that a model writes itself: `torch.autograd.Function`, and hooks on gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from .selection.selected import SelectedRows, refused

Apply = Callable[..., Any]
LIBRARY = "torch._library.autograd"
"""Where PyTorch makes such functions for operators of a library, which an export keeps whole."""


def _around_functions(around: Callable[[type, Apply], Any]) -> AbstractContextManager[object]:
    """Inside, `around` makes the calls of functions with a backward of their own: (class, call)."""
    function: Any = torch.autograd.Function
    before = function.__dict__["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(item, SelectedRows) for item in args):
            raise refused(cls.__name__, fix="call it with all rows, and select from its result")
        return around(cls, partial(before.__get__(None, cls), *args, **kwargs))

    return patch.object(function, "apply", classmethod(apply))


class InsideFunctions:
    """Whether a forward pass is inside of a function that has a backward of its own."""

    def __init__(self) -> None:
        self.depth = 0

    def __bool__(self) -> bool:
        return self.depth > 0

    def watch(self) -> AbstractContextManager[object]:
        """A block whose forward passes are followed."""
        return _around_functions(self._call)

    def _call(self, _: type, call: Apply) -> Any:
        self.depth += 1
        try:
            return call()
        finally:
            self.depth -= 1


@contextmanager
def without_own_functions(refuse: Callable[[str], Exception]) -> Iterator[None]:
    """Inside, a function with a backward of its own, and a hook on a gradient, raise what `refuse` says."""

    def around(cls: type, call: Apply) -> Any:
        if cls.__module__ == LIBRARY:
            return call()
        raise refuse(cls.__name__)

    def hook(tensor: torch.Tensor, _: object) -> Any:
        raise refuse("Tensor.register_hook")

    with patch.object(torch.Tensor, "register_hook", hook), _around_functions(around):
        yield
