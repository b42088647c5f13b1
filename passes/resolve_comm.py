"""Each communication marker becomes, per rank, one step, or one of each round; equal ones are shared.

A stage's steps are of rows inside segments, of sums between them, and of crossings to other stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..base.comm_plan import Combine, CommKind, CommStep, CostModel, Counted
from ..ir.annotated import COMM, GATHER_START, AnnotatedRow, BatchSum, CommMarker
from ..ir.type_text import dtype_name
from ..layout.layout import Coordinate, sample_pieces
from ..program.program_text import kind_text
from ..program.sized.counted_step import RowExchange, even_load
from .batch_levels import in_order
from .compile_state import Resolved, Segmented, grown
from .gather_forms import cheapest_forms
from .liveness import LivePipeline, StepValue
from .lower.strategy_ranks import StrategyRanks
from .pass_chain import Pass
from .resolve_layouts import WantedLayouts
from .resolve_rounds import Steps, on_ranks, rounds
from .segments import StagePlan
from .step_counts import CountKey
from .texts.cells import Line, joined, ranks_text
from .zero.gather_rows import group_of

if TYPE_CHECKING:
    from .grad_sync import Reductions

Ranks = tuple[int, ...]


@dataclass(slots=True)
class CommResolver:
    """Resolves markers and numbers the steps; `steps` are made once for equal requests.

    cost: what ways are compared by; None: as programs are made today, see `ways.PREFERRED`.
    """

    cost: CostModel | None = None
    made: dict[object, dict[int, CommStep]] = field(default_factory=dict)
    planned: dict[tuple[WantedLayouts, Ranks], tuple[dict[int, CommStep], ...]] = field(default_factory=dict)
    count: int = 0

    def steps(
        self, marker: CommMarker, ranks: Ranks, batch: int, dtype: str
    ) -> tuple[dict[int, CommStep], ...]:
        """The step of each rank of a stage for a conversion inside it, at one micro-batch, in each round."""
        wanted = WantedLayouts.of(marker, ranks, (), batch, dtype, self.cost)
        if wanted.reduces:
            return (self._all_reduce(ranks, marker.combine, dtype),)
        return self._rounds(wanted, ranks)

    def transfer(
        self, marker: CommMarker, source_ranks: Ranks, target_ranks: Ranks, batch: int, dtype: str
    ) -> dict[int, CommStep]:
        """The step of each rank of two stages for a value that crosses between them."""
        wanted = WantedLayouts.of(marker, source_ranks, target_ranks, batch, dtype, self.cost)
        (steps,) = self._rounds(wanted, source_ranks + target_ranks)
        return steps

    def counted(self, marker: CommMarker, ranks: Ranks, batch: int, dtype: str) -> dict[int, CommStep]:
        """Each rank's step for rows that go to the owners of their experts, or back, as in an even load."""
        back = marker.counted is Counted.BACK
        home, owners = (marker.target, marker.source) if back else (marker.source, marker.target)
        places = [Coordinate(place, batch) for place in range(len(ranks))]
        given, taken = ([side.local_shape(at)[0] for at in places] for side in (home, owners))
        rest = home.local_shape(places[0])[1:]
        key = (ranks, tuple(given), tuple(taken), rest, dtype, marker.counted)
        if key not in self.made:
            counts = even_load(given, taken)
            exchange = RowExchange(self.next_id(), ranks, counts, rest, dtype, marker.counted)
            self.made[key] = exchange.steps()
        return self.made[key]

    def reduce(self, ranks: Ranks, dtype: str) -> dict[int, CommStep]:
        """A sum of whole values over ranks."""
        return self._all_reduce(ranks, Combine.SUM, dtype)

    def _all_reduce(self, ranks: Ranks, combine: Combine, dtype: str) -> dict[int, CommStep]:
        group = tuple(sorted(ranks))
        key = (group, combine, dtype)
        if key not in self.made:
            step = CommStep(self.next_id(), CommKind.ALL_REDUCE, group, combine, dtype=dtype)
            self.made[key] = dict.fromkeys(group, step)
        return self.made[key]

    def _rounds(self, wanted: WantedLayouts, ranks: Ranks) -> tuple[dict[int, CommStep], ...]:
        key = (wanted, ranks)
        if key not in self.planned:
            found = rounds(wanted)
            numbers = sorted({step.id for steps in found for step in steps.values()})
            ids = {number: self.next_id() for number in numbers}
            names = dict(zip(wanted.ranks + wanted.receivers, ranks, strict=True))
            self.planned[key] = tuple(self.formed(on_ranks(steps, names, ids)) for steps in found)
        return self.planned[key]

    def formed(self, steps: dict[int, CommStep]) -> dict[int, CommStep]:
        """Steps that gather unequal pieces in the cheapest form; without a cost model as they are."""
        return steps if self.cost is None else cheapest_forms(steps, self.cost)

    def next_id(self) -> int:
        """The id of a new step."""
        self.count += 1
        return self.count - 1


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
                if row.op in (COMM, GATHER_START):
                    rounds = self._rounds(plan, row, plan.first_of[segment.variant])
                    found.rounds.append(len(rounds))
                    found.steps += rounds
        self._reduce(plan, found)
        self._cross(plan, found)
        return found

    def _rounds(self, plan: StagePlan, row: AnnotatedRow, batch: int) -> Sequence[Steps]:
        if row.op == GATHER_START:
            assert self.reductions.zero is not None, "only ZeRO gathers"
            return (self.reductions.zero.local_gather(group_of(row)),)
        assert row.marker is not None
        dtype = dtype_name(row.out.dtype)
        if row.marker.counted is not Counted.NO:
            return (self.resolver.counted(row.marker, plan.ranks, batch, dtype),)
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
            if source == target:  # it stays where it is
                continue
            for variant, batch in enumerate(first_alike(plan, self.ranks, marker)):
                found.crossings[id(crossing.row), variant] = len(found.transfers)
                found.transfers.append(self.resolver.transfer(marker, source, target, batch, dtype))


