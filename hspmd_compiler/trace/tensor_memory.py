"""Whether a tensor has memory, and whether two share it."""

from __future__ import annotations

import torch
from torch._subclasses import FakeTensor


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether the tensor has a shape but no memory."""
    return isinstance(tensor, FakeTensor)


def storage_key(tensor: torch.Tensor) -> int:
    """The same for all tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)
