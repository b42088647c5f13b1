"""Traces a model of repeated blocks by one block of each kind, and proves that the rest is the same.

Recordings of one eager step, forward and backward, of the whole model and of the reduced one must agree
after expansion (`check_step` sees a block that the parent treats by its place); only then the
reduced model is traced, and its rows expanded in the same way. In any doubt the whole model is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from ...base import name_glob
from ...base.collection import without_collection
from ...base.log import logger, task
from ...ir.anchor_rows import keep_anchors
from ...ir.graph import LogicalGraph
from ...ir.layers import find_layers
from ...options import Capture, Precision
from ..capture import JointOutputKind, OutputRole, quiet
from ..key_cache import without_key_cache
from ..precision import narrowed
from ..state.held_state import ReachableState
from ..state.python_state import traced_steadily
from ..tracer import (
    Factory,
    Inputs,
    Subject,
    alias_groups,
    assemble,
    finished,
    subject_of,
    trace_plain,
    trace_subject,
)
from .expand import StepRows, TemplateMismatch, expand
from .reduced_model import copy_with, reduced_copy
from .signatures import StackPlan, plan_stacks
from .step_record import CallTable, meta_like, record_step

ANY = "*"
KINDS = "one block of each kind"


@dataclass(frozen=True, slots=True)
class TraceResult:
    """The graph, and how it came about, for people."""

    graph: LogicalGraph
    how: str


def trace_step(
    model: nn.Module | Factory,
    example_inputs: Inputs | None = None,
    *,
    batch: int,
    capture: Capture = Capture.AUTO,
    precision: Precision = Precision.MODEL,
    anchors: tuple[str, ...] | None = None,
) -> TraceResult:
    """As `tracer.trace`, with repeated blocks traced once where that provably gives the same graph.

    precision: what the traced model computes in. anchors: globs over names of places that get an anchor.
    """
    subject = subject_of(model, example_inputs, batch=batch)
    subject = replace(subject, anchored=anchors is not None)
    with without_key_cache(subject.model, subject.inputs):
        if precision is Precision.MODEL:
            result = _traced(subject, capture)
        else:
            narrow = narrowed(subject, getattr(torch, precision.value))
            result = _traced(narrow.subject, capture)
            result = replace(result, graph=narrow.graph(result.graph))
    graph = result.graph if anchors is None else named_anchors(result.graph, anchors)
    return replace(result, graph=finished(graph))


def named_anchors(graph: LogicalGraph, globs: Sequence[str]) -> LogicalGraph:
    """The graph with those of its anchors that a glob names; all, if one is `*`."""
    if ANY in globs:
        return graph
    return keep_anchors(graph, lambda name: any(name_glob.matches_exactly(glob, name) for glob in globs))


def _traced(subject: Subject, capture: Capture) -> TraceResult:
    if capture is Capture.FULL:
        graph = traced_steadily(subject, trace_subject)
        return TraceResult(graph, "the whole model, as asked for")
    try:
        with without_collection():
            return _by_kinds(subject)
    except TemplateMismatch as mismatch:
        reason = str(mismatch)
    except Exception as error:  # the model's own code runs in there; tracing it whole tells what is wrong
        reason = _failure(error)
    logger.info("traced whole: %s", reason)
    return TraceResult(_trace_all(subject), f"the whole model, since {reason}")


def _failure(error: Exception) -> str:
    """Why a forward with fewer blocks failed, for people."""
    if isinstance(error, IndexError):
        return "its forward takes blocks by number, and fewer of them can't be counted like all"
    text = str(error).splitlines()[0][:200] if str(error) else ""
    return f"its forward fails with fewer blocks: {type(error).__name__}: {text}".rstrip(": ")


def _shown(stacks: Sequence[StackPlan]) -> str:
    parts = (f"{len(s.traced)} of {len(s.children)} blocks of {s.path or 'the model'}" for s in stacks)
    return f"{', '.join(parts)}, which stand for all: a recorded step of the whole model agrees"


def _by_kinds(subject: Subject) -> TraceResult:
    """By a block of each kind, and, where that isn't enough, by one of each kind among its neighbours."""
    stacks = plan_stacks(subject.model)
    try:
        return TraceResult(_by_templates(subject, stacks), _shown(stacks))
    except TemplateMismatch as mismatch:
        among = plan_stacks(subject.model, by_neighbours=True)
        if not among:
            raise
        try:
            return TraceResult(_by_templates(subject, among), _shown(among))
        except TemplateMismatch:
            raise mismatch from None


