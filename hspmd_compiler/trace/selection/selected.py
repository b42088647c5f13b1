"""The tensor that stands for rows selected by a mask: it has every row, and says which of them count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...base.source_lines import line_of_caller
from ...errors import TraceError
from .mask_keys import MaskKey

FILLER = 0.5
"""What rows that don't count hold, so that their numbers stay finite."""
RULE = (
    "how many rows a mask selects is known on no rank: each row is computed by itself, and rows meet in a sum"
    " or mean over all of them only"
)


@dataclass(slots=True, eq=False)
class Selection:
    """One mask, flat. shape: of the mask itself. key: the same for masks of equal elements."""

    mask: Tensor
    shape: tuple[int, ...]
    key: MaskKey
    _count: Tensor | None = None

    @property
    def count(self) -> Tensor:
        """How many rows are selected: a tensor, for it is no number that Python can read."""
        if self._count is None:
            self._count = self.mask.sum()
        return self._count

    def beside(self, values: Tensor) -> Tensor:
        """The mask with dims of length 1 for all but the rows."""
        return self.mask.view(-1, *(1 for _ in values.shape[1:]))

    def repeated(self, times: int) -> Selection:
        """Each row as so many."""
        if times == 1:
            return self
        mask = self.mask.unsqueeze(1).expand(-1, times).reshape(-1)
        return Selection(mask, tuple(mask.shape), ("repeat", self.key, times))

    def kept(self, values: Tensor, other: float) -> Tensor:
        """The values with another number in rows that don't count; no gradient passes there."""
        if values.dtype is torch.bool:
            return values & self.beside(values)
        if not values.dtype.is_floating_point and not values.dtype.is_complex:
            other = int(other)
        return torch.where(self.beside(values), values, other)

    def select(self, tensor: Tensor) -> SelectedRows:
        """`tensor[mask]`, as all elements of the dims that the mask has."""
        rest = tensor.shape[len(self.shape) :]
        return self.rows(tensor.reshape(-1, *rest))

    def rows(self, values: Tensor) -> SelectedRows:
        """Every row, those that don't count made harmless."""
        if values.dim() == 0 or values.shape[0] != self.mask.shape[0]:
            raise refused("a function", "its result has no row for each of them")
        return SelectedRows.of(self.kept(values, FILLER), self)


class SelectedRows(torch.Tensor):
    """`content`, of all rows along dim 0, of which `selection` says which count.

    columns: the dims of the mask that the elements are places along, where they are such places. viewed:
    whether in eager another tensor may look at their memory.
    """

    content: Tensor
    selection: Selection
    columns: tuple[int, ...] | None
    viewed: bool

    @staticmethod
    def of(values: Tensor, selection: Selection, columns: tuple[int, ...] | None = None) -> SelectedRows:
        """A stand-in without memory of its own."""
        made = torch.Tensor._make_wrapper_subclass(
            SelectedRows, values.shape, dtype=values.dtype, device=values.device
        )
        made.content, made.selection, made.columns, made.viewed = values, selection, columns, False
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by PyTorch for each function of selected rows."""
        from .functions import call

        return call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """No operator takes them as they are."""
        raise refused(str(func))


def sizes(rows: SelectedRows) -> tuple[Any, ...]:
    """The shape, whose first entry is a tensor."""
    return (rows.selection.count, *rows.content.shape[1:])


def elements(rows: SelectedRows) -> Tensor:
    """How many elements are selected."""
    return rows.selection.count * prod(rows.content.shape[1:])


def refused(what: str, why: str = "", fix: str = "") -> TraceError:
    """The error for what selected rows can't do, with the user's line."""
    return TraceError(
        f"{what} can't be done with rows that a boolean mask selects",
        at=line_of_caller(),
        details=[("why", why)] if why else [],
        rule=RULE,
        fix=fix or "keep all rows, and weight the loss: (loss * mask).sum() / mask.sum()",
    )
