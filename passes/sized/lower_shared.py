"""A compile of rows that pipelines share: each is laid out for its own tokens; members meet in attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...base.comm_plan import CostModel
from ...base.context import ContextCut, member_runs
from ...base.devices import DeviceKind
from ...ir.annotated import PipelineGraph
from ...ir.graph import LogicalGraph
from ...ir.own_names import RANDOM_MASK, RANDOM_NUMBERS
from ...ir.type_text import dtype_name
from ..compile_state import Deduced, Traced
from ..context.attend import SharedMembers
from ..context.lengths import LengthGraphs
from ..context.marks import DOCUMENTS, OPERANDS, Attention, marked
from ..context.share import FORMS, alone, meeting
from ..context.token_rows import TokenRows
from ..lower.lower import Lowered
from ..pass_chain import Dump
from ..pipeline import laying_out
from .probes import Probe
from .refusals import balanced_random, shared_attention

GraphAt = Callable[[int], LogicalGraph]
"""The traced step at a number of tokens, of as many rows as there are micro-batches."""
ALONE = -1
DRAWN = frozenset(name.removesuffix(".default") for name in (RANDOM_MASK, RANDOM_NUMBERS))


def lower_shared(
    probe: Probe,
    graph_at: GraphAt,
    device: DeviceKind,
    cost: CostModel | None = None,
    dump: Dump | None = None,
    rows: TokenRows | None = None,
) -> Lowered:
    """The programs of all ranks, of the probe's sizes.

    rows: what of the model a piece of a sample changes; None: of packed rows, of which nothing does.
    """
    strategy, dump = alone(probe.strategy), dump or Dump(None)
    laid: dict[int, Deduced] = {}
    pipelines: list[PipelineGraph] = []
    attention: list[list[Attention]] = []
    for number, own in enumerate(probe.plan.pipelines):
        key = ALONE if probe.strategy.context_of(number) is None else number
        if key not in laid:
            graph = graph_at(own[0].tokens)
            laid[key] = laying_out(strategy, cost, probe.cuts_of(number)).run(Traced(graph), dump)
        graph_of, found = laid[key].pipelines[number], list[Attention]()
        if key != ALONE:
            if rows is None:
                _check_packed(probe, graph_of, number)
            graph_of, found = _marked(probe, graph_at, graph_of, number, rows)
        pipelines.append(graph_of)
        attention.append(found)
    state = replace(next(iter(laid.values())), pipelines=pipelines)
    lowered = meeting(state, _members(probe, attention), device, cost, dump)
    whole = graph_at(probe.tokens)
    inputs = {name: (info.shape, dtype_name(info.dtype)) for name, info in whole.inputs.items()}
    return replace(lowered, program=replace(lowered.program, batch=whole.batch, inputs=inputs))


def _check_packed(probe: Probe, graph: PipelineGraph, number: int) -> None:
    """A refusal where a member's attention does not tell documents, or random numbers have no place."""
    wrong = [row.where for row in graph.rows if row.op in OPERANDS and row.op not in DOCUMENTS]
    if wrong:
        raise shared_attention(list(dict.fromkeys(wrong)))
    spec = probe.strategy.context_of(number)
    drawn = [row.where for row in graph.rows if row.op in DRAWN]
    if drawn and spec is not None and spec.cut is ContextCut.BALANCED:
        raise balanced_random(list(dict.fromkeys(drawn)))


def _marked(
    probe: Probe, graph_at: GraphAt, graph: PipelineGraph, number: int, rows: TokenRows | None
) -> tuple[PipelineGraph, list[Attention]]:
    """A member's pipeline, whose attention is marked."""
    spec, micro = probe.strategy.context_of(number), probe.plan.pipelines[number][0]
    assert spec is not None, "a member"
    own, whole = graph_at(micro.tokens), graph_at(probe.tokens)
    graphs = LengthGraphs(own, whole, whole, (micro.tokens, probe.tokens, probe.tokens))
    runs = member_runs(micro.ring, len(spec.pipelines))[spec.pipelines.index(number)]
    return marked(graph, rows or TokenRows(frozenset(), {}, frozenset(own.inputs)), graphs, runs)


def _members(probe: Probe, attention: Sequence[Sequence[Attention]]) -> list[SharedMembers]:
    return [
        SharedMembers(
            spec.pipelines,
            member_runs(probe.plan.pipelines[spec.pipelines[0]][0].ring, len(spec.pipelines)),
            tuple(attention[pipeline] for pipeline in spec.pipelines),
            FORMS.get(spec.form),
        )
        for spec in probe.strategy.context
    ]
