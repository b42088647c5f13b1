"""Literals of a row: holes filled, names turned into torch's own objects, everything else refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ArtifactError
from .arguments import holes_of
from .program import DType, Hole, LocalRow, Segment, Value
from .sized.sizes import Size

if TYPE_CHECKING:
    import torch

TORCH_NAMED = {
    "memory_format": ("contiguous_format", "preserve_format", "channels_last"),
    "layout": ("strided",),
}
"""Keyword arguments whose strings name torch objects."""
PLACED_BY_EXECUTOR = frozenset({"device", "pin_memory"})
"""Keyword arguments that say where a tensor lies: the executor decides, not the row."""


def resolve(argument: object, literals: Sequence[object]) -> object:
    """The argument with holes and torch names replaced; values stay, sequences become tuples."""
    if isinstance(argument, Hole):
        return resolve(literals[argument.index], ())
    if isinstance(argument, DType):
        return torch_dtype(argument.name)
    if isinstance(argument, (tuple, list)):
        return tuple(resolve(item, literals) for item in argument)
    if argument is None or isinstance(argument, (Value, Size, bool, int, float, str)):
        return argument
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(argument, torch.dtype):
        return argument
    raise ArtifactError(
        f"a literal of type {type(argument).__name__} is refused",
        rule="rows hold values, holes, numbers, sizes, strings, types and tuples of these",
    )


def resolved_kwargs(row: LocalRow, literals: Sequence[object]) -> dict[str, object]:
    """Keyword arguments of a row, without those that the executor decides."""
    return {
        name: _keyword(name, resolve(argument, literals))
        for name, argument in row.kwargs.items()
        if name not in PLACED_BY_EXECUTOR
    }


def torch_dtype(name: str) -> torch.dtype:
    """A torch element type by its name."""
    import torch  # late: prices read literals without

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ArtifactError(f"{name!r} is no element type of torch")
    return found


def segment_holes(segment: Segment) -> list[int]:
    """Indexes of the rank literals that a segment reads, ascending."""
    return sorted({index for row in segment.rows for index in holes_of(row)})


def _keyword(name: str, argument: object) -> object:
    if name not in TORCH_NAMED or argument is None:
        return argument
    if argument not in TORCH_NAMED[name]:
        raise ArtifactError(f"{argument!r} is no {name} that a rank program may use")
    import torch

    return getattr(torch, str(argument))