def _by_templates(subject: Subject, stacks: Sequence[StackPlan]) -> LogicalGraph:
    if not stacks:
        raise TemplateMismatch("no list of the model has blocks that are alike")
    _check_ties(subject.model, stacks)
    with task("compare blocks"), quiet():
        check_step(subject, stacks)
    kept = {id(t): t for t in (*subject.model.parameters(), *subject.model.buffers())}
    reduced = subject.of(reduced_copy(subject.model, kept, stacks))
    with task("trace blocks"):
        graph = _trace_all(reduced)
    with task("expand blocks"):
        step = expand_all(_step_of(graph), stacks, reduced.model)
        return assemble(subject, step.rows, step.outputs)


def _trace_all(subject: Subject) -> LogicalGraph:
    """All blocks, and again where forward changes what Python holds."""
    return traced_steadily(subject, _trace_once)


def _trace_once(subject: Subject) -> LogicalGraph:
    """All blocks by one plain run, or, where the step is not plain, by an export."""
    try:
        return trace_plain(subject)
    except Exception as reason:  # the model's own code runs in there
        logger.debug("exported, since %s", reason)
        return trace_subject(subject)


def _check_ties(model: nn.Module, stacks: Sequence[StackPlan]) -> None:
    paths = [f"{stack.full_path(block)}." for stack in stacks for block in range(len(stack.children))]
    for name, aliases in alias_groups(model):
        blocks = {next((path for path in paths if alias.startswith(path)), None) for alias in aliases}
        if len(blocks) > 1:
            raise TemplateMismatch(f"{name} is shared between a block and another place")


def check_step(subject: Subject, stacks: Sequence[StackPlan]) -> None:
    """A recorded step of the whole model is the expanded recording of the reduced one, call by call."""
    calls = CallTable()
    tensors = {id(t): meta_like(t) for t in (*subject.model.parameters(), *subject.model.buffers())}
    inputs = {name: meta_like(tensor) for name, tensor in subject.inputs.items()}
    reduced = reduced_copy(subject.model, tensors, stacks)
    expanded = expand_all(record_step(reduced, inputs, calls, ReachableState(reduced)), stacks, reduced)
    copied = copy_with(subject.model, tensors)
    state = ReachableState(copied)
    whole = record_step(copied, inputs, calls, state)
    if state.refused:
        raise TemplateMismatch(f"forward changes {state.refused[0][0]}")
    _compare(whole, expanded)


def _compare(whole: StepRows, expanded: StepRows) -> None:
    for row, other in zip(whole.rows, expanded.rows, strict=False):
        if row != other:
            where = "outside the blocks" if row.layer is None else f"in block {row.layer}"
            how = f"{row.op} in place of {other.op}" if row.op != other.op else f"{row.op} of other values"
            raise TemplateMismatch(f"the whole model calls {how} {where}, compared with {KINDS}")
    if len(whole.rows) != len(expanded.rows) or whole.outputs != expanded.outputs:
        raise TemplateMismatch(f"the whole model calls more, or less, than {KINDS}")


def expand_all(step: StepRows, stacks: Sequence[StackPlan], reduced: nn.Module) -> StepRows:
    """The step of the whole model, from one of the reduced model."""
    first = find_layers(reduced).index
    for stack in reversed(stacks):  # layer numbers before a stack stay
        step = expand(step, stack, first[stack.traced_path(0)])
    return step


def _step_of(graph: LogicalGraph) -> StepRows:
    outputs = {OutputRole(JointOutputKind.LOSS): graph.loss}
    for name, info in graph.params.items():
        if info.grad is not None:
            outputs[OutputRole(JointOutputKind.GRAD, name)] = info.grad
    outputs |= {OutputRole(JointOutputKind.BUFFER, name): row for name, row in graph.mutated.items()}
    return StepRows(graph.rows, outputs)