def first_alike(plan: StagePlan, ranks: StrategyRanks, marker: CommMarker) -> list[int]:
    """Per variant the pipeline's first batch coordinate that sends as much, the same at both ends.

    What moves depends on how much a micro-batch holds of the value, while the stages at both ends may tell
    micro-batches apart by their position, each for reasons of its own.
    """
    offset, count = ranks.first_coordinate(plan.pipeline), len(ranks.rows[plan.pipeline])

    def held(batch: int) -> tuple[object, ...]:
        low, high = ranks.rows[plan.pipeline][batch - offset]
        return high - low, *sample_pieces(marker.source, batch), *sample_pieces(marker.target, batch)

    first: dict[tuple[object, ...], int] = {}
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


def stage_comm_text(stages: Sequence[StagePlan], comms: Sequence[StageComm]) -> str:
    """Per stage the steps of its first rank, by slot."""
    lines: list[Line] = []
    for plan, comm in zip(stages, comms, strict=True):
        rank = plan.ranks[0]
        lines.append((f"pipeline {plan.pipeline}, stage {plan.stage}", f"ranks {ranks_text(plan.ranks)}"))
        lines += [(f"  comm {slot}", *step_cells(step[rank])) for slot, step in enumerate(comm.steps)]
        transfers = [step[rank] for step in comm.transfers if rank in step]
        lines += [(f"  transfer {slot}", *step_cells(step)) for slot, step in enumerate(transfers)]
    return joined(lines)


def step_cells(step: CommStep) -> Line:
    """A step's number, kind, type, ranks, and the shapes that it takes and gives."""
    kind = step.combine.value if step.kind is CommKind.ALL_REDUCE else step.note
    views = [str(list(view)) for view in (step.src_view, step.dst_view) if view is not None]
    return (
        f"#{step.id}",
        kind_text(step),
        step.dtype,
        f"ranks {ranks_text(step.group)}",
        kind,
        " -> ".join(views),
    )


@dataclass(frozen=True, slots=True)
class ResolveComm(Pass[Segmented, Resolved]):
    """Equal requests share their steps."""

    def run(self, state: Segmented) -> Resolved:
        made = StageResolver(
            state.ranks, state.resolver, state.reductions, state.step_groups, state.sum_groups
        )
        return grown(Resolved, state, comms=[made.of(plan) for plan in state.stages])

    def text(self, before: Segmented, after: Resolved) -> str:
        return stage_comm_text(after.stages, after.comms)

    def problems(self, before: Segmented, after: Resolved) -> Iterator[str]:
        """Every rank of a stage takes part in each of its steps."""
        for plan, comm in zip(after.stages, after.comms, strict=True):
            where = f"pipeline {plan.pipeline}, stage {plan.stage}"
            if sum(comm.rounds) + len(comm.reduced) != len(comm.steps):
                yield f"{where} has {len(comm.steps)} steps for {sum(comm.rounds)} rounds and its sums"
            for step in {id(step): step for step in (*comm.steps, *comm.transfers)}.values():
                missing = [rank for rank in plan.ranks if rank not in step]
                if missing and step in comm.steps:
                    yield f"{where} has a step without its ranks {missing}"
