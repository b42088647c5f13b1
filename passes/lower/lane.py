"""The stages that the same ranks run, written as one program: their segments side by side.

Of each stage behind the first, values, holes and slots are numbered behind those of the stages before it. A
value that goes from one of them to another has one number: it stays where it is, and is not sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ...artifact.value_layouts import PlacedValue, RoutedValue
from ...base.comm_plan import CommStep
from ...base.pipeline_schedule import PipelineSchedule
from ...errors import DeduceError, InternalError
from ...program.arguments import map_leaves
from ...program.program import COMM, COMM_START, Hole, Instruction, LocalRow, Op, Segment, Value
from ..resolve_comm import StageComm, Tags
from ..segments import StagePlan
from .lower_stage import StageLowering
from .stage_tables import END, StageTables

P = TypeVar("P", PlacedValue, RoutedValue)
MOVES = frozenset({Op.SEND, Op.RECV})


@dataclass(frozen=True, slots=True)
class Chunk:
    """One stage of a lane, lowered alone. saved: bytes by rank and micro-batch."""

    plan: StagePlan
    comm: StageComm
    saved: Sequence[list[int]]
    numbers: StageLowering
    segments: list[Segment]


@dataclass(slots=True)
class StageLane:
    """Stages of the same ranks, in order. first: of each, how many values, holes, slots of steps and of
    transfers, and segments stand before its own."""

    chunks: list[Chunk]
    kept: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    first: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._check()
        self._keep()
        values = holes = slots = transfers = segments = 0
        for chunk in self.chunks:
            self.first.append((values, holes, slots, transfers, segments))
            values += chunk.numbers.next_number
            holes += len(chunk.numbers.literals[0])
            slots += len(chunk.comm.steps)
            transfers += len(chunk.comm.transfers)
            segments += len(chunk.segments)

    @property
    def stages(self) -> tuple[int, ...]:
        """Their numbers in the pipeline."""
        return tuple(chunk.plan.stage for chunk in self.chunks)

    @property
    def slots(self) -> int:
        """Steps of all stages."""
        return sum(len(chunk.comm.steps) for chunk in self.chunks)

    @property
    def segment_stages(self) -> tuple[int, ...]:
        """The stage of each segment; of one stage nothing is to be told."""
        if len(self.chunks) == 1:
            return ()
        return tuple(chunk.plan.stage for chunk in self.chunks for _ in chunk.segments)

    def _check(self) -> None:
        """Sums over the batch have to come in one order on all ranks, which several stages may not have."""
        if len(self.chunks) == 1:
            return
        inside = [item for chunk in self.chunks for item in chunk.plan.rows.sums]
        counting = [chunk for chunk in self.chunks if chunk.plan.rows.steps]
        if self.chunks[0].plan.levels.last or inside or len(counting) > 1:
            steps = [item for chunk in counting for item in chunk.plan.rows.steps]
            raise _sums_in_several([item.row.where for item in (*inside, *steps)], self.stages)

    def _keep(self) -> None:
        """What goes from one stage of these ranks to another, by the number of it that the other has."""
        places = {stage: number for number, stage in enumerate(self.stages)}
        for number, chunk in enumerate(self.chunks):
            for each in chunk.plan.rows.arrivals:
                source = places.get(each.source_stage)
                if source is None:
                    continue
                marker = each.row.marker
                if marker is None or marker.source != marker.target:
                    raise InternalError(
                        "a value changes its layout between stages of the same ranks",
                        at=each.row.where,
                        fix="report this model and strategy",
                    )
                own = chunk.numbers.value(each.row.out).id
                self.kept[number, own] = source, self.chunks[source].numbers.value(each.source).id

    def number(self, chunk: int, value: int) -> int:
        """The number of a value of one stage in the program of all."""
        while (chunk, value) in self.kept:
            chunk, value = self.kept[chunk, value]
        return self.first[chunk][0] + value

    def placed(self, chunk: int, values: list[P]) -> list[P]:
        """Values of a stage by their numbers here."""
        if len(self.chunks) == 1:
            return values
        return [replace(each, value=self.number(chunk, each.value)) for each in values]

    def segments(self) -> list[Segment]:
        """Those of all stages, each with the number of its stage in its name."""
        return [
            self._segment(number, segment)
            for number, chunk in enumerate(self.chunks)
            for segment in chunk.segments
        ]

    def _segment(self, chunk: int, segment: Segment) -> Segment:
        return Segment(
            f"stage.{self.stages[chunk]}.{segment.name}",
            [replace(each, value=self._value(chunk, each.value)) for each in segment.inputs],
            [self._row(chunk, row) for row in segment.rows],
            [replace(each, value=self._value(chunk, each.value)) for each in segment.outputs],
        )

    def _value(self, chunk: int, value: Value) -> Value:
        return Value(self.number(chunk, value.id))

    def _row(self, chunk: int, row: LocalRow) -> LocalRow:
        _, holes, slots, *_ = self.first[chunk]

        def moved(leaf: object) -> object:
            if type(leaf) is Value:
                return self._value(chunk, leaf)
            return Hole(leaf.index + holes) if type(leaf) is Hole else leaf

        args = tuple([map_leaves(each, moved) for each in row.args])
        if row.op in (COMM, COMM_START):
            args = (args[0], args[1] + slots, *args[2:])
        kwargs = {key: map_leaves(each, moved) for key, each in row.kwargs.items()}
        return LocalRow(self._value(chunk, row.out), row.op, args, kwargs, row.logical)

    def literals(self, index: int) -> list[object]:
        """Of the rank at this place of the stages."""
        return self._joined([chunk.numbers.literals[index] for chunk in self.chunks])

    def comms(self, rank: int) -> list[CommStep]:
        """Steps of a rank by slot."""
        return [step[rank] for chunk in self.chunks for step in chunk.comm.steps]

    def transfers(self, rank: int) -> list[CommStep]:
        """Transfers of a rank by slot."""
        return [step[rank] for chunk in self.chunks for step in chunk.comm.transfers if rank in step]

    def saved(self, index: int) -> list[int]:
        """Bytes of each micro-batch that all stages keep."""
        if len(self.chunks) == 1:
            return self.chunks[0].saved[index]
        return [sum(each) for each in zip(*(chunk.saved[index] for chunk in self.chunks), strict=True)]

    def _joined(self, lists: Sequence[list[object]]) -> list[object]:
        return lists[0] if len(lists) == 1 else [item for each in lists for item in each]

    def instructions(
        self, tags: Tags, schedule: PipelineSchedule, scatters: Collection[int]
    ) -> list[Instruction]:
        """What the ranks do, in the order of the schedule."""
        tables = [
            StageTables(each.plan, each.numbers, each.comm, tags, schedule, scatters, self.stages)
            for each in self.chunks
        ]
        if len(tables) == 1:
            return tables[0].instructions()
        sent = [each.departures() for each in tables]
        made = [self._moved(number, each.step_values()) for number, each in enumerate(tables)]
        places = {stage: number for number, stage in enumerate(self.stages)}
        (row,) = (row for row in schedule.rows if row and row[0][0] in places)
        for stage, action in row:
            at = places[stage]
            made.append(self._moved(at, tables[at].action(action, 0, sent[at])))
        return [*(each for part in made for each in part), *END]

    def _moved(self, chunk: int, instructions: Sequence[Instruction]) -> Iterator[Instruction]:
        _, _, slots, transfers, segments = self.first[chunk]
        for each in instructions:
            if each.segment >= 0:
                yield replace(each, segment=each.segment + segments)
            else:
                more = transfers if each.op in MOVES else slots
                yield replace(each, value=self.number(chunk, each.value), slot=each.slot + more)


def _sums_in_several(where: Sequence[str], stages: tuple[int, ...]) -> DeduceError:
    return DeduceError(
        "sums over the batch meet in several stages of the same devices",
        at=list(dict.fromkeys(where)),
        details=[("stages", " and ".join(map(str, stages)))],
        rule="all ranks reduce what is summed over the batch in one order, which devices in several stages"
        " have only where one of these counts before the passes, and none makes a sum in its passes",
        fix="give each stage devices of its own",
    )
