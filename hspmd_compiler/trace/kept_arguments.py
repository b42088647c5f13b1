"""Arguments that PyTorch loses on the way to a TorchFunctionMode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from torch.nn import functional

WEIGHT = 2
"""The place of the weight among the tensors of `l1_loss`."""


def kept_arguments() -> AbstractContextManager[object]:
    """Inside, a mode is told the weight of `l1_loss`: PyTorch 2.13 leaves it out of the call."""
    module: Any = functional
    before = module.handle_torch_function

    def handle(func: Callable[..., Any], tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if func is functional.l1_loss:
            kwargs.setdefault("weight", tensors[WEIGHT])
        return before(func, tensors, *args, **kwargs)

    return patch.object(module, "handle_torch_function", handle)
