"""Branches that PyTorch's own modules take by the numbers in a tensor, where both ways compute the same."""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest.mock import patch

from torch import Tensor
from torch.nn.modules import transformer


def masks_as_given() -> AbstractContextManager[object]:
    """Inside, encoders and decoders take a mask as it is, and don't look whether it is the causal one.

    If it is, they leave it out and tell the attention kernel so: the same numbers.
    """
    return patch.object(transformer, "_detect_is_causal_mask", _as_told)


def _as_told(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True
