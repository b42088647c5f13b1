"""How often boxes hold each element of a tensor."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from hspmd_compiler.base.comm_plan import Box


def times_held(boxes: Iterable[Box], shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Per element, in how many of the boxes it lies."""
    found = np.zeros(shape, dtype=np.int64)
    for box in boxes:
        found[tuple(slice(low, high) for low, high in box)] += 1
    return found
