"""The life of one tensor through the passes, which run again on the graph and the strategy of an artifact."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..annotations.of_layout import layout_states
from ..artifact import paths
from ..artifact.store import Artifact
from ..artifact.value_layouts import ValueLayouts
from ..base.devices import DeviceKind, family_of
from ..base.log import unheard
from ..cluster.form import cluster_from
from ..cost_models.steps.figures import cost_of_ranks
from ..ir import graph_json
from ..ir.annotated import COMM, AnnotatedRow, AnnotatedValue, PipelineGraph
from ..ir.graph import LogicalGraph, OriginKind, Row, row_inputs
from ..ir.printer import call_text, row_type
from ..passes.annotate import ParameterLayouts
from ..passes.compile_state import Annotated, Live, Measured, Traced
from ..passes.dims.whole_parameters import whole_lines
from ..passes.lower.lower import Lowered
from ..passes.pass_chain import Chain
from ..passes.pipeline import planning
from ..passes.recompute import made_again
from ..passes.segments import SegmentPlan
from ..passes.texts.cells import ranks_text
from ..program.program import ClassProgram
from ..strategy.form import strategy_from
from ..strategy.strategy import Strategy
from .inspect import tensor_page
from .sections import Cell, Section, Table

ROW = re.compile(r"%([0-9]{1,9})")
MOST_READERS = 12
Line = tuple[str, str, str]
"""Pass, place, and what happens there."""


def tensor_sections(artifact: Artifact, name: str) -> list[Section]:
    """Its life, then of a parameter or buffer what each rank holds of it, reads and sums."""
    held = {shard.name for own in artifact.program.ranks for shard in own.shards}
    if artifact.program.aliases.get(name, name) in held:
        return [*tensor_life(artifact, name), *tensor_page(artifact, name)]
    known = name in artifact.program.inputs or ROW.fullmatch(name) is not None
    return [*(tensor_life(artifact, name) if known else ())] or tensor_page(artifact, name)


def tensor_life(artifact: Artifact, name: str) -> list[Table]:
    """A line per event, in the order of the passes. name: of a parameter, buffer or input, or `%7` of a row.

    None where the artifact was written for one rank and has no graph, or the graph no such tensor; nor where
    ranks cut samples, whose passes run once for each length.
    """
    if not artifact.graph or artifact.program.cuts_samples:
        return []
    graph, strategy = graph_json.decode(artifact.graph), strategy_from(artifact.strategy)
    row = find_row(graph, name)
    if row is None:
        return []
    with unheard():
        life = Life.of(graph, strategy, row, _planning(artifact, strategy))
    title = f"%{row.id} {row_type(row)} {call_text(row)}"
    rows: list[tuple[Cell, ...]] = [*life.lines()]
    if life.classes != artifact.program.classes:
        rows.insert(0, ("", "", "another version compiled the artifact; this one would do as follows"))
    return [Table("life", title, ("pass", "where", "what"), tuple(rows))]


def _planning(artifact: Artifact, strategy: Strategy) -> Chain[Traced, Lowered]:
    """The passes as the artifact was compiled by: for its devices, and by its cluster's links."""
    device = DeviceKind(family_of(artifact.manifest.device_kinds[0]))
    if artifact.cluster is None:
        return planning(strategy, device)
    cluster = cluster_from(artifact.cluster, paths.CLUSTER)
    return planning(strategy, device, cost_of_ranks(cluster, paths.CLUSTER, strategy.devices))


def find_row(graph: LogicalGraph, name: str) -> Row | None:
    """The row of a tensor; a tied parameter is found by each of its names."""
    found = ROW.fullmatch(name)
    if found is not None:
        number = int(found[1])
        return graph.rows[number] if number < len(graph.rows) else None
    for info in graph.params.values():
        if name == info.name or name in info.aliases:
            return graph.rows[info.row]
    return next((row for row in graph.rows if row.op == "placeholder" and row.origin.name == name), None)


