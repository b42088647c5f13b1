"""ZeRO-3 inside a step: a parameter's local tensor is gathered just before its use, forward and backward.

That is a collective of all holders in the middle of their work, so they have to reach it in the same
order: it is done where pipelines run the same stages on as many micro-batches. Other strategies gather at
the start of a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch

from ...annotations.of_layout import layout_states
from ...ir.annotated import GATHER, AnnotatedRow, AnnotatedValue, PipelineGraph
from ...program.program import ZERO_PARAMS
from ...strategy.strategy import Strategy
from ..compile_state import Gathered, Live, grown
from ..liveness import LivePipeline, StageRows
from ..param_places import ParamPlaces
from ..pass_chain import Pass
from ..recompute import with_clones
from ..row_checks import live_problems
from ..texts.cells import Line, joined, ranks_text
from .gather_groups import GatherGroup, gather_groups
from .gather_rows import GatherRows, first_readers, gather_rows, group_of, in_order, placed

Order = tuple[GatherGroup, ...]


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
    groups: Sequence[Sequence[GatherGroup]],
    stored: Mapping[str, torch.dtype],
) -> list[LivePipeline] | None:
    """The pipelines with gathers, in one order at each stage of all; None if there is no such order.

    groups: by stage. stored: the types of rows, where parameters are read in another.
    """
    known: dict[int, LivePipeline] = {}
    orders: list[tuple[Order, Order]] = []
    for graph, pipeline in zip(pipelines, live, strict=True):
        if id(pipeline) in known:
            continue
        stages = []
        for number, rows in enumerate(pipeline.stages):
            values = {name: v for (name, at), v in graph.params.items() if at == number}
            wanted = orders[number][0] if len(orders) > number else ()
            own = _inserted(rows, values, groups[number], stored, wanted)
            found = (_order(own.forward), _order(own.backward))
            if len(orders) <= number:
                orders.append(found)
            if any({*mine} != {*first} for mine, first in zip(found, orders[number], strict=True)):
                return None
            stages.append(replace(own, backward=in_order(own.backward, orders[number][1])))
        known[id(pipeline)] = LivePipeline(stages, pipeline.made)
    return [known[id(pipeline)] for pipeline in live]


def _order(rows: Sequence[AnnotatedRow]) -> Order:
    return tuple(group_of(row) for row in rows if row.op == GATHER)


def _inserted(
    rows: StageRows,
    values: Mapping[str, AnnotatedValue],
    groups: Sequence[GatherGroup],
    stored: Mapping[str, torch.dtype],
    order: Order,
) -> StageRows:
    """Gathers before the first reader in forward, and again in backward; nothing is kept between them."""
    every = (*rows.forward, *rows.backward)
    numbers = count(1 + max((value.id for row in every for value in (row.out, *row.reads)), default=0))
    held = {
        name: replace(
            values[name], id=next(numbers), dtype=stored.get(name, values[name].dtype), logical=None
        )
        for group in groups
        for name in group.names
    }
    made = {group: gather_rows(group, values, held, numbers) for group in groups}
    first = first_readers(rows.forward, {values[name].id: group for group in groups for name in group.names})
    others = [group for group in groups if group not in order]
    ordered = [*order, *sorted(others, key=lambda group: first.get(group, -1))]
    forward = placed(
        rows.forward, [made[group] for group in ordered], [first.get(group, 0) for group in ordered]
    )
    inserted = replace(rows, forward=forward, stored=held)
    return with_clones(inserted, _static(inserted, made.values()))


def _static(rows: StageRows, made: Iterable[GatherRows]) -> dict[int, AnnotatedRow]:
    """The gathers, and what is computed from gathered parameters alone: backward makes it again."""
    found = {row.out.id: row for each in made for row in each.every}
    sent = {*(crossing.source.id for crossing in rows.departures), *(item.share.id for item in rows.sums)}
    for row in rows.forward:
        if row.out.static and row.out.id not in sent and any(value.id in found for value in row.reads):
            found[row.out.id] = row
    return found


def places_text(places: ParamPlaces, groups: Sequence[GatherGroup]) -> str:
    """Per parameter how the ranks of each stage hold it, which addends its gradient has, and of what kind."""
    lines: list[Line] = []
    inside = {name: number for number, group in enumerate(groups) for name in group.names}
    for name, held in places.places.items():
        cells = [f"{layout_states(layout, len(ranks))} on {ranks_text(ranks)}" for layout, ranks in held]
        lines.append(
            (
                name,
                " | ".join(cells),
                f"gathered where it is used, in group {inside[name]}" if name in inside else "",
            )
        )
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
        groups: list[list[GatherGroup]] = []
        if state.strategy.zero >= ZERO_PARAMS:
            inside = gathered_inside(state.strategy, state.pipelines, places.shared())
        if inside:
            stored = {
                name: info.stored for name, info in state.graph.params.items() if info.stored is not None
            }
            groups = gather_groups(state.graph, state.pipelines, live, places, inside)
            gathered = with_gathers(live, state.pipelines, groups, stored)
            if gathered is None:
                inside, groups = frozenset(), []
            live = live if gathered is None else gathered
        together = tuple(group for of_stage in groups for group in of_stage)
        return grown(Gathered, replace(state, live=live), places=places, inside=inside, groups=together)

    def text(self, before: Live, after: Gathered) -> str:
        return places_text(after.places, after.groups)

    def problems(self, before: Live, after: Gathered) -> Iterator[str]:
        """All pipelines gather the same parameters, forward and backward."""
        yield from live_problems(after.pipelines, before.live, after.live)
        for number, live in enumerate(after.live if after.inside else ()):
            rows = [row for stage in live.stages for row in stage.forward if row.op == GATHER]
            gathered = {name for row in rows for name in group_of(row).names}
            if gathered != after.inside:
                yield f"pipeline {number} does not gather {sorted(after.inside ^ gathered)}"
