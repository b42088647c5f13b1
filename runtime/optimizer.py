"""AdamW and SGD on a rank's shards, in torch.optim's order of arithmetic.

Both rules are elementwise, so updating shards is updating the whole. A complex number is two real ones, as
in torch: AdamW squares its parts, each for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..options import FIRST_MOMENT, MOMENTUM, SECOND_MOMENT, OptimizerConfig, OptimizerName


@dataclass(slots=True)
class _Batch:
    """Parameters that one foreach call may take together; complex ones as real and imaginary parts."""

    decay: float
    is_complex: bool
    names: list[str]
    params: list[Tensor]
    grads: list[Tensor]


class ShardOptimizer:
    """Updates local parameters in place from their synchronised gradients.

    A parameter without a gradient stays untouched and gets no state, as in torch. `steps` counts
    updates; `state` holds the moments by parameter name and torch's name for them.
    """

    def __init__(self, config: OptimizerConfig) -> None:
        self.config = config
        self.steps = 0
        self.state: dict[str, dict[str, Tensor]] = {}

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the tensors that are kept for each parameter."""
        return self.config.moments

    @torch.no_grad()
    def allocate(self, params: Mapping[str, Tensor]) -> None:
        """Make room for the moments of these parameters, zeros where they are new."""
        for name, param in params.items():
            if param.numel():
                of = self.state.setdefault(name, {})
                for moment in self.moments:
                    if moment not in of:
                        of[moment] = torch.zeros_like(param)

    @torch.no_grad()
    def update(self, params: Mapping[str, Tensor], grads: Mapping[str, Tensor], lr: float) -> None:
        """One update of every parameter that has a gradient."""
        self.steps += 1
        for batch in self._batches(params, grads):
            if self.config.name is OptimizerName.ADAMW:
                self._adamw(batch, lr)
            else:
                self._sgd(batch, lr)

    def _batches(self, params: Mapping[str, Tensor], grads: Mapping[str, Tensor]) -> list[_Batch]:
        """Parameters with a gradient and at least one element, by weight decay, device and dtype."""
        batches: dict[tuple[float, torch.device, torch.dtype], _Batch] = {}
        for name, grad in grads.items():
            param = params[name]
            if param.numel() == 0:
                continue
            decay = self.config.decay_of(name)
            batch = batches.setdefault(
                (decay, param.device, param.dtype), _Batch(decay, param.is_complex(), [], [], [])
            )
            batch.names.append(name)
            batch.params.append(_parts(param))
            batch.grads.append(_parts(grad.to(param.dtype)))
        return list(batches.values())

    def _held(self, batch: _Batch, key: str) -> list[Tensor]:
        """One moment of every parameter of a batch, zeros where it is new."""
        held = []
        for name, param in zip(batch.names, batch.params, strict=True):
            of = self.state.setdefault(name, {})
            if key not in of:
                zeros = torch.zeros_like(param)
                of[key] = torch.view_as_complex(zeros) if batch.is_complex else zeros
            held.append(_parts(of[key]))
        return held

    def _adamw(self, batch: _Batch, lr: float) -> None:
        beta1, beta2 = self.config.betas
        first, second = self._held(batch, FIRST_MOMENT), self._held(batch, SECOND_MOMENT)
        if batch.decay != 0:
            torch._foreach_mul_(batch.params, 1 - lr * batch.decay)
        torch._foreach_lerp_(first, batch.grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, batch.grads, batch.grads, 1 - beta2)
        step_size = lr / (1 - beta1**self.steps)
        denominator = torch._foreach_sqrt(second)
        torch._foreach_div_(denominator, (1 - beta2**self.steps) ** 0.5)
        torch._foreach_add_(denominator, self.config.eps)
        torch._foreach_addcdiv_(batch.params, first, denominator, -step_size)

    def _sgd(self, batch: _Batch, lr: float) -> None:
        grads = batch.grads
        momentum = self.config.momentum
        if batch.decay != 0:
            grads = list(torch._foreach_add(grads, batch.params, alpha=batch.decay))
        if momentum != 0:
            buffers = self._momentum(batch, grads)
            if self.config.nesterov:
                grads = list(torch._foreach_add(grads, buffers, alpha=momentum))
            else:
                grads = buffers
        torch._foreach_add_(batch.params, grads, alpha=-lr)

    def _momentum(self, batch: _Batch, grads: list[Tensor]) -> list[Tensor]:
        """The momentum buffers after this step; new ones start at zero, so become the gradient."""
        buffers = self._held(batch, MOMENTUM)
        torch._foreach_mul_(buffers, self.config.momentum)
        torch._foreach_add_(buffers, grads)
        return buffers


def _parts(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers in the same memory; a real one as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
