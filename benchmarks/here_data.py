"""Batches for the models of `here_cases.py`, without what builds the models: ranks load this alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

VOCAB, LENGTH = 512, 64
IMAGE, CLASSES = 64, 64
STEPS = 64


def tokens(batch_size: int) -> Iterator[dict[str, Tensor]]:
    """For the Llama."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCAB, (batch_size, LENGTH), generator=generator)
    return iter([{"input_ids": ids, "labels": ids}] * STEPS)


def images(batch_size: int) -> Iterator[dict[str, Tensor]]:
    """For the ViT."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(batch_size, 3, IMAGE, IMAGE, generator=generator)
    labels = torch.randint(0, CLASSES, (batch_size,), generator=generator)
    return iter([{"pixel_values": pixels, "labels": labels}] * STEPS)
