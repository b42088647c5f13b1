"""Sequences of real text whose lengths have a long tail: most are short, a few as long as can be."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

MEDIAN = 1 / 12
"""Of the longest length."""
SPREAD = 1.1
"""Standard deviation of the logarithm of lengths."""
SEEDS_PER_STEP = 1_000_003


@cache
def text() -> Tensor:
    """The bytes of a few files of Python's own library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]
    joined = b"\n".join(file.read_bytes() for file in files)
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8).to(torch.int64)


def sequences(step: int, count: int, longest: int, seed: int = 0) -> list[Tensor]:
    """The global batch of a step, alike on every rank; one of its sequences is as long as can be."""
    drawn = torch.Generator().manual_seed(seed * SEEDS_PER_STEP + step)
    sizes = torch.randn(count, generator=drawn).mul(SPREAD).exp().mul(longest * MEDIAN)
    lengths = sizes.round().clamp(2, longest).to(torch.int64).tolist()
    lengths[-1] = longest
    starts = torch.randint(0, len(text()) - longest, (count,), generator=drawn).tolist()
    return [text()[start : start + length] for start, length in zip(starts, lengths, strict=True)]
