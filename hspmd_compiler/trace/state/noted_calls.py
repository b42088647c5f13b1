"""Calls of a forward pass that a graph does not show: gradients that it asks for, checks of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from ...base.source_lines import line_of_caller


@contextmanager
def gradients_noted() -> Iterator[list[str]]:
    """Gathers calls such as those of `torch.autograd.grad` in this block, by whatever name."""
    found: list[str] = []
    door: Any = torch.autograd
    before = door._engine_run_backward

    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append("torch.autograd.grad in forward")
        return before(*args, **kwargs)

    with patch.object(door, "_engine_run_backward", noted):
        yield found


@contextmanager
def checks_noted() -> Iterator[list[str]]:
    """Gathers the user's lines that call `torch._assert_async` in this block, and makes no check."""
    found: list[str] = []

    def noted(*_: object) -> None:
        found.append(line_of_caller())

    with patch.object(torch, "_assert_async", noted):
        yield found
