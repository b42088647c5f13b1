"""Gradients that a forward pass asks for itself, as `torch.autograd.grad` in a gradient penalty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def gradients_noted() -> Iterator[list[str]]:
    """Gathers that there were any in this block, by whatever name they were called."""
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
