"""Changes that would shorten a step, each priced again: links, layers, rows, micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...base.number_ranges import number_ranges
from ...base.timeline import SpanKind, Timeline
from ...cluster.cluster import ClusterSpec
from ...cluster.link import LinkSpec
from ..simulate import end_times
from .critical_path import PathShare
from .priced_actions import StepPricer

if TYPE_CHECKING:
    from ..estimate import StepEstimator

Layers = Mapping[tuple[int, int], int]
MOST = 3
FASTER = 2.0
LEAST_GAIN = 0.002
SIMULATED = 256
"""Of more ranks, pipelines that are alike are simulated once for what is tried."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A change, and the step as it would be. gain: share of the time for a sample that it saves."""

    change: str
    step_s: float
    gain: float


def find_advice(found: StepEstimator, timeline: Timeline, path: Sequence[PathShare]) -> list[Advice]:
    """The changes that help most, at most three."""
    tried = [*_Trial(found, timeline, path).all()]
    useful = sorted((one for one in tried if one.gain > LEAST_GAIN), key=lambda one: -one.gain)
    return useful[:MOST]


class _Trial:
    """Steps that differ from the estimated one in one thing."""

    def __init__(self, found: StepEstimator, timeline: Timeline, path: Sequence[PathShare]) -> None:
        self.found, self.timeline, self.path = found, timeline, path
        self.before = timeline.end_s
        self.owns = {own.rank: own for own in found.program.ranks}
        self.places = {
            own.rank: (shape, rates)
            for own, shape, rates in zip(found.program.ranks, found.shapes, found.rates, strict=True)
        }
        self.kinds = self._kinds()
        self.kept = self._representatives()
        self.work = self._work()

    def all(self) -> Iterator[Advice]:
        """Everything that is tried."""
        yield from self._faster_links()
        yield from self._moved_layers()
        yield from self._moved_rows()
        yield from self._more_micro_batches()

    def _kinds(self) -> dict[int, tuple[object, ...]]:
        """What tells pipelines apart: stages, classes, shapes and devices of their ranks."""
        kinds: dict[int, list[object]] = {}
        for rank, own in self.owns.items():
            shape, rates = self.places[rank]
            kinds.setdefault(own.pipeline, []).append((own.stage, own.class_name, id(shape), id(rates)))
        return {pipeline: tuple(kind) for pipeline, kind in kinds.items()}

    def _representatives(self) -> frozenset[int] | None:
        """Of many ranks, those of one pipeline of each kind."""
        if len(self.owns) <= SIMULATED:
            return None
        first: dict[tuple[object, ...], int] = {}
        for pipeline, kind in self.kinds.items():
            first.setdefault(kind, pipeline)
        return frozenset(rank for rank, own in self.owns.items() if own.pipeline in first.values())

    def _step_s(self, pricer: StepPricer) -> float:
        ends = end_times(pricer.actions(), self.found.semantics, self.found.hosts)
        return max(ends.values(), default=0.0)

    def _advice(self, change: str, step_s: float, per_sample: float = 1.0) -> Advice:
        """per_sample: how many times as many samples the step has."""
        return Advice(change, step_s, 1 - step_s / (self.before * per_sample) if self.before else 0.0)

    def _faster_links(self) -> Iterator[Advice]:
        """Links that are on the critical path, at twice their speed."""
        names = [share.name for share in self.path if share.kind == "link"]
        cluster = self.found.cluster
        if any(not name.startswith("inside ") for name in names):
            faster = replace(
                cluster,
                nodes=tuple(replace(node, nic=_faster(node.nic)) for node in cluster.nodes),
                link=_faster(cluster.link),
                links=tuple(replace(item, link=_sure(item.link)) for item in cluster.links),
                calibration=None,
            )
            yield self._with(faster, "twice the bandwidth between nodes")
        if any(name.startswith("inside ") for name in names):
            faster = replace(
                cluster,
                nodes=tuple(replace(node, link=_faster(node.link)) for node in cluster.nodes),
                calibration=None,
            )
            yield self._with(faster, "twice the bandwidth inside nodes")

    def _with(self, cluster: ClusterSpec, change: str) -> Advice:
        return self._advice(
            change, self._step_s(self.found.pricer(_measured_as(cluster, self.found.cluster), self.kept))
        )

    def _work(self) -> dict[tuple[int, int], float]:
        """Seconds that the slowest rank of each stage computes for its micro-batches."""
        busy: dict[int, float] = {}
        for span in self.timeline.spans:
            if span.kind in (SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.COLLECTIVE):
                busy[span.rank] = busy.get(span.rank, 0.0) + span.length_s
        work: dict[tuple[int, int], float] = {}
        for rank, own in self.owns.items():
            stage = (own.pipeline, own.stage)
            work[stage] = max(work.get(stage, 0.0), busy.get(rank, 0.0))
        return work

    def _moved_layers(self) -> Iterator[Advice]:
        """One layer from the stage that computes longest to a neighbour, in the pipelines that decide."""
        stages = self._on_path()
        if stages is None:
            return
        pipeline, longest = stages
        alike = [one for one, kind in self.kinds.items() if kind == self.kinds[pipeline]]
        name = f"pipeline{'s' * (len(alike) > 1)} {number_ranges(alike)}"
        for to in (longest - 1, longest + 1):
            given = self.found.layers.get((pipeline, longest), 0)
            if given > 1 and self.found.layers.get((pipeline, to), 0):
                pricer = self.found.pricer(kept=self.kept)
                pricer.segments.scale = {
                    rank: self._scale(rank, longest, to)
                    for rank, own in self.owns.items()
                    if own.pipeline in alike and own.stage in (longest, to)
                }
                change = f"move one layer of {name} from stage {longest} to stage {to}"
                yield self._advice(change, self._step_s(pricer))

    def _scale(self, rank: int, given: int, taken: int) -> float:
        """What a rank computes, with a layer less or more of those that it has."""
        own, found = self.owns[rank], self.found
        shape, rates = self.places[rank]
        walks = [step.walked for step in shape.steps if step is not None and step.walked is not None]
        longest = max(walks, key=lambda walk: len(walk.rows))
        share = found.prices.layer_share(longest, rates, found.layers[own.pipeline, own.stage])
        return 1 - share if own.stage == given else 1 + share if own.stage == taken else 1.0

    def _on_path(self) -> tuple[int, int] | None:
        """The stage that computes longest, of the pipeline that computes most on the critical path."""
        by_pipeline: dict[int, float] = {}
        for share in self.path:
            if share.kind == "compute":
                pipeline = self.owns[share.rank].pipeline
                by_pipeline[pipeline] = by_pipeline.get(pipeline, 0.0) + share.seconds
        if not by_pipeline or any(own.segment_stages for own in self.owns.values()):
            return None  # what a stage computes isn't told apart where its ranks run several
        pipeline = max(by_pipeline, key=lambda one: by_pipeline[one])
        stages = [stage for of, stage in self.work if of == pipeline]
        return pipeline, max(stages, key=lambda stage: self.work[pipeline, stage])

    def _ends(self) -> dict[int, float]:
        """When each pipeline has done its last micro-batch."""
        ends: dict[int, float] = {}
        for span in self.timeline.spans:
            if span.mb >= 0:
                pipeline = self.owns[span.rank].pipeline
                ends[pipeline] = max(ends.get(pipeline, 0.0), span.end_s)
        return ends

    def _periods(self) -> dict[int, float]:
        """Seconds that a micro-batch more adds to each pipeline: those of its slowest stage."""
        count = {own.pipeline: max(len(own.rows), 1) for own in self.owns.values()}
        periods: dict[int, float] = {}
        for (pipeline, _), seconds in self.work.items():
            periods[pipeline] = max(periods.get(pipeline, 0.0), seconds / count[pipeline])
        return periods

    def _moved_rows(self) -> Iterator[Advice]:
        """Micro-batches from the pipeline that ends last to the one that would end first with them."""
        ends, periods = self._ends(), self._periods()
        if len(ends) < 2:
            return
        slow = max(ends, key=lambda one: ends[one])
        fast = min(ends, key=lambda one: ends[one] + periods.get(one, 0.0))
        counts = {own.pipeline: len(own.rows) for own in self.owns.values()}
        tail = self.before - ends[slow]
        best: tuple[float, int] = (self.before, 0)
        for moved in range(1, counts[slow]):
            after = {
                **ends,
                slow: ends[slow] - moved * periods[slow],
                fast: ends[fast] + moved * periods[fast],
            }
            best = min(best, (max(after.values()) + tail, moved))
        if slow != fast and best[1]:
            noun = "micro-batch" if best[1] == 1 else "micro-batches"
            yield self._advice(f"move {best[1]} {noun} from pipeline {slow} to pipeline {fast}", best[0])

    def _more_micro_batches(self) -> Iterator[Advice]:
        """Twice as many of each size, in a batch twice as large."""
        ends, periods = self._ends(), self._periods()
        stages = {own.pipeline: 0 for own in self.owns.values()}
        for own in self.owns.values():
            stages[own.pipeline] = max(stages[own.pipeline], own.stages[-1] + 1)
        if not ends or max(stages.values()) < 2:
            return
        counts = {own.pipeline: len(own.rows) for own in self.owns.values()}
        after = max(ends[one] + counts[one] * periods[one] for one in ends)
        step_s = after + self.before - max(ends.values())
        yield self._advice("twice as many micro-batches, a batch twice as large", step_s, 2.0)


def _faster(link: LinkSpec | None) -> LinkSpec | None:
    return None if link is None else _sure(link)


def _sure(link: LinkSpec) -> LinkSpec:
    """Twice as fast, however it is told."""
    curve = tuple((size, seconds / FASTER) for size, seconds in link.curve)
    return replace(link, bandwidth=link.bandwidth * FASTER, curve=curve)


def _measured_as(cluster: ClusterSpec, before: ClusterSpec) -> ClusterSpec:
    """Operators stay as measured; what was measured of links is not of the faster ones."""
    if before.calibration is None:
        return cluster
    return replace(cluster, calibration=replace(before.calibration, exchange={}, collectives={}))
