"""Indexes and targets that point outside their table: noticed where they are used, told with their input.

Kernels over a split vocabulary would take them for another rank's, and train on. Without a list to note
them in, the first use raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import RunError
from .shape_only import is_shape_only

SHOWN = 5
IndexProblem = tuple[str, str, str]
"""(input, values, user's line)."""


@dataclass(frozen=True, slots=True)
class Use:
    """Indexes into `size` places, and which of them are outside.

    ignored: the value that stands for none. name: of the batch input that they come from, empty where the
    model computes them. where: the user's line.
    """

    index: Tensor
    outside: Tensor
    size: int
    ignored: int | None
    name: str
    where: str

    def problem(self) -> IndexProblem | None:
        """What is wrong, if anything is."""
        found = torch.unique(self.index[self.outside]).tolist()
        if not found:
            return None
        values = ", ".join(map(str, found[:SHOWN])) + ", ..." * (len(found) > SHOWN)
        ignored = "" if self.ignored is None else f" (or {self.ignored}, which is ignored)"
        return self.name or "an index", f"{values}, wanted 0 to {self.size - 1}{ignored}", self.where


_uses: ContextVar[list[Use] | None] = ContextVar("hspmd_index_uses", default=None)


@contextmanager
def noting_uses() -> Iterator[list[Use]]:
    """Within it, uses that may be outside are noted in the list instead of raised."""
    uses: list[Use] = []
    token = _uses.set(uses)
    try:
        yield uses
    finally:
        _uses.reset(token)


def checked_index(
    index: Tensor, size: int, ignored: int | None = None, name: str = "", where: str = ""
) -> Tensor:
    """The indexes, 0 in place of those outside, which are noted or raised.

    On CUDA nothing is read back here: each use is noted, and whoever reads the loss asks `count_outside`.
    """
    if is_shape_only(index) or not index.numel():
        return index
    outside = index.clamp(0, size - 1) != index
    if ignored is not None:
        outside &= index != ignored
    uses = _uses.get()
    if (uses is None or index.device.type == "cpu") and not bool(outside.any()):
        return index
    use = Use(index, outside, size, ignored, name, where)
    if uses is None:
        raise outside_error([use.problem()])
    uses.append(use)
    return index.masked_fill(outside, 0)


def count_outside(uses: Sequence[Use], like: Tensor) -> Tensor:
    """How many uses have an index outside, as a scalar of the type and device of `like`."""
    if not uses:
        return like.new_zeros(())
    return torch.stack([use.outside.any() for use in uses]).sum().to(like)


def outside_error(problems: Sequence[IndexProblem | None]) -> RunError:
    """The error for what `Use.problem` says, of all ranks."""
    found = list(dict.fromkeys(problem for problem in problems if problem is not None))
    return RunError(
        "an index is outside of what it picks from",
        at=dict.fromkeys(where for _, _, where in found),
        details=list(dict.fromkeys((name, text) for name, text, _ in found)),
        rule="an index or target names one of the rows, or classes, that are there",
        fix="mend the data, or give the model a table or a number of classes that is large enough",
    )
