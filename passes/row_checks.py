"""Whether rows hang together: each value is made once, and before it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..ir.annotated import AnnotatedRow, AnnotatedValue, PipelineGraph
from ..ir.graph import LogicalGraph, row_inputs
from .texts.cells import value_name

if TYPE_CHECKING:
    from .liveness import LivePipeline, StageRows


def graph_problems(graph: LogicalGraph) -> Iterator[str]:
    """Of a logical graph: rows are numbered in order, and read earlier ones."""
    for number, row in enumerate(graph.rows):
        if row.id != number:
            yield f"row {number} is numbered {row.id}"
        late = [read for read in row_inputs(row) if not 0 <= read < number]
        if late:
            yield f"row {number}, {row.op}, reads {late}, which are not made before it"
    named = [graph.loss, *(info.row for info in graph.params.values()), *graph.mutated.values()]
    yield from (f"the graph names row {row}, which is not there" for row in named if row >= len(graph.rows))


def deduced_problems(graph: PipelineGraph) -> Iterator[str]:
    """Of a deduced pipeline, before it is cut into stages."""
    known = _leaves(graph, None)
    yield from _problems_of_rows(graph.rows, known)
    yield from (f"{what} is not made" for what, value in _results(graph) if value.id not in known)


def live_problems(
    pipelines: Sequence[PipelineGraph], before: Iterable[LivePipeline], after: Sequence[LivePipeline]
) -> Iterator[str]:
    """Of pipelines that a pass has changed, each once: every stage makes or receives what it reads."""
    seen = {id(live) for live in before}
    for graph, live in zip(pipelines, after, strict=True):
        if id(live) in seen:
            continue
        seen.add(id(live))
        made: set[int] = _leaves(graph, None)
        for number, rows in enumerate(live.stages):
            gathered = {
                value.id for (name, at), value in graph.params.items() if at == number and name in rows.stored
            }
            found = _stage_problems(rows, _leaves(graph, number) - gathered, made)
            yield from (f"pipeline {graph.pipeline}, stage {number}: {text}" for text in found)
        yield from (f"{what} is not made" for what, value in _results(graph) if value.id not in made)


def _stage_problems(rows: StageRows, known: set[int], made: set[int]) -> Iterator[str]:
    """known: what a stage has; made: grows with what all stages of a pipeline have."""
    known |= {value.id for value in rows.stored.values()}
    known |= {crossing.row.out.id for crossing in rows.arrivals}
    known |= {step.row.out.id for step in (*rows.steps, *rows.sums)}
    for step in rows.steps:
        shares = set(known)
        yield from _problems_of_rows(step.rows, shares)
        if step.share.id not in shares:
            yield f"the share of {value_name(step.row.out)} is not made"
    yield from _problems_of_rows((*rows.forward, *rows.backward), known)
    given = [crossing.source for crossing in rows.departures] + [step.share for step in rows.sums]
    yield from (f"{value_name(value)} is sent, and not made" for value in given if value.id not in known)
    made |= known


def _problems_of_rows(rows: Iterable[AnnotatedRow], known: set[int]) -> Iterator[str]:
    """known: what is made before; grows with what rows make."""
    for row in rows:
        number = row.out.id
        if number in known:
            yield f"{value_name(row.out)}, {row.op}, is made twice"
        for value in row.reads:
            if value.id not in known:
                late = value_name(value)
                yield f"{value_name(row.out)}, {row.op}, reads {late}, which is not made before it"
        known.add(number)


def _leaves(graph: PipelineGraph, stage: int | None) -> set[int]:
    """Values that no row makes: of one stage, or of all."""
    leaves = (*graph.params.items(), *graph.inputs.items())
    found = {value.id for (_, at), value in leaves if stage is None or at == stage}
    return found | {value.id for at, value in graph.keys.items() if stage is None or at == stage}


def _results(graph: PipelineGraph) -> Iterator[tuple[str, AnnotatedValue]]:
    yield from ((f"the gradient of {term.param}", term.value) for term in graph.grads)
    yield from ((f"the new value of {update.buffer}", update.value) for update in graph.buffers)
    if graph.loss is not None:
        yield "the loss", graph.loss
