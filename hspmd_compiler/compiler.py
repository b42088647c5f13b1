"""From a model and a strategy to an artifact; `passes/pipeline.py` has the steps in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from .artifact.manifest import describe
from .artifact.store import Artifact
from .base.collection import without_collection
from .base.comm_plan import CostModel
from .base.devices import DeviceKind
from .base.log import logger, task
from .errors import OptionError
from .ir import graph_json
from .ir.anchor_rows import anchors_of
from .ir.graph import LogicalGraph
from .models.compile_subject import CompileSubject, Factory, Inputs, subject_of
from .models.models import ModelSource
from .options import Capture, OptimizerConfig, PlanChoice, PlanSpace, Precision, is_count
from .pages.training_page import narrow_warning
from .passes.compile_state import Example, Traced
from .passes.deduction.expert_form_choice import with_expert_form
from .passes.layout_wishes import bind_layouts, refuse_unmatched, unmatched
from .passes.losses.prove import LEAST, LossOfGraph, prove_loss
from .passes.lower.lower import Lowered
from .passes.optimizer_check import check_optimizer
from .passes.packed.left_out_mask import StepOf, with_left_out, without_masks
from .passes.pass_chain import Dump, begin
from .passes.pipeline import planning, tracing
from .passes.sized.lower_sized import lower_sized
from .passes.sized.probe_graphs import StepSource
from .passes.sized.symbols import check_on_symbols
from .passes.trace import Trace
from .strategy.check import check
from .strategy.form import form_of
from .strategy.strategy import ScheduleKind, Strategy

if TYPE_CHECKING:
    from .cluster.cluster import ClusterSpec
    from .synthesizer.planner.plan import Plan

Traces = dict[tuple[int, int, int, tuple[str, ...] | None], Traced]
"""By identities of model and inputs, samples of a step, and which places get an anchor."""


@dataclass(slots=True)
class Compiled:
    """An artifact that is not written yet, and the whole graph that it came from.

    traced: how much of the model was traced, and why. model: what it was compiled from, to be compared
    with; live: the model whose weights are saved. loss: what it is over samples, if that was asked for.
    """

    artifact: Artifact
    graph: LogicalGraph
    traced: str
    live: nn.Module | None = field(default=None)
    model: ModelSource | nn.Module | None = field(default=None)
    examples: Inputs | None = field(default=None)
    loss: LossOfGraph | None = field(default=None)


def compile_model(
    model: ModelSource | Factory | nn.Module | str,
    example_inputs: Inputs | None,
    strategy: Strategy,
    optimizer: OptimizerConfig,
    device: DeviceKind,
    dump: Path | None = None,
    capture: Capture = Capture.AUTO,
    precision: Precision = Precision.MODEL,
    cost: CostModel | None = None,
    cluster: object = None,
    symbolic: bool = False,
) -> Compiled:
    """All steps of a compile; nothing is written but the dump. cluster: its form, that `cost` is of."""
    check(strategy)
    with without_collection():
        subject = without_masks(subject_of(model, example_inputs), _steps(capture, precision))
        if symbolic:
            check_on_symbols(subject, strategy)
        given = (subject, strategy, optimizer, device, Dump(dump), capture, precision, cost)
        made = _compiled(*given, cluster=cluster)
    made.artifact.cluster = cluster
    return made


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One of several strategies, as `compile_model` takes it. cost: what ways are compared by."""

    strategy: Strategy
    model: ModelSource | Factory | nn.Module | str
    example_inputs: Inputs | None = None
    cost: CostModel | None = None


def compile_several(
    jobs: Mapping[str, CompileJob],
    optimizer: OptimizerConfig,
    device: DeviceKind,
    dump: Path | None = None,
    capture: Capture = Capture.AUTO,
    precision: Precision = Precision.MODEL,
    cluster: object = None,
    proves_loss: bool = False,
) -> dict[str, Compiled]:
    """As `compile_model` of each; what they share is built, and traced, once.

    proves_loss: also what the loss is over samples, for steps in parts. dump: has a folder for each; the
    texts of a shared trace are in that of the first.
    """
    for job in jobs.values():
        check(job.strategy)
    subjects: dict[int, CompileSubject] = {}
    called: dict[tuple[int, int], tuple[CompileSubject, CompileSubject]] = {}
    traces: Traces = {}
    losses: dict[tuple[int, int, int], LossOfGraph] = {}
    made: dict[str, Compiled] = {}
    with without_collection():
        for name, job in jobs.items():
            subject = without_masks(_subject(job, subjects), _steps(capture, precision), called)
            to = Dump(None if dump is None else dump / name)
            with task(f"compile {name}"):
                given = (optimizer, device, to, capture, precision, job.cost, traces, cluster)
                made[name] = _compiled(subject, job.strategy, *given)
            made[name].artifact.cluster = cluster
            if proves_loss:
                with task(f"prove the loss of {name}"):
                    batch = job.strategy.global_batch
                    made[name].loss = _loss(subject, batch, capture, precision, traces, losses)
    return made


