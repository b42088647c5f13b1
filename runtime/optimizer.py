"""AdamW and SGD on a rank's shards, by torch's own kernels.

Both rules are elementwise, so updating shards is updating the whole. A complex number is two real ones, as
in torch: AdamW squares its parts, each for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from ..options import OptimizerConfig, OptimizerName
from .device import CPU, CUDA

FUSED_DEVICES = (CPU, CUDA)
"""Where torch has a kernel for a whole rule, for every floating type."""
NARROW = (torch.bfloat16, torch.float16)
"""Types of which torch's kernel for SGD on a CPU makes wrong numbers wherever there is decay or momentum."""
VECTOR_BYTES = 64
"""What a CPU's kernel takes at once, at most. The few elements that are left behind it rounds otherwise."""


@dataclass(slots=True)
class _Batch:
    """Tensors of one type on one device that go through a rule together. moments: in the config's order."""

    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    moments: list[list[Tensor]] = field(default_factory=list)

    def add(self, param: Tensor, grad: Tensor, moments: Sequence[Tensor]) -> None:
        self.params.append(param)
        self.grads.append(grad)
        self.moments = self.moments or [[] for _ in moments]
        for held, moment in zip(self.moments, moments, strict=True):
            held.append(moment)

    @property
    def changing(self) -> list[Tensor]:
        """What the rule writes."""
        return [*self.params, *(each for of in self.moments for each in of)]

    @property
    def is_dense(self) -> bool:
        """Whether every tensor's elements lie one after the other: all that the kernels look at."""
        return all(each.is_contiguous() for each in (*self.changing, *self.grads))

    def one(self, place: int) -> _Batch:
        """One parameter with its own."""
        return _Batch([self.params[place]], [self.grads[place]], [[of[place]] for of in self.moments])

    def mapped(self, change: Callable[[Tensor], Tensor]) -> _Batch:
        """Other tensors in place of these."""
        params, grads, *moments = ([change(each) for each in of] for of in self.columns)
        return _Batch(params, grads, moments)

    @property
    def columns(self) -> list[list[Tensor]]:
        """Parameters, gradients, then each moment."""
        return [self.params, self.grads, *self.moments]