@dataclass(frozen=True, slots=True)
class Life:
    """A row of the logical graph, and the states of a compile that say what becomes of it."""

    row: Row
    graph: LogicalGraph
    strategy: Strategy
    layouts: ParameterLayouts
    before: Live
    live: Live
    end: Measured
    placed: ValueLayouts
    classes: Mapping[str, ClassProgram]

    @staticmethod
    def of(graph: LogicalGraph, strategy: Strategy, row: Row, chain: Chain[Traced, Lowered]) -> Life:
        """Run the passes."""
        states = {step.name: (before, after) for step, before, after in chain.states(Traced(graph))}
        annotated: Annotated = states["annotate"][1]
        before, live = states["recompute"]
        end, lowered = states["lower"]
        classes = lowered.program.classes
        return Life(row, graph, strategy, annotated.layouts, before, live, end, lowered.layouts, classes)

    @property
    def param(self) -> str:
        """The parameter's name, else an empty text."""
        kinds = (OriginKind.PARAM, OriginKind.BUFFER)
        return self.row.origin.name if self.row.origin.kind in kinds else ""

    def lines(self) -> Iterator[Line]:
        """Everything, in the order of the passes; stages in which the same happens stand together."""
        yield from self._traced()
        if self.param:
            yield from together(self._annotated())
        yield from together(self._deduced())
        yield from together(self._live())
        if self.param:
            yield from self._stored()
            yield from self._summed()
        else:
            yield from together(self._in_segments())

    def _traced(self) -> Iterator[Line]:
        if self.row.where:
            yield "trace", self.row.module, self.row.where
        readers = [row for row in self.graph.rows if self.row.id in row_inputs(row)]
        for row in readers[:MOST_READERS]:
            line = row.where.partition("  ")[0]
            yield "trace", "read by", f"%{row.id} {call_text(row)}  {line}".rstrip()
        if len(readers) > MOST_READERS:
            yield "trace", "read by", f"{len(readers) - MOST_READERS} more"

    def _annotated(self) -> Iterator[Line]:
        """How a stage holds a parameter, and what splits it or keeps it whole."""
        for p, graph in enumerate(self.end.pipelines):
            for name, stage in graph.params:
                if name == self.param:
                    spec = self.strategy.pipelines[p].stages[stage]
                    states = layout_states(self.layouts.layout(p, name, stage), spec.tp)
                    yield "annotate", place(p, stage), f"{states}: {self._why(spec.tp)}"

    def _why(self, ranks: int) -> str:
        override = self.strategy.override_for(self.param)
        if ranks == 1:
            return "one device"
        if override is not None:
            return f"by the override {override.match!r}"
        if self.param in self.layouts.by_param:
            group, members = self.layouts.by_param[self.param]
            others = list(
                dict.fromkeys(member.param for member in group.members if member.param != self.param)
            )
            text = f"dim {members[0].dim} in {group.units} units of {group.name} ({group.kind.value})"
            return text + (f", with {', '.join(others)}" if others else "")
        whole = [item for item in self.layouts.unsplit if item.name == self.param]
        reasons = [line.partition("  ")[2] for line in whole_lines(whole)] if whole else []
        return "whole: " + ("; ".join(reasons) or "no operator splits it")

    def _deduced(self) -> Iterator[Line]:
        """Its layout in each stage that has it, and what converts it for readers that need another."""
        for p, graph in enumerate(self.end.pipelines):
            for value in self._values(graph):
                ranks = len(self.strategy.pipelines[p].stages[value.stage].devices)
                yield "deduce", place(p, value.stage), str(layout_states(value.layout, ranks))
                for row in conversions(graph, value):
                    yield "deduce", place(p, row.stage), self._conversion(p, row)

    def _values(self, graph: PipelineGraph) -> list[AnnotatedValue]:
        name = self.row.origin.name
        held = [value for (each, _), value in (*graph.params.items(), *graph.inputs.items()) if each == name]
        if self.row.op == "placeholder":
            return held
        made = [value for (row, _), value in graph.on_demand.items() if row == self.row.id]
        return [*([graph.logical[self.row.id]] if self.row.id in graph.logical else []), *made]

    def _conversion(self, p: int, row: AnnotatedRow) -> str:
        marker = row.marker
        assert marker is not None, "a communication has one"
        stages = self.strategy.pipelines[p].stages
        source, target = stages[marker.source_stage], stages[marker.target_stage]
        before, after = layout_states(marker.source, source.tp), layout_states(marker.target, target.tp)
        if marker.source_stage != marker.target_stage:
            return f"sent from stage {marker.source_stage} ({before} -> {after})"
        change = f"{marker.combine.value} of {before}" if before == after else f"{before} -> {after}"
        return f"converted for its readers, {row.phase.name.lower()}: {change}"

    def _live(self) -> Iterator[Line]:
        """Whether it is needed, kept or made again."""
        for p, graph in enumerate(self.end.pipelines):
            for value in self._values(graph):
                before, after = (held.live[p].stages[value.stage] for held in (self.before, self.live))
                read = {each.id for row in (*before.forward, *before.backward) for each in row.reads}
                made = {row.out.id for row in (*before.forward, *before.backward)}
                if value.id not in made and value.id not in read and self.row.op != "placeholder":
                    yield "liveness", place(p, value.stage), "not needed here, or made before the passes"
                if value.id in made_again(before, after):
                    yield "recompute", place(p, value.stage), "not kept: backward makes it again"

    def _stored(self) -> Iterator[Line]:
        if self.param in self.end.inside:
            yield "param_gather", "", "gathered where it is used, forward and backward"
        ownership = self.end.ownership
        if ownership is None or self.param not in ownership.parts:
            return
        for number, part in enumerate(ownership.parts[self.param]):
            cuts = ownership.cuts[self.param, number]
            sizes = [cuts[rank].size if rank in cuts else 0 for rank in part.holders]
            yield "zero", f"ranks {ranks_text(part.holders)}", f"{sizes} of {part.size} elements are stored"

    def _summed(self) -> Iterator[Line]:
        """What sums its gradient."""
        seen: set[int] = set()
        for _, buckets in sorted(self.end.reductions.grads.items()):
            for bucket in buckets:
                size = sum(piece.length for piece in bucket.given if piece.param == self.param)
                if size and bucket.id not in seen:
                    seen.add(bucket.id)
                    how = "all_reduce" if bucket.slot < 0 else "reduce_scatter"
                    text = "is there already" if len(bucket.group) == 1 else how
                    yield (
                        "grad_sync",
                        f"ranks {ranks_text(bucket.group)}",
                        f"{size} elements of the gradient: {text}, bucket {bucket.id}",
                    )

    def _in_segments(self) -> Iterator[Line]:
        """Its number, the segments that make and read it, and after which row it is let go; of the first
        variant of micro-batches, as they are alike."""
        for plan in self.end.stages:
            placed = self.placed.stages[plan.pipeline, plan.stage]
            number = next((each.value for each in placed if each.logical == self.row.id), None)
            values = [v for v in self._values(self.end.pipelines[plan.pipeline]) if v.stage == plan.stage]
            segments = [segment for segment in plan.segments if segment.variant == 0]
            for value in values if number is not None else ():
                for what, text in _uses(value, segments):
                    yield "segments", f"{place(plan.pipeline, plan.stage)}", f"v{number} {what} {text}"


