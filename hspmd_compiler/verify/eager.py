"""The reference: the user's unmodified model, called eagerly on the whole global batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..base.source_lines import line_of_error
from ..errors import VerifyError
from ..program.kernels.index_check import outside_error
from ..trace.checkpoints import without_checkpoints
from ..trace.key_cache import without_key_cache
from ..trace.loss_output import RULE, find_loss
from .same_masks import SEED, SameMasks
from .widen import wide_casts, widened

OUT_OF_BOUNDS = re.compile(r"out of (bounds|range)")
"""What PyTorch says of an index."""


@dataclass(frozen=True, slots=True)
class EagerResult:
    """Loss and gradients of one eager call. grads: by the first name of each parameter that has one."""

    loss: float
    grads: dict[str, Tensor]


def eager_model(build: Callable[[], nn.Module], state: Mapping[str, Tensor], widen: bool) -> nn.Module:
    """A fresh model whose parameters and buffers are copies of `state`, in double where `widen`."""
    model = build()
    if widen:
        # `double()` leaves complex numbers as they are
        model = model._apply(widened)  # type: ignore[no-untyped-call]
    held = whole_state(model)
    unknown = sorted(state.keys() - held.keys())
    if unknown:
        raise VerifyError("the model has no such parameters", details=[("unknown", ", ".join(unknown))])
    with torch.no_grad():
        for name, value in state.items():
            held[name].copy_(value)
    return model


def eager_step(
    model: nn.Module, batch: Mapping[str, Tensor], widen: bool, step: int = 0, seed: int = SEED
) -> EagerResult:
    """Forward and backward on `batch`; gradients are fresh and stay on the model, too.

    step: counted from 0; random operators draw what a compiled program draws in this step, with this seed.
    """
    model.zero_grad(set_to_none=True)
    rows = {key: widened(value) if widen else value for key, value in batch.items()}
    with wide_casts() if widen else nullcontext():
        with (
            SameMasks(seed, step, widen),
            without_checkpoints(),
            without_key_cache(model, rows),
            _indexes_explained(),
        ):
            loss = loss_of(model(**rows))
        loss.backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        if parameter.grad is not None:  # torch's optimizers can't read what is only marked as conjugate
            parameter.grad = parameter.grad.resolve_conj()
    grads = {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
    return EagerResult(float(loss.detach()), grads)


@contextmanager
def _indexes_explained() -> Iterator[None]:
    """An index outside of its table is a mistake in the data, at a line of the model."""
    try:
        yield
    except (IndexError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        if not OUT_OF_BOUNDS.search(reason):
            raise
        raise outside_error([("eager", reason, line_of_error(error))]) from error


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by each of its names, buffers that are not saved included."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return dict(named)


def loss_of(result: Any) -> Tensor:
    """The scalar loss of what `forward` returned."""
    loss = find_loss(result)
    if not isinstance(loss, Tensor):
        raise VerifyError("forward returns no loss", rule=RULE)
    return loss
