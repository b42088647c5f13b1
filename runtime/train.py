"""The training loop: steps over a data source, one record per step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from ..errors import RunError
from ..program.program import Program
from ..program.sized.sizes import Count
from ..program.sized.step_plan import StepPlan
from .batches.data import DataSource
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


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Samples at the end of an epoch that fill no batch. total: of all epochs so far."""

    epoch: int
    samples: int
    total: int


OnStep = Callable[[StepRecord], None]
OnLeftOut = Callable[[LeftOut], None]
BeforeStep = Callable[[int], None]


def train(
    engine: Engine,
    data: DataSource,
    steps: int | None = None,
    epochs: int | None = None,
    on_step: OnStep = lambda record: None,
    on_left_out: OnLeftOut = lambda left: None,
    before_step: BeforeStep = lambda step: None,
) -> int:
    """Train for so many steps more, or to the end of `epochs` epochs, whichever comes first.

    Returns the steps taken. `before_step` is called on every rank before the batch of a step is drawn, with
    its number, from 1: again with the same one where an epoch has no batch left. `on_step` is called on every
    rank; `on_left_out` at the end of each epoch whose last samples fill no batch. Epochs count from the start
    of the data, also after a resume.
    """
    if steps is None and epochs is None:
        raise RunError("how long to train is not given", fix="give steps, epochs or both")
    taken = 0
    while taken != steps and (epochs is None or data.epoch < epochs):
        was_fresh, epoch, left_out = data.at_start, data.epoch, data.left_out
        count = _epoch(engine, data, None if steps is None else steps - taken, on_step, before_step)
        taken += count
        if data.left_out > left_out:
            on_left_out(LeftOut(epoch, data.left_out - left_out, data.left_out))
        if was_fresh and not count:
            raise _no_batch(engine.program.batch, data.left_out - left_out)
    return taken


def _epoch(
    engine: Engine, data: DataSource, steps: int | None, on_step: OnStep, before_step: BeforeStep
) -> int:
    """The rest of the current epoch, at most so many steps of it; how many were taken."""
    taken, epoch = 0, data.epoch
    batches = iter(data)
    while taken != steps:
        active = engine.active
        before_step(engine.steps + 1)
        if engine.active is not active:
            _check_batch(active.program, engine.program)
            data.take_rows(engine.rows, engine.keys, engine.active.sizes)
            batches = iter(data)
        batch = next(batches, None)
        if batch is None:
            break
        lr, start = engine.current_lr, perf_counter()
        loss = engine.step(batch, data.plan, local=data.local)
        seconds = perf_counter() - start
        taken += 1
        samples, tokens = counted(engine, data.plan)
        on_step(StepRecord(engine.steps, epoch, loss, lr, engine.grad_norm, seconds, samples, tokens))
    return taken


def counted(engine: Engine, plan: StepPlan | None) -> tuple[int, int | None]:
    """Samples and tokens of a step that was taken; of packed rows the documents, or rows, are samples."""
    if plan is None or engine.active.sizes is None:
        return engine.program.batch, tokens_of(engine.program)
    total = engine.shape.batch
    if engine.active.sizes.unit is Count.TOKENS:
        firsts = {engine.active.sizes.group_of(number)[0] for number in range(len(plan.pipelines))}
        rows = [micro for number in firsts for micro in plan.pipelines[number]]
        return sum(max(len(micro.documents), 1) for micro in rows), total
    shape = engine.program.inputs.get(TOKENS)
    return total, None if shape is None else total * math.prod(shape[0][1:])


def _check_batch(before: Program, after: Program) -> None:
    if before.sizes is not None and after.sizes is not None and before.sizes.unit is after.sizes.unit:
        return
    if before.batch != after.batch or before.inputs != after.inputs:
        raise RunError(
            "the strategy takes other global batches than the one before it",
            details=[("before", f"{before.batch} samples"), ("now", f"{after.batch} samples")],
            rule="training goes on with the same data",
            fix="compile the strategies for one global batch and one form of the inputs",
        )


def tokens_of(program: Program) -> int | None:
    """Tokens of a global batch, None for a model that takes none."""
    return math.prod(program.inputs[TOKENS][0]) if TOKENS in program.inputs else None


def _no_batch(batch: int, left_out: int) -> RunError:
    return RunError(
        "the data has not one whole batch",
        details=[("batch", f"{batch} samples"), ("epoch", f"{left_out} samples")],
        rule="an epoch has at least one batch of the size that the program was compiled for",
    )