class ShardOptimizer:
    """Updates local parameters in place from their synchronised gradients.

    A parameter without a gradient stays untouched and gets no state, as in torch. `steps` counts
    updates; `state` holds the moments by parameter name and torch's name for them. deterministic: the bits
    of torch.optim's default on a CPU, one operator after the other. Else whole rules round in their own way,
    and so alike for an element in whichever shard it lies.
    """

    def __init__(self, config: OptimizerConfig, deterministic: bool = False) -> None:
        self.config = config
        self.deterministic = deterministic
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
        trained = {name: params[name] for name in grads if params[name].numel()}
        self.allocate(trained)
        by_decay: dict[float, list[str]] = {}
        for name in trained:
            by_decay.setdefault(self.config.decay_of(name), []).append(name)
        for decay, names in by_decay.items():
            for batch in self._batches(names, trained, grads):
                self._take(batch, decay, lr)

    def _batches(
        self, names: Sequence[str], params: Mapping[str, Tensor], grads: Mapping[str, Tensor]
    ) -> Iterator[_Batch]:
        """What goes together. A gradient that must be copied first goes alone, so that one copy is held."""
        together: dict[tuple[torch.device, torch.dtype], _Batch] = {}
        taken = Tensor.resolve_conj if self.deterministic else _parts
        for name in names:
            param, grad = taken(params[name]), taken(grads[name])
            moments = [taken(self.state[name][moment]) for moment in self.moments]
            if grad.dtype == param.dtype and grad.is_contiguous():
                together.setdefault((param.device, param.dtype), _Batch()).add(param, grad, moments)
            else:
                alone = _Batch()
                alone.add(param, grad.to(param.dtype).contiguous(), moments)
                yield alone
        yield from together.values()

    def _take(self, batch: _Batch, decay: float, lr: float) -> None:
        device = batch.params[0].device.type
        if self.deterministic or device not in FUSED_DEVICES or not batch.is_dense:
            self._by_operators(batch, decay, lr)
        elif device == CPU and self.config.name is OptimizerName.SGD and batch.params[0].dtype in NARROW:
            for place in range(len(batch.params)):
                self._widened(batch.one(place), decay, lr)
        elif device == CPU:
            with _whole_vectors(batch) as whole:
                self._fused(whole, decay, lr)
        else:
            self._fused(batch, decay, lr)

    def _widened(self, narrow: _Batch, decay: float, lr: float) -> None:
        """The rule in float32, rounded once."""
        wide = narrow.mapped(Tensor.float)
        with _whole_vectors(wide) as whole:
            self._fused(whole, decay, lr)
        for old, new in zip(narrow.changing, wide.changing, strict=True):
            old.copy_(new)

    def _fused(self, batch: _Batch, decay: float, lr: float) -> None:
        """The whole rule in one pass over memory, with no room of its own."""
        config = self.config
        if config.name is OptimizerName.ADAMW:
            (beta1, beta2), (first, second) = config.betas, batch.moments
            step = torch.tensor(float(self.steps), device=batch.params[0].device)
            torch._fused_adamw_(
                batch.params,
                batch.grads,
                first,
                second,
                [],
                [step] * len(batch.params),
                lr=lr,
                beta1=beta1,
                beta2=beta2,
                weight_decay=decay,
                eps=config.eps,
                amsgrad=False,
                maximize=False,
            )
        else:
            torch._fused_sgd_(
                batch.params,
                batch.grads,
                batch.moments[0] if batch.moments else [],
                weight_decay=decay,
                momentum=config.momentum,
                lr=lr,
                dampening=0.0,
                nesterov=config.nesterov,
                maximize=False,
                is_first_step=False,  # buffers begin with zeros
            )

    def _by_operators(self, batch: _Batch, decay: float, lr: float) -> None:
        """One operator after the other: tensor by tensor, or where bits may differ over all at once."""
        config, count = self.config, len(batch.params)
        if config.name is OptimizerName.ADAMW:
            (beta1, beta2), (first, second) = config.betas, batch.moments
            adamw(
                batch.params,
                batch.grads,
                first,
                second,
                [],
                [torch.tensor(float(self.steps - 1)) for _ in range(count)],
                foreach=not self.deterministic,
                fused=False,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=lr,
                weight_decay=decay,
                eps=config.eps,
                maximize=False,
            )
        else:
            sgd(
                batch.params,
                batch.grads,
                [*batch.moments[0]] if batch.moments else [None] * count,
                foreach=not self.deterministic,
                fused=False,
                weight_decay=decay,
                momentum=config.momentum,
                lr=lr,
                dampening=0.0,
                nesterov=config.nesterov,
                maximize=False,
            )


@contextmanager
def _whole_vectors(batch: _Batch) -> Iterator[_Batch]:
    """The same elements in tensors of whole vectors; the ends of all tensors are joined in one, and put back.

    So an element's new bits depend on its numbers alone, and copies on ranks that cut a parameter otherwise
    stay the same.
    """
    lanes = VECTOR_BYTES // batch.params[0].itemsize
    left = [param.numel() % lanes for param in batch.params]
    if not any(left):
        yield batch
        return
    heads, ends = zip(*(_cut(of, left) for of in batch.columns), strict=True)
    joined = [torch.cat([*of, of[0].new_zeros(-sum(left) % lanes)]) for of in ends]
    params, grads, *moments = ([*head, end] for head, end in zip(heads, joined, strict=True))
    yield _Batch(params, grads, moments)
    sizes = [size for size in left if size]
    for place, (of, end) in enumerate(zip(ends, joined, strict=True)):
        if place != 1:  # gradients stay as they are
            torch._foreach_copy_(of, torch.split(end[: sum(left)], sizes))


def _cut(tensors: Sequence[Tensor], left: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Whole vectors of flat tensors, and the elements that are left behind them."""
    flat = [tensor.view(-1) for tensor in tensors]
    sizes = [tensor.numel() - size for tensor, size in zip(flat, left, strict=True)]
    heads = [tensor[:size] for tensor, size in zip(flat, sizes, strict=True) if size]
    return heads, [tensor[size:] for tensor, size in zip(flat, sizes, strict=True) if size < tensor.numel()]


def _parts(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers in the same memory; a real one as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