def _uses(value: AnnotatedValue, segments: Sequence[SegmentPlan]) -> Iterator[tuple[str, str]]:
    """Where a value is made, kept, read and let go."""
    last: tuple[str, str] | None = None
    for segment in segments:
        if any(row.out.id == value.id for row in segment.rows):
            yield "is made in", segment.name
        if any(each.id == value.id for each in segment.outputs.micro):
            yield "is kept behind", segment.name
        for kind, given, name in segment.outputs.special:
            if given.id == value.id:
                yield f"is the {kind.value}", f"{name} that {segment.name} gives".strip()
        readers = [row for row in segment.rows if any(each.id == value.id for each in row.reads)]
        if readers:
            reader = readers[-1]
            named = reader.op if reader.out.logical is None else f"%{reader.out.logical} {reader.op}"
            last = segment.name, named
            yield "is read in", f"{segment.name} by {len(readers)} rows"
    if last is not None:
        yield "is last read in", f"{last[0]}, by {last[1]}"


def conversions(graph: PipelineGraph, value: AnnotatedValue) -> list[AnnotatedRow]:
    """The communications of a value, and of what they make of it."""
    known, found = {value.id}, []
    for row in graph.rows:
        if row.op == COMM and any(each.id in known for each in row.reads):
            known.add(row.out.id)
            found.append(row)
    return found


def place(pipeline: int, stage: int) -> str:
    """A stage of a pipeline."""
    return f"pipeline {pipeline}, stage {stage}"


def together(lines: Iterator[Line]) -> Iterator[Line]:
    """Places where the same happens in one line, in the order of the first."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, where, what in lines:
        places = found.setdefault((name, what), [])
        if where not in places:
            places.append(where)
    for (name, what), places in found.items():
        yield name, joined_places(places), what


def joined_places(places: Sequence[str]) -> str:
    """`pipeline 0, stage 0; pipeline 1, stage 0`; of many the first and how many more."""
    shown = "; ".join(places[:4])
    return shown if len(places) <= 4 else f"{shown}; {len(places) - 4} more"
