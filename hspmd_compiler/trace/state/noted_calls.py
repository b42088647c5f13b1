"""Calls of a forward pass that a graph does not show: gradients that it asks for, checks of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

    door._engine_run_backward = noted
    try:
        yield found
    finally:
        door._engine_run_backward = before


@contextmanager
def checks_noted() -> Iterator[list[str]]:
    """Gathers the user's lines that call `torch._assert_async` in this block, and makes no check."""
    found: list[str] = []
    door: Any = torch
    before = door._assert_async

    def noted(*_: object) -> None:
        found.append(line_of_caller())

    door._assert_async = noted
    try:
        yield found
    finally:
        door._assert_async = before
