"""Runs the cells of the matrix: a model is traced once, and compiled, stepped and compared per strategy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.util import find_spec
from time import perf_counter

import torch
from torch import Generator

from ..base.devices import DeviceKind
from ..base.log import task
from ..compiler import lower_graph, trace_graph
from ..errors import HspmdError
from ..ir.graph import LogicalGraph
from ..options import OptimizerConfig, OptimizerName
from ..program.check import check as check_program
from ..strategy.check import check as check_strategy
from ..strategy.strategy import Strategy
from ..verify.eager import whole_state
from ..verify.reference import SEED, Reference
from ..verify.shape.fit import check_fit
from ..verify.shape.shape_segments import ShapeBook
from ..verify.training import compare_training
from .model import SAMPLES, Batch, CoveredModel
from .strategies import Column, strategy_of

STEPS = 5
SPREAD = 0.3
"""Standard deviation of all parameters: none is zero or one, so that a wrong one shows."""
OPTIMIZER = OptimizerConfig(OptimizerName.ADAMW, lr=1e-3)
INSTALL = "install the extra `models`"


class Outcome(Enum):
    """Of one cell."""

    EXACT = "exact"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One model under one strategy. why: of a failure, or of not running it. errors: worst relative
    differences of loss, gradients and parameters over all steps."""

    model: str
    column: str
    outcome: Outcome
    why: str = ""
    errors: tuple[float, float, float] | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """For scripts."""
        loss, grads, params = self.errors or (None, None, None)
        return {
            "model": self.model,
            "strategy": self.column,
            "outcome": self.outcome.value,
            "why": self.why,
            "loss": loss,
            "gradients": grads,
            "parameters": params,
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True, slots=True)
class TracedModel:
    """What all cells of a model share. shapes: of operators that one of them has met."""

    model: CoveredModel
    graph: LogicalGraph
    reference: Reference
    batches: tuple[Batch, ...]
    shapes: ShapeBook = field(default_factory=ShapeBook)


def run_matrix(models: Sequence[CoveredModel], columns: Sequence[Column]) -> Iterator[MatrixCell]:
    """The cells, row by row, as they are done."""
    with task("coverage", len(models) * len(columns)) as progress:
        for model in models:
            for cell in _run_row(model, columns):
                progress.advance()
                yield cell


def _run_row(model: CoveredModel, columns: Sequence[Column]) -> Iterator[MatrixCell]:
    missing = [package for package in model.needs if find_spec(package) is None]
    if missing:
        why = f"{', '.join(missing)} is not installed: {INSTALL}"
        yield from (MatrixCell(model.name, column.name, Outcome.NOT_RUN, why) for column in columns)
        return
    try:
        traced = trace_model(model)
    except HspmdError as error:
        yield from (MatrixCell(model.name, column.name, Outcome.FAILED, error.text()) for column in columns)
        return
    for column in columns:
        left_out = model.left_out.get(column.name)
        if left_out is not None:
            yield MatrixCell(model.name, column.name, Outcome.NOT_RUN, left_out)
        else:
            yield run_cell(traced, column)


def trace_model(model: CoveredModel) -> TracedModel:
    """The model's graph, values that show every mistake, and the batches of all steps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        built = model.build()
        with torch.no_grad():
            for parameter in built.parameters():
                parameter.normal_(std=SPREAD)
    generator = Generator().manual_seed(SEED)
    batches = tuple(model.batch(generator) for _ in range(STEPS))
    graph = trace_graph(built, batches[0], SAMPLES).graph
    state = {name: value.detach().clone() for name, value in whole_state(built).items()}
    return TracedModel(model, graph, Reference(model.build, state, None), batches)


def run_cell(traced: TracedModel, column: Column) -> MatrixCell:
    """Compile, check that the ranks fit, and compare every step with one device in float64."""
    start = perf_counter()
    model = traced.model
    strategy = strategy_of(column, len(traced.graph.layers), whole_statistics=model.whole_statistics)
    try:
        errors = _compared(traced, strategy)
    except HspmdError as error:
        seconds = perf_counter() - start
        return MatrixCell(model.name, column.name, Outcome.FAILED, error.text(), seconds=seconds)
    return MatrixCell(model.name, column.name, Outcome.EXACT, errors=errors, seconds=perf_counter() - start)


def _compared(traced: TracedModel, strategy: Strategy) -> tuple[float, float, float]:
    check_strategy(strategy)
    program = lower_graph(traced.graph, strategy, DeviceKind.CPU).program
    check_program(program)
    check_fit(program, book=traced.shapes)
    steps = compare_training(program, traced.reference, traced.batches, OPTIMIZER).steps
    return (
        max(step.loss.error for step in steps),
        max(item.error for step in steps for item in step.grads),
        max(item.error for step in steps for item in step.params),
    )
