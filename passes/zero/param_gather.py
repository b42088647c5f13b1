"""ZeRO-3 inside a step: a parameter's local tensor is gathered just before its use, forward and backward.

That is a collective of all holders in the middle of their work, so they have to reach it in the same
order: it is done where pipelines run the same stages on as many micro-batches. Other strategies gather at
the start of a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch

from ...annotations.of_layout import layout_states
from ...ir.annotated import GATHER, AnnotatedRow, AnnotatedValue, PipelineGraph
from ...ir.graph import Phase
from ...program.program import ZERO_PARAMS
from ...strategy.strategy import Strategy
from ..compile_state import Gathered, Live, grown
from ..liveness import LivePipeline, StageRows
from ..param_places import ParamPlaces
from ..pass_chain import Pass
from ..recompute import with_clones
from ..row_checks import live_problems
from ..texts.cells import Line, joined, ranks_text

CAST = "aten._to_copy.default"
NAME = "name"

Order = tuple[str, ...]


def gathered_inside(
    strategy: Strategy, pipelines: Sequence[PipelineGraph], names: Collection[str]
) -> frozenset[str]:
    """Those of the parameters that one stage of each pipeline holds, where pipelines work alike."""
    alike = {
        (
            tuple(stage.layers for stage in spec.stages),
            len(spec.micro_batches),
            spec.recompute,
            spec.schedule,
        )
        for spec in strategy.pipelines
    }
    if len(alike) > 1:
        return frozenset()
    stages: dict[str, set[int]] = {}
    for graph in pipelines:
        own: dict[str, int] = {}
        for name, stage in graph.params:
            own[name] = -1 if name in own else stage
        for name in names:
            stages.setdefault(name, set()).add(own.get(name, -1))
    return frozenset(name for name in names if len(stages[name]) == 1 and -1 not in stages[name])


def with_gathers(
    live: Sequence[LivePipeline],
    pipelines: Sequence[PipelineGraph],
    names: Collection[str],
    stored: Mapping[str, torch.dtype],
) -> list[LivePipeline] | None:
    """The pipelines with gather rows, in one order at each stage of all; None if there is no such order.

    stored: the types of rows, where parameters are read in another.
    """
    known: dict[int, LivePipeline] = {}
    orders: list[tuple[Order, Order]] = []
    for graph, pipeline in zip(pipelines, live, strict=True):
        if id(pipeline) in known:
            continue
        stages = []
        for number, rows in enumerate(pipeline.stages):
            values = {name: v for (name, at), v in graph.params.items() if at == number and name in names}
            own = _inserted(rows, values, stored, orders[number][0] if len(orders) > number else None)
            found = (_order(own.forward), _order(own.backward))
            if len(orders) <= number:
                orders.append(found)
            if any({*mine} != {*first} for mine, first in zip(found, orders[number], strict=True)):
                return None
            stages.append(replace(own, backward=_in_order(own.backward, orders[number][1])))
        known[id(pipeline)] = LivePipeline(stages, pipeline.made)
    return [known[id(pipeline)] for pipeline in live]


def _order(rows: Sequence[AnnotatedRow]) -> Order:
    return tuple(str(row.kwargs[NAME]) for row in rows if row.op == GATHER)


def _inserted(
    rows: StageRows,
    values: Mapping[str, AnnotatedValue],
    stored: Mapping[str, torch.dtype],
    order: Order | None,
) -> StageRows:
    """Gathers before the first reader in forward, and again in backward; nothing is kept between them."""
    every = (*rows.forward, *rows.backward)
    numbers = count(1 + max((value.id for row in every for value in (row.out, *row.reads)), default=0))
    held: dict[str, AnnotatedValue] = {}
    made: dict[str, tuple[AnnotatedRow, ...]] = {}
    for name, value in values.items():
        held[name] = replace(value, id=next(numbers), dtype=stored.get(name, value.dtype), logical=None)
        made[name] = tuple(_gather(name, value, held[name], numbers))
    first = _first_readers(rows.forward, {value.id: name for name, value in values.items()})
    wanted = order or ()
    others = [name for name in values if name not in wanted]
    names = [*wanted, *sorted(others, key=lambda name: first.get(name, -1))]
    forward = _placed(rows.forward, [made[name] for name in names], [first.get(name, 0) for name in names])
    inserted = replace(rows, forward=forward, stored=held)
    return with_clones(inserted, _static(inserted, made))


def _gather(
    name: str, value: AnnotatedValue, row: AnnotatedValue, numbers: Iterator[int]
) -> Iterator[AnnotatedRow]:
    """The row cast to the type that is read, then gathered."""
    source = row
    if row.dtype != value.dtype:
        source = replace(row, id=next(numbers), dtype=value.dtype)
        kwargs: dict[str, object] = {"dtype": value.dtype}
        yield AnnotatedRow(source, CAST, (row,), kwargs, value.stage, Phase.FORWARD, reads=(row,))
    out = replace(value, logical=None)
    yield AnnotatedRow(out, GATHER, (source,), {NAME: name}, value.stage, Phase.FORWARD, reads=(source,))


def _first_readers(rows: Sequence[AnnotatedRow], names: Mapping[int, str]) -> dict[str, int]:
    first: dict[str, int] = {}
    for index, row in enumerate(rows):
        for value in row.reads:
            if value.id in names:
                first.setdefault(names[value.id], index)
    return first


def _placed(
    rows: Sequence[AnnotatedRow], inserts: Sequence[Sequence[AnnotatedRow]], before: Sequence[int]
) -> list[AnnotatedRow]:
    """Rows with the inserts in their order, each at or before its place."""
    places = list(before)
    for index in reversed(range(len(places) - 1)):
        places[index] = min(places[index], places[index + 1])
    result: list[AnnotatedRow] = []
    done = 0
    for place, insert in zip(places, inserts, strict=True):
        result += rows[done:place]
        result += insert
        done = place
    return [*result, *rows[done:]]


def _static(rows: StageRows, made: Mapping[str, tuple[AnnotatedRow, ...]]) -> dict[int, AnnotatedRow]:
    """The gathers, and what is computed from gathered parameters alone: backward makes it again."""
    found = {row.out.id: row for each in made.values() for row in each}
    sent = {*(crossing.source.id for crossing in rows.departures), *(item.share.id for item in rows.sums)}
    for row in rows.forward:
        if row.out.static and row.out.id not in sent and any(value.id in found for value in row.reads):
            found[row.out.id] = row
    return found


def _in_order(rows: Sequence[AnnotatedRow], order: Order) -> list[AnnotatedRow]:
    """Gathers, with the casts before them, moved up to where all stages can do them in one order."""
    gathers = {str(row.kwargs[NAME]): row for row in rows if row.op == GATHER}
    sources = {row.reads[0].id for row in gathers.values()}
    casts = {row.out.id: row for row in rows if row.op == CAST and row.out.id in sources}
    moved = {row.out.id for row in gathers.values()} | casts.keys()
    others = [row for row in rows if row.out.id not in moved]
    first = _first_readers(others, {row.out.id: name for name, row in gathers.items()})
    inserts = [[*_found(casts, gathers[name].reads[0]), gathers[name]] for name in order]
    return _placed(others, inserts, [first.get(name, len(others)) for name in order])


def _found(casts: Mapping[int, AnnotatedRow], value: AnnotatedValue) -> list[AnnotatedRow]:
    return [casts[value.id]] if value.id in casts else []


def places_text(places: ParamPlaces, inside: frozenset[str]) -> str:
    """Per parameter how the ranks of each stage hold it, which addends its gradient has, and of what kind."""
    lines: list[Line] = []
    for name, held in places.places.items():
        cells = [f"{layout_states(layout, len(ranks))} on {ranks_text(ranks)}" for layout, ranks in held]
        lines.append((name, " | ".join(cells), "gathered where it is used" if name in inside else ""))
        if name in places.gradients:
            terms = places.gradients[name].terms
            texts = [
                f"{'a sum of' if term.addends else 'alike on'} {ranks_text([h.rank for h in term.holders])}"
                for term in terms
            ]
            lines.append(("  gradient", " + ".join(texts)))
    return joined(lines)


@dataclass(frozen=True, slots=True)
class ParamGather(Pass[Live, Gathered]):
    """Finds where parameters lie, whatever the strategy does with them."""

    def run(self, state: Live) -> Gathered:
        places = ParamPlaces(state.graph, state.pipelines, state.ranks)
        live = list(state.live)
        inside: frozenset[str] = frozenset()
        if state.strategy.zero >= ZERO_PARAMS:
            inside = gathered_inside(state.strategy, state.pipelines, places.shared())
        if inside:
            stored = {
                name: info.stored for name, info in state.graph.params.items() if info.stored is not None
            }
            gathered = with_gathers(live, state.pipelines, inside, stored)
            live, inside = (live, frozenset()) if gathered is None else (gathered, inside)
        return grown(Gathered, replace(state, live=live), places=places, inside=inside)

    def text(self, before: Live, after: Gathered) -> str:
        return places_text(after.places, after.inside)

    def problems(self, before: Live, after: Gathered) -> Iterator[str]:
        """All pipelines gather the same parameters, forward and backward."""
        yield from live_problems(after.pipelines, before.live, after.live)
        for number, live in enumerate(after.live if after.inside else ()):
            rows = [row for stage in live.stages for row in stage.forward if row.op == GATHER]
            gathered = {str(row.kwargs[NAME]) for row in rows}
            if gathered != after.inside:
                yield f"pipeline {number} does not gather {sorted(after.inside ^ gathered)}"
