"""Each row times the matrix of its own expert: rows stay in their places, whichever expert they go to.

The rows of an expert are brought together for one product of each, as libraries do by hand. Which these are
is found once for all products whose rows go to the same experts.
`held`: intervals of the experts whose matrices are here, in their order; `of` so many: a price asks for it.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .grouped_product import grouped_mm, groups
from .layout_kernels import Intervals as Held
from .shape_only import is_shape_only
from .vocab_kernels import local_index


def expert_mm(
    rows: Tensor, weights: Tensor, experts: Tensor, held: Held | None = None, of: int = 0
) -> Tensor:
    """[rows, n]: row i of [rows, k] times the matrix of expert experts[i]; weights: [held experts, k, n].

    A row whose expert is not held, or is none at all, gives zeros.
    """
    if is_shape_only(experts):
        return rows.new_empty((rows.shape[0], weights.shape[2]))
    order, ends = _by_expert(experts, weights.shape[0], held)
    out = rows.new_empty((rows.shape[0], weights.shape[2]))
    out[order] = grouped_mm(rows[order], weights, ends)
    return out


def expert_grad(
    rows: Tensor, grad: Tensor, experts: Tensor, count: int, held: Held | None = None, of: int = 0
) -> Tensor:
    """[count, k, n]: the gradients of the matrices of the held experts, each from its own rows."""
    if is_shape_only(experts):
        return rows.new_empty((count, rows.shape[1], grad.shape[1]))
    order, ends = _by_expert(experts, count, held)
    rows, grad = rows[order], grad[order]
    made = rows.new_zeros((count, rows.shape[1], grad.shape[1]))
    for expert, low, high in groups(ends):
        made[expert] = rows[low:high].T @ grad[low:high]
    return made


def whole_expert_grad(rows: Tensor, grad: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """As `expert_grad`, of the matrices that `weights` are."""
    return expert_grad(rows, grad, experts, weights.shape[0])


def _by_expert(experts: Tensor, count: int, held: Held | None) -> tuple[Tensor, Tensor]:
    """Rows in the order of the held experts, those of others last; where each expert's rows end, on the host.

    Found once for all products of a layer, forward and backward, as long as the experts of its rows live: to
    read ends, the host waits for the device.
    """
    known = _FOUND.setdefault(experts, {})
    key = (experts._version, count, held)
    if key not in known:
        place, here = local_index(experts, ((0, count),) if held is None else held)
        place = place.masked_fill(~here, count)
        ends = torch.bincount(place, minlength=count + 1)[:count].cumsum(0)
        known[key] = (place.argsort(stable=True), ends.cpu())
    return known[key]


_FOUND: MutableMapping[Tensor, dict[tuple[int, int, Held | None], tuple[Tensor, Tensor]]] = (
    WeakTensorKeyDictionary()
)
