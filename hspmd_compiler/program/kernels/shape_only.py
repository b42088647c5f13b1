"""Tensors that have a shape and a type, and no numbers to look at."""

from __future__ import annotations

import sys

from torch import Tensor

FAKES = "torch._subclasses.fake_tensor"
"""Its import takes as long as the rest of torch; where nobody has imported it, there is no fake tensor."""


def is_shape_only(tensor: Tensor) -> bool:
    """Whether a kernel that looks at numbers must do without: on meta, and where types are found by fakes."""
    fakes = sys.modules.get(FAKES)
    return tensor.is_meta or (fakes is not None and isinstance(tensor, fakes.FakeTensor))