def _loss(
    subject: CompileSubject,
    batch: int,
    capture: Capture,
    precision: Precision,
    traces: Traces,
    known: dict[tuple[int, int, int], LossOfGraph],
) -> LossOfGraph:
    """What the loss is over samples, by graphs without anchors of so many and of twice as many."""
    batch = max(batch, LEAST)
    key = (id(subject.model), id(subject.inputs), batch)
    if key not in known:
        own = traces.get((*key, None)) or trace_graph(
            subject.model, subject.inputs, batch, capture, precision
        )
        doubled = trace_graph(subject.model, subject.inputs, 2 * batch, capture, precision)
        known[key] = prove_loss(own.graph, doubled.graph)
    return known[key]


def _steps(capture: Capture, precision: Precision) -> StepOf:
    return lambda model, inputs, batch: trace_graph(model, inputs, batch, capture, precision).graph


def _subject(job: CompileJob, known: dict[int, CompileSubject]) -> CompileSubject:
    """What a job compiles: the model is built once, and taken with the inputs of each."""
    own = job.example_inputs
    if isinstance(job.model, nn.Module):
        return subject_of(job.model, own)
    if id(job.model) not in known:
        known[id(job.model)] = subject_of(job.model, None)
    found = known[id(job.model)]
    return found if own is None else replace(found, inputs=own, examples=own)


def _compiled(
    subject: CompileSubject,
    strategy: Strategy,
    optimizer: OptimizerConfig,
    device: DeviceKind,
    dump: Dump,
    capture: Capture,
    precision: Precision,
    cost: CostModel | None,
    traces: Traces | None = None,
    cluster: object = None,
) -> Compiled:
    """traces: of other strategies of the same options; a new one is put there. cluster: its form."""
    if strategy.sizes is not None:
        return _compiled_for_sizes(subject, strategy, optimizer, device, dump, capture, precision, cost)
    batch, anchors = strategy.global_batch, strategy.anchor_globs
    key = (id(subject.model), id(subject.inputs), batch, anchors)
    traced = None if traces is None else traces.get(key)
    if traced is None:
        traced = trace_graph(subject.model, subject.inputs, batch, capture, precision, dump, anchors)
    if traces is not None:
        traces[key] = traced
    graph = _bound(traced.graph, strategy, subject, capture, batch)
    check_optimizer(optimizer, graph.params)
    if strategy.schedule is ScheduleKind.AUTO:
        from .synthesizer.planner.schedules import choose_schedule

        strategy = choose_schedule(graph, strategy, optimizer, device, cluster)
    if strategy.context:
        lowered = _shared(graph, subject, strategy, device, dump, cost, capture, precision)
    else:
        strategy = with_expert_form(graph, strategy, cost)
        lowered = lower_graph(graph, strategy, device, dump, cost)
    return _described(subject, Traced(graph, traced.how), lowered, strategy, optimizer, precision)


def _compiled_for_sizes(
    subject: CompileSubject,
    strategy: Strategy,
    optimizer: OptimizerConfig,
    device: DeviceKind,
    dump: Dump,
    capture: Capture,
    precision: Precision,
    cost: CostModel | None,
) -> Compiled:
    """One program for micro-batches of any size; the graph is that of its first probe."""

    def trace(inputs: Inputs, batch: int, to: Dump) -> Traced:
        chain = begin(Trace(capture, precision, strategy.anchor_globs))
        return chain.run(Example(subject.model, inputs, batch), to)

    def bound(graph: LogicalGraph, inputs: Inputs, batch: int) -> LogicalGraph:
        made = _bound(graph, strategy, replace(subject, inputs=inputs), capture, batch)
        check_optimizer(optimizer, made.params)
        return made

    step = StepSource(subject.inputs, trace, bound)
    traced, lowered = lower_sized(step, strategy, device, cost, dump)
    return _described(subject, traced, lowered, strategy, optimizer, precision)


def _described(
    subject: CompileSubject,
    traced: Traced,
    lowered: Lowered,
    strategy: Strategy,
    optimizer: OptimizerConfig,
    precision: Precision,
) -> Compiled:
    """The artifact of a program."""
    graph = traced.graph
    program = with_left_out(lowered.program, subject.left_out)
    if (warning := narrow_warning(program)) is not None:
        logger.warning("%s", warning)
    form = form_of(strategy)
    with task("describe"):
        traced_json = graph_json.encode(graph)
        manifest = describe(subject.description, traced_json, optimizer, program, form, precision)
        artifact = Artifact(
            manifest=manifest,
            program=program,
            strategy=form,
            init=None if subject.init is None else subject.init.to_json(),
            graph=traced_json,
            layouts=lowered.layouts.to_json(),
        )
    model = subject.live or subject.source
    return Compiled(artifact, graph, traced.how, subject.live, model, subject.examples)


def _bound(
    graph: LogicalGraph, strategy: Strategy, subject: CompileSubject, capture: Capture, batch: int
) -> LogicalGraph:
    """The graph with the strategy's layouts in its anchors; a wish that names none is told all there are."""
    if unmatched(strategy, anchors_of(graph)):
        every = trace_graph(subject.model, subject.inputs, batch, capture, anchors=("*",))
        refuse_unmatched(strategy, anchors_of(every.graph))
    return bind_layouts(graph, strategy)


