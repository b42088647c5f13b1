"""What of a pipeline's rows is needed, and how rows fall into forward, backward and step segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.annotated import COMM, STEP_REDUCE, AnnotatedRow, AnnotatedValue, PipelineGraph
from ..ir.graph import Phase
from .compile_state import Deduced, Live, grown
from .pass_chain import Pass
from .row_checks import live_problems
from .texts.cells import Line, alike, joined, row_cells, value_cells

Made = Mapping[int, AnnotatedRow | None]
"""What makes a value, by its id."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that is sent from one stage to another. row: the marker's row, in the target stage."""

    row: AnnotatedRow
    source: AnnotatedValue

    @property
    def source_stage(self) -> int:
        assert self.row.marker is not None
        return self.row.marker.source_stage

    @property
    def target_stage(self) -> int:
        return self.row.stage


@dataclass(frozen=True, slots=True)
class StepValue:
    """A value made once a step: its share, summed over micro-batches and ranks, and its result.

    rows: what makes the share out of inputs, before the passes; none where a pass makes it. counts: whether
    this stage counts; of several stages of a pipeline that use the value one does, the others add zero.
    """

    row: AnnotatedRow
    share: AnnotatedValue
    rows: tuple[AnnotatedRow, ...] = ()
    counts: bool = True

    @property
    def key(self) -> tuple[int, int]:
        """The same in all stages and pipelines that use the value."""
        _, row, number = self.row.args
        assert isinstance(row, int) and isinstance(number, int), "written by the deduction"
        return row, number


@dataclass(slots=True)
class StageRows:
    """One stage's rows in order, its crossings and step values. steps: those that inputs alone make.
    sums: those whose shares the passes make. stored: rows of parameters' elements."""

    forward: list[AnnotatedRow] = field(default_factory=list)
    backward: list[AnnotatedRow] = field(default_factory=list)
    arrivals: list[Crossing] = field(default_factory=list)
    departures: list[Crossing] = field(default_factory=list)
    steps: list[StepValue] = field(default_factory=list)
    sums: list[StepValue] = field(default_factory=list)
    stored: dict[str, AnnotatedValue] = field(default_factory=dict)


@dataclass(slots=True)
class LivePipeline:
    """The needed rows of a pipeline by stage. made: value id -> the row that makes it."""

    stages: list[StageRows]
    made: dict[int, AnnotatedRow]


def live_pipeline(graph: PipelineGraph, stages: int) -> LivePipeline:
    """Keep what the loss, the gradients and new values of buffers need."""
    made = {row.out.id: row for row in graph.rows}
    roots = [term.value for term in graph.grads] + [update.value for update in graph.buffers]
    roots += [graph.loss] if graph.loss is not None else []
    inner = made | {row.out.id: None for row in graph.rows if is_step(row)}
    live = _closure(roots, inner)
    steps = [row for row in graph.rows if row.out.id in live and is_step(row)]
    before = _closure([value for row in steps for value in row.reads], made)
    result = LivePipeline([StageRows() for _ in range(stages)], made)
    for row in graph.rows:
        if row.out.id in live or (row.out.id in before and is_step(row)):
            _sort_in(row, result, inner)
    return result


def is_step(row: AnnotatedRow) -> bool:
    """Whether it makes a step value out of inputs alone, before the passes."""
    return row.op == STEP_REDUCE and row.out.pure


def _sort_in(row: AnnotatedRow, result: LivePipeline, inner: Made) -> None:
    """inner: what makes values, but for step values of inputs."""
    stage = result.stages[row.stage]
    marker = row.marker
    if row.op == COMM and marker is not None and marker.source_stage != marker.target_stage:
        crossing = Crossing(row, row.reads[0])
        stage.arrivals.append(crossing)
        result.stages[marker.source_stage].departures.append(crossing)
    elif is_step(row):
        share = row.reads[0]
        needed = _closure([share], inner)
        rows = tuple(other for other in inner.values() if other is not None and other.out.id in needed)
        stage.steps.append(StepValue(row, share, rows))
    elif row.op == STEP_REDUCE:
        stage.sums.append(StepValue(row, row.reads[0]))
    elif row.phase is Phase.FORWARD:
        stage.forward.append(row)
    else:
        stage.backward.append(row)


def _closure(roots: Iterable[AnnotatedValue], made: Made) -> set[int]:
    """Ids of values that the roots need, as far as it is said what makes them."""
    live: set[int] = set()
    queue = list(roots)
    while queue:
        number = queue.pop().id
        if number not in live:
            live.add(number)
            row = made.get(number)
            if row is not None:
                queue += row.reads
    return live


def live_text(pipelines: Sequence[PipelineGraph], live: Sequence[LivePipeline]) -> str:
    """Per pipeline what is dropped; per stage how much it has to do, and what it gets from others."""
    graphs = {id(held): graph for graph, held in zip(pipelines, live, strict=True)}
    lines: list[Line] = []
    for title, held in alike(live):
        lines.append((title,))
        kept = {row.out.id for rows in held.stages for row in _every(rows)}
        dropped = [row for row in graphs[id(held)].rows if row.out.id not in kept]
        lines += [("  not needed", *row_cells(row)) for row in dropped]
        for number, rows in enumerate(held.stages):
            count = f"{len(rows.forward)} rows forward, {len(rows.backward)} backward"
            lines.append((f"  stage {number}", count))
            lines += [("    receives", *_crossing_cells(each, True)) for each in rows.arrivals]
            lines += [("    sends", *_crossing_cells(each, False)) for each in rows.departures]
    return joined(lines)


def _every(rows: StageRows) -> Iterator[AnnotatedRow]:
    yield from rows.forward
    yield from rows.backward
    for step in (*rows.steps, *rows.sums):
        yield step.row
        yield from step.rows
    yield from (crossing.row for crossing in rows.arrivals)


def _crossing_cells(crossing: Crossing, arrives: bool) -> Line:
    other = f"from stage {crossing.source_stage}" if arrives else f"to stage {crossing.target_stage}"
    return (*value_cells(crossing.source), other, crossing.row.phase.name.lower())


@dataclass(frozen=True, slots=True)
class Liveness(Pass[Deduced, Live]):
    """Pipelines that share their rows share what is needed of them."""

    def run(self, state: Deduced) -> Live:
        known: dict[int, LivePipeline] = {}
        for number, graph in enumerate(state.pipelines):
            if id(graph.rows) not in known:
                known[id(graph.rows)] = live_pipeline(graph, len(state.strategy.pipelines[number].stages))
        return grown(Live, state, live=[known[id(graph.rows)] for graph in state.pipelines])

    def text(self, before: Deduced, after: Live) -> str:
        return live_text(after.pipelines, after.live)

    def problems(self, before: Deduced, after: Live) -> Iterator[str]:
        return live_problems(after.pipelines, (), after.live)
