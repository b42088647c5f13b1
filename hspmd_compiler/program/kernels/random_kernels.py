"""Random masks and numbers of a rank's own pieces, and the keys that they are drawn with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import ArtifactError
from .counter_numbers import KINDS, random_numbers
from .counter_random import FactorPart, key_tensor, random_mask
from .layout_kernels import Intervals


def mask_piece(
    key: Tensor,
    operator: int,
    keep: float,
    parts: tuple[tuple[int, Intervals, int], ...],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: str = "cpu",
) -> Tensor:
    """The rank's piece of a mask. parts: as `counter_random.Part`, by factor of its layout."""
    named = [FactorPart(*part) for part in parts]
    return random_mask(key, operator, keep, named, dtype, device).view(shape)


def numbers_piece(
    key: Tensor,
    operator: int,
    kind: str,
    parts: tuple[tuple[int, Intervals, int], ...],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: str = "cpu",
) -> Tensor:
    """The rank's piece of random numbers of a kind."""
    if kind not in KINDS:
        raise ArtifactError(f"there are no random numbers of the kind {kind!r}", fix="compile again")
    named = [FactorPart(*part) for part in parts]
    return random_numbers(key, operator, kind, named, dtype, device).view(shape)


def step_keys(rows: Sequence[tuple[int, int]], seed: int, step: int) -> list[Tensor]:
    """The key of each micro-batch of a rank. rows: of the global batch. step: counted from 0."""
    return [key_tensor((seed, step, low)) for low, _ in rows]
