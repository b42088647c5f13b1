"""Rows go to the owners of their experts: who owns which row, in which order rows leave, and how many.

`owners`: per rank of a stage the intervals of the experts whose matrices it has. A row whose expert is none
at all goes to the first rank that has any: a product gives zeros for it there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .layout_kernels import Intervals
from .shape_only import is_shape_only

ExpertOwners = Sequence[Intervals]


def expert_order(experts: Tensor, owners: ExpertOwners) -> Tensor:
    """[rows]: the places of rows in the order in which they leave: by owner, in their order."""
    return (
        torch.zeros_like(experts)
        if is_shape_only(experts)
        else owner_of(experts, owners).argsort(stable=True)
    )


def expert_counts(experts: Tensor, owners: ExpertOwners) -> Tensor:
    """[1, ranks]: how many rows each owner gets."""
    if is_shape_only(experts):
        return experts.new_empty((1, len(owners)))
    return torch.bincount(owner_of(experts, owners), minlength=len(owners))[None]


def host_counts(counts: Tensor) -> Tensor:
    """The counts of all where the sizes of exchanges are read: moved once for all of them."""
    return counts if is_shape_only(counts) else counts.cpu()


def own_rows(experts: Tensor, owners: ExpertOwners, place: int, even: int) -> Tensor:
    """The places of the rows of one owner. even: how many these are where numbers are not known."""
    if is_shape_only(experts):
        return experts.new_empty((even,))
    return (owner_of(experts, owners) == place).nonzero().flatten()


def rows_back(rows: Tensor, order: Tensor) -> Tensor:
    """Rows at the places from which `expert_order` took them."""
    return torch.empty_like(rows).index_copy(0, order, rows)


def rows_placed(rows: Tensor, places: Tensor, size: int) -> Tensor:
    """Rows at their places among `size`, zeros at others: an addend of the value."""
    return rows.new_zeros((size, *rows.shape[1:])).index_copy(0, places, rows)


def rows_slice_backward(
    grad: Tensor, sizes: Sequence[int], dim: int, low: int, high: int, step: int
) -> Tensor:
    """The gradient of a slice of each row: as many rows as there are, where sizes have -1."""
    known = [own if size == -1 else size for size, own in zip(sizes, grad.shape, strict=True)]
    return torch.ops.aten.slice_backward(grad, known, dim, low, high, step)  # type: ignore[no-any-return]


def rows_select_backward(grad: Tensor, sizes: Sequence[int], dim: int, index: int) -> Tensor:
    """The gradient of one entry of each row: as many rows as there are, where sizes have -1."""
    held = (*grad.shape[:dim], 1, *grad.shape[dim:])
    known = [own if size == -1 else size for size, own in zip(sizes, held, strict=True)]
    return torch.ops.aten.select_backward(grad, known, dim, index)  # type: ignore[no-any-return]


def owner_of(experts: Tensor, owners: ExpertOwners) -> Tensor:
    """[rows]: the rank that each row goes to."""
    count = max(high for held in owners for _, high in held)
    first = next(rank for rank, held in enumerate(owners) if held)
    table = [first] * (count + 1)
    for rank, held in enumerate(owners):
        for low, high in held:
            table[low:high] = [rank] * (high - low)
    known = (experts >= 0) & (experts < count)
    return torch.tensor(table, device=experts.device)[experts.where(known, experts.new_tensor(count)).long()]
