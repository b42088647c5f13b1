"""The training loop: steps over a data source, one record per step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from ..artifact.program import Program
from ..errors import RunError
from .data import DataSource
from .engine import Engine

TOKENS = "input_ids"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, counted from 1. samples, tokens: of the global batch; None where it has no tokens.

    grad_norm: before clipping, None where the optimizer has no `max_grad_norm`.
    """

    step: int
    epoch: int
    loss: float
    lr: float
    grad_norm: float | None
    seconds: float
    samples: int
    tokens: int | None


OnStep = Callable[[StepRecord], None]


def train(
    engine: Engine,
    data: DataSource,
    steps: int | None = None,
    epochs: int | None = None,
    on_step: OnStep = lambda record: None,
) -> int:
    """Train for so many steps more, or to the end of `epochs` epochs, whichever comes first.

    Returns the steps taken. `on_step` is called on every rank. Epochs count from the start of the
    data, also after a resume.
    """
    if steps is None and epochs is None:
        raise RunError("how long to train is not given", fix="give steps, epochs or both")
    samples, tokens = engine.program.batch, tokens_of(engine.program)
    taken = empty_epochs = 0
    while taken != steps and (epochs is None or data.epoch < epochs):
        before, epoch = taken, data.epoch
        for batch in data:
            lr, start = engine.current_lr, perf_counter()
            loss = engine.step(batch, local=data.local)
            seconds = perf_counter() - start
            taken += 1
            norm = engine.grad_norm
            on_step(StepRecord(engine.steps, epoch, loss, lr, norm, seconds, samples, tokens))
            if taken == steps:
                break
        empty_epochs = 0 if taken > before else empty_epochs + 1
        if empty_epochs > 1:  # one may be the used-up rest of an epoch
            raise _no_batch()
    return taken


def tokens_of(program: Program) -> int | None:
    """Tokens of a global batch, None for a model that takes none."""
    return math.prod(program.inputs[TOKENS][0]) if TOKENS in program.inputs else None


def _no_batch() -> RunError:
    return RunError(
        "the data has not one whole batch",
        rule="an epoch has at least one batch of the size that the program was compiled for",
    )
