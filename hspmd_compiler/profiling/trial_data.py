"""Batches for the models of trial runs, without what builds the models: ranks load this alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

LENGTH, SIDE = 64, 32
"""Tokens of a text; height and width of an image, of which four by four are a token."""
STEPS = 16


def tokens(batch_size: int) -> Iterator[dict[str, Tensor]]:
    """For a decoder."""
    ids = torch.zeros(batch_size, LENGTH, dtype=torch.int64)
    return iter([{"x": ids, "y": ids}] * STEPS)


def images(batch_size: int) -> Iterator[dict[str, Tensor]]:
    """For an encoder."""
    pixels = torch.zeros(batch_size, 3, SIDE, SIDE)
    return iter([{"x": pixels, "y": torch.zeros(batch_size, dtype=torch.int64)}] * STEPS)
