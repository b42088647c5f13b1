"""The steps of one stage's communication: of rows inside segments, of sums between them, of crossings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..base.comm_plan import CommStep
from ..ir.annotated import COMM, GATHER, AnnotatedRow, BatchSum, CommMarker
from ..ir.type_text import dtype_name
from ..layout.layout import sample_lengths
from .batch_levels import in_order
from .liveness import LivePipeline, StepValue
from .lower.strategy_ranks import StrategyRanks
from .reductions import Reductions
from .resolve_comm import CommResolver
from .segments import StagePlan
from .step_counts import CountKey
from .zero.param_gather import NAME

Steps = Mapping[int, CommStep]
"""The step of each rank."""
Tags = Mapping[tuple[int, int], int]


@dataclass(slots=True)
class StageComm:
    """rounds: of each communicating row, in the order of segments, how many steps it takes one after the
    other. steps: of these, then of `reduced`, by slot. crossings: the slot of each (crossing, variant)
    among `transfers`.
    """

    rounds: list[int] = field(default_factory=list)
    steps: list[Steps] = field(default_factory=list)
    reduced: list[tuple[StepValue, int]] = field(default_factory=list)
    crossings: dict[tuple[int, int], int] = field(default_factory=dict)
    transfers: list[Steps] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StageResolver:
    """Resolves the communication of all stages, in order, so that steps are numbered as they come."""

    ranks: StrategyRanks
    resolver: CommResolver
    reductions: Reductions
    step_groups: Mapping[CountKey, tuple[int, ...]]
    sum_groups: Mapping[BatchSum, tuple[int, ...]]

    def of(self, plan: StagePlan) -> StageComm:
        """A stage's communication; what a rank would reduce by itself is left out."""
        found = StageComm()
        for segment in plan.segments:
            for row in segment.rows:
                if row.op in (COMM, GATHER):
                    rounds = self._rounds(plan, row, plan.first_of[segment.variant])
                    found.rounds.append(len(rounds))
                    found.steps += rounds
        self._reduce(plan, found)
        self._cross(plan, found)
        return found

    def _rounds(self, plan: StagePlan, row: AnnotatedRow, batch: int) -> Sequence[Steps]:
        if row.op == GATHER:
            assert self.reductions.zero is not None, "only ZeRO gathers"
            return (self.reductions.zero.local_gather(str(row.kwargs[NAME])),)
        assert row.marker is not None
        dtype = dtype_name(row.out.dtype)
        if row.marker.batch_sum is not None:
            return (self.resolver.reduce(self.sum_groups[row.marker.batch_sum], dtype),)
        return self.resolver.steps(row.marker, plan.ranks, batch, dtype)

    def _reduce(self, plan: StagePlan, found: StageComm) -> None:
        """Sums over the batch, in the order in which all ranks reduce them."""
        for step in (*plan.rows.steps, *in_order(plan.rows.sums)):
            group = self.step_groups[step.key]
            if len(group) > 1:
                found.reduced.append((step, len(found.steps)))
                found.steps.append(self.resolver.reduce(group, dtype_name(step.share.dtype)))

    def _cross(self, plan: StagePlan, found: StageComm) -> None:
        """Every crossing of the stage, for each variant of its micro-batches."""
        for crossing in (*plan.rows.arrivals, *plan.rows.departures):
            marker, dtype = crossing.row.marker, dtype_name(crossing.source.dtype)
            assert marker is not None
            source = self.ranks.of_stage(plan.pipeline, crossing.source_stage)
            target = self.ranks.of_stage(plan.pipeline, crossing.target_stage)
            for variant, batch in enumerate(first_alike(plan, self.ranks, marker)):
                found.crossings[id(crossing.row), variant] = len(found.transfers)
                found.transfers.append(self.resolver.transfer(marker, source, target, batch, dtype))


def first_alike(plan: StagePlan, ranks: StrategyRanks, marker: CommMarker) -> list[int]:
    """Per variant the pipeline's first batch coordinate that sends as much, the same at both ends.

    What moves depends on how much a micro-batch holds of the value, while the stages at both ends may tell
    micro-batches apart by their position, each for reasons of its own.
    """
    offset, count = ranks.first_coordinate(plan.pipeline), len(ranks.rows[plan.pipeline])

    def held(batch: int) -> tuple[int, ...]:
        low, high = ranks.rows[plan.pipeline][batch - offset]
        return high - low, *sample_lengths(marker.source, batch), *sample_lengths(marker.target, batch)

    first: dict[tuple[int, ...], int] = {}
    for batch in range(offset, offset + count):
        first.setdefault(held(batch), batch)
    return [first[held(batch)] for batch in plan.first_of]


def first_tags(live: Sequence[LivePipeline], ranks: StrategyRanks) -> Tags:
    """The first tag of each crossing; micro-batch m has the m-th after it."""
    tags: dict[tuple[int, int], int] = {}
    count = 0
    for p, pipeline in enumerate(live):
        for stage in pipeline.stages:
            for crossing in stage.arrivals:
                tags[p, id(crossing.row)] = count
                count += len(ranks.rows[p])
    return tags
