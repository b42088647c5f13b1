"""Tensors that have a shape and a type, and no numbers to look at."""

from __future__ import annotations

from torch import Tensor
from torch._subclasses import FakeTensor


def is_shape_only(tensor: Tensor) -> bool:
    """Whether a kernel that looks at numbers must do without: on meta, and where types are found by fakes."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)
