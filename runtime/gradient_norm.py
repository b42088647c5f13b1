"""The global gradient norm over shards, each element counted once, and clipping by it as torch does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

SumOverRanks = Callable[[Tensor], Tensor]

SMALLEST_NORM = 1e-6


@torch.no_grad()
def global_norm(owned: Mapping[str, Tensor], device: torch.device, sum_over_ranks: SumOverRanks) -> float:
    """The 2-norm over all ranks' gradients; every rank calls this and gets the same number.

    owned: the elements of each gradient that this rank owns.
    """
    return float(sum_over_ranks(sum_of_squares(owned, device)).sqrt())


@torch.no_grad()
def sum_of_squares(owned: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """What one rank adds to the square of the norm."""
    filled = [row for row in owned.values() if row.numel()]
    if not filled:
        return torch.zeros((), dtype=torch.float64, device=device)
    norms = torch.stack([norm.to(torch.float64) for norm in torch._foreach_norm(filled, 2.0)])
    return norms.square().sum()


@torch.no_grad()
def clip(grads: Mapping[str, Tensor], norm: float, max_norm: float) -> None:
    """Scale gradients in place so that their norm is at most `max_norm`, as clip_grad_norm_ does.

    A norm that isn't a number makes every gradient so, as there. Two parameters may share one
    gradient tensor (of `x + a + b`); it is scaled once.
    """
    ratio = max_norm / (norm + SMALLEST_NORM)
    factor = 1.0 if ratio > 1.0 else ratio
    if factor == 1.0:
        return
    distinct = {grad.data_ptr(): grad for grad in grads.values() if grad.numel()}
    if distinct:
        torch._foreach_mul_(list(distinct.values()), factor)
