"""What a row of the matrix is: a small model as people write it, and how a batch for it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Generator, Tensor, nn

SAMPLES = 3
"""Samples of the global batch of every strategy."""

Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class CoveredModel:
    """build: a fresh model, unmodified, in training mode. batch: SAMPLES samples, dim 0 of every tensor.

    needs: packages beside torch that it is built with. whole_statistics: samples of one pipeline meet
    (batch norm), so that every pipeline runs one micro-batch. left_out: strategy -> why its cell isn't run.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[Generator], Batch]
    needs: tuple[str, ...] = ()
    whole_statistics: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)
