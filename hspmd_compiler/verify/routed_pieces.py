"""Rows that a rank holds as the owner of their experts, put to their places by what one device computes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..artifact.value_layouts import RoutedValue, RowOwners
from ..errors import VerifyError
from ..layout.layout import Coordinate, Layout
from ..program.kernels.expert_rows import owner_of
from ..rules.rules import uncut
from .assemble import index_of, whole_view


def addend_of(value: RoutedValue, at: Coordinate, rows: Tensor, experts: Tensor) -> Tensor:
    """What a rank adds to a value: its rows at their places among those of its micro-batch, zeros elsewhere.

    experts: of all rows of the batch, as one device finds them.
    """
    own = _places(value.owners, at, experts.flatten())
    if rows.shape[value.dim] != len(own):
        raise VerifyError(
            f"a rank holds {rows.shape[value.dim]} rows where {len(own)} go to its experts",
            details=[("rank of its stage", str(at.rank))],
            rule="a rank has the rows of its own experts",
        )
    held = _rows_of(uncut(value.owners.home, ranks=True), at)
    local = torch.zeros(int(held.max()) + 1 if len(held) else 0, dtype=torch.int64)
    local[held] = torch.arange(len(held))
    made = rows.new_zeros(value.layout.local_shape(at))
    return made.index_copy(value.dim, local[own], rows)


def _places(owners: RowOwners, at: Coordinate, experts: Tensor) -> Tensor:
    """Numbers of the rows of a rank, in the order in which they come."""
    sources = range(len(owners.owned) if owners.home.cut(ranks=True) is not None else 1)
    found = []
    for source in sources:
        rows = _rows_of(owners.home, Coordinate(source, at.batch))
        found.append(rows[owner_of(experts[rows], owners.owned) == at.rank])
    return torch.cat(found)


def _rows_of(layout: Layout, at: Coordinate) -> Tensor:
    """Numbers of the rows at a coordinate, of a layout of one dim."""
    rows = torch.arange(layout.shape[0]).reshape(whole_view(layout))
    return rows[index_of(layout, at)].flatten()