def _shared(
    graph: LogicalGraph,
    subject: CompileSubject,
    strategy: Strategy,
    device: DeviceKind,
    dump: Dump,
    cost: CostModel | None,
    capture: Capture,
    precision: Precision,
) -> Lowered:
    """The programs of a strategy whose pipelines share sequences. graph: of whole ones."""
    from .passes.context.lengths import LengthGraphs, at_tokens, probes_below, tokens_of
    from .passes.context.share import alone, check_lengths, share_sequences
    from .passes.sized.empty_members import has_empty_members, lower_empty_members

    tokens = check_lengths(strategy, tokens_of(subject.inputs))
    batch, anchors = alone(strategy).global_batch, strategy.anchor_globs
    lengths = (*probes_below(tokens), tokens)
    one, other, third = (
        trace_graph(
            subject.model, at_tokens(subject.inputs, tokens, length), batch, capture, precision, dump, anchors
        ).graph
        for length in lengths
    )
    graphs = LengthGraphs(one, other, third, lengths)
    lower = lower_empty_members if has_empty_members(strategy) else share_sequences
    return lower(graphs, graph, strategy, device, cost, dump)


def trace_graph(
    model: nn.Module,
    inputs: Inputs,
    batch: int,
    capture: Capture = Capture.AUTO,
    precision: Precision = Precision.MODEL,
    dump: Dump | None = None,
    anchors: tuple[str, ...] | None = None,
) -> Traced:
    """The training step at a global batch of `batch` samples, attention retargeted.

    anchors: globs over names of places that get an anchor, `("*",)` for all; None: no place has one.
    """
    return tracing(capture, precision, anchors).run(Example(model, inputs, batch), dump)


def lower_graph(
    graph: LogicalGraph,
    strategy: Strategy,
    device: DeviceKind,
    dump: Dump | None = None,
    cost: CostModel | None = None,
) -> Lowered:
    """The programs of all ranks that train a graph by a strategy."""
    return planning(strategy, device, cost).run(Traced(graph), dump)


def planned(
    model: ModelSource | Factory | nn.Module | str,
    example_inputs: Inputs | None,
    cluster: tuple[ClusterSpec, str],
    optimizer: OptimizerConfig,
    choice: PlanChoice,
    global_batch: int | None = None,
    capture: Capture = Capture.AUTO,
    precision: Precision = Precision.MODEL,
) -> Plan:
    """A strategy for a model on a cluster. cluster: with where it comes from."""
    from .synthesizer.planner.hap_programs import HapSearcher
    from .synthesizer.planner.plan import plan_graph
    from .synthesizer.planner.planned_devices import check_machines
    from .synthesizer.planner.searching import find_candidates

    spec, at = cluster
    batch = _batch(global_batch)
    subject = without_masks(subject_of(model, example_inputs), _steps(capture, precision))
    check_machines(spec, _types(subject.model, precision), at)
    if batch is None:
        batch = len(next(iter(subject.inputs.values()))) * max(len(list(spec.slots)), 1)
    with without_collection():
        graph = trace_graph(subject.model, subject.inputs, batch, capture, precision, anchors=("*",)).graph
        check_optimizer(optimizer, graph.params)
        is_full = choice.space is PlanSpace.FULL
        searcher = find_candidates if is_full else HapSearcher(choice, subject.model, subject.inputs)
        return plan_graph(graph, spec, optimizer, searcher=searcher, at=at, fills=is_full)


def _types(model: nn.Module, precision: Precision) -> list[str]:
    """Element types that products are computed in, before there is a graph to read them from."""
    if precision is not Precision.MODEL:
        return [precision.value]
    held = {param.dtype for param in model.parameters() if param.is_floating_point()}
    return sorted(str(dtype).removeprefix("torch.") for dtype in held)


def _batch(given: object) -> int | None:
    """Samples of a step, if they are told."""
    if given is None or (is_count(given) and given >= 1):
        return given
    raise OptionError(
        "the global batch is no number of samples",
        details=[("global batch", repr(given))],
        rule="a step has at least one sample",
        fix="--global-batch 64",
    )


def cost_on(
    cluster: ClusterSpec | str | Path | Mapping[str, object], strategy: Strategy
) -> tuple[CostModel, object]:
    """What communication costs there, and the form of the cluster, which the artifact keeps."""
    from .cluster.written import cluster_form
    from .cost_models.steps.figures import cost_of_ranks

    machines, at = cluster_from(cluster)
    return cost_of_ranks(machines, at, strategy.devices), cluster_form(machines)


def cluster_from(cluster: ClusterSpec | str | Path | Mapping[str, object]) -> tuple[ClusterSpec, str]:
    """The cluster, and the file that it comes from."""
    from .cluster.cluster import ClusterSpec
    from .cluster.read import read_cluster

    if isinstance(cluster, ClusterSpec):
        return cluster, ""
    return read_cluster(cluster), "" if isinstance(cluster, Mapping) else str(cluster)
