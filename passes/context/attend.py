"""Marked attention rows of a program become what the members of a group run, and the steps between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

from ...base.comm_plan import CommStep, CostModel, GradBucket, Interval, ParamBucket
from ...base.context import ContextForm
from ...errors import InternalError
from ...ir.type_text import dtype_name
from ...layout.layout import Coordinate, Layout
from ...layout.view_maps import flat_factor
from ...program.context.forms import (
    AttentionKind,
    ContextGroup,
    ContextMember,
    ContextRows,
    Numbering,
    Operands,
)
from ...program.context.prices import cheapest_form, form_prices
from ...program.context.rows import attention_rows, step_count
from ...program.program import (
    COMM,
    GETITEM,
    Argument,
    ClassProgram,
    LocalRow,
    Op,
    Program,
    RankProgram,
    Segment,
    Value,
)
from .marks import ALIAS, BACKWARD, DOCUMENTS, FORWARD, MARK, OPERANDS, PACKED, PACKED_BACKWARD, Attention

UNPRICED = ContextForm.GATHER
HEADS, WIDTH = 1, 3
"""Dims of query, key and value."""


@dataclass(frozen=True, slots=True)
class SharedMembers:
    """The members of a group: pipelines, the runs of tokens of each, and the attention of each, in order.

    form: None: the cheapest.
    """

    pipelines: tuple[int, ...]
    runs: tuple[tuple[Interval, ...], ...]
    attention: tuple[Sequence[Attention], ...]
    form: ContextForm | None


@dataclass(slots=True)
class Attending:
    """ranks: of each stage of each pipeline. first_batch: of each pipeline. steps: the first of a meeting, by
    what meets: layers that do the same share theirs. known: of each rank, by number. chosen: forms of groups
    that name none, by their pipelines."""

    program: Program
    groups: Sequence[SharedMembers]
    ranks: Mapping[tuple[int, int], tuple[int, ...]]
    first_batch: Sequence[int]
    cost: CostModel | None = None
    chosen: dict[tuple[int, ...], ContextForm] = field(default_factory=dict)
    steps: dict[object, int] = field(default_factory=dict)
    known: dict[tuple[int, int], CommStep] = field(default_factory=dict)
    next_step: int = 0
    classes: dict[str, ClassProgram] = field(default_factory=dict)

    def run(self) -> Program:
        """The program in which they meet."""
        program = self.program
        used = (step.id for own in program.ranks for step in (*own.comms, *own.transfers))
        self.next_step = 1 + max(used, default=-1)
        member = {p: (group, at) for group in self.groups for at, p in enumerate(group.pipelines)}
        stages: dict[tuple[int, int], list[RankProgram]] = {}
        for own in program.ranks:
            stages.setdefault((own.pipeline, own.stage), []).append(own)
        made: list[RankProgram] = []
        for (pipeline, _), ranks in stages.items():
            ranks.sort(key=lambda own: own.coordinate)
            made += self._stage(*member[pipeline], ranks) if pipeline in member else self._kept(ranks)
        made.sort(key=lambda own: own.rank)
        names = {name: f"c{number}" for number, name in enumerate(sorted(self.classes, key=_class_order))}
        classes = {names[name]: replace(held, name=names[name]) for name, held in self.classes.items()}
        ranks = [replace(own, class_name=names[own.class_name]) for own in made]
        return replace(program, classes=classes, ranks=ranks)

    def form_of(self, group: SharedMembers, meeting: ContextGroup) -> ContextForm:
        """The form of a group: what its first meeting is cheapest in, where it names none."""
        if group.form is not None:
            return group.form
        if group.pipelines not in self.chosen:
            prices = None if self.cost is None else form_prices(meeting, self.cost)
            self.chosen[group.pipelines] = UNPRICED if prices is None else cheapest_form(prices)
        return self.chosen[group.pipelines]

    def _kept(self, ranks: list[RankProgram]) -> list[RankProgram]:
        name = ranks[0].class_name
        self.classes[name] = self.program.classes[name]
        return ranks

    def _stage(self, group: SharedMembers, member: int, ranks: list[RankProgram]) -> list[RankProgram]:
        """The ranks of a member's stage; their class is theirs alone, for others have other tokens."""
        shared = self.program.classes[ranks[0].class_name]
        first = 1 + max([-1, *_slots(ranks[0], shared)])
        writer = _Writer(self, group, member, ranks, first, shared)
        segments = [writer.segment(number, segment) for number, segment in enumerate(shared.segments)]
        name = f"{shared.name}.{group.pipelines[member]}.{ranks[0].stage}"
        self.classes[name] = ClassProgram(name, segments)
        more = len(writer.steps[0])
        return [
            replace(
                own,
                class_name=name,
                comms=[*own.comms[:first], *steps, *own.comms[first:]],
                literals=[*own.literals, *literals],
                grad_buckets=[_later(bucket, first, more) for bucket in own.grad_buckets],
                param_buckets=[_later(bucket, first, more) for bucket in own.param_buckets],
            )
            for own, steps, literals in zip(ranks, writer.steps, writer.literals, strict=True)
        ]


def _class_order(name: str) -> list[int]:
    return [int(part.removeprefix("c")) for part in name.split(".")]


def _slots(own: RankProgram, shared: ClassProgram) -> list[int]:
    """Of steps that instructions and rows name."""
    rows = [row.args[1] for segment in shared.segments for row in segment.rows if row.op == COMM]
    found = [slot for slot in rows if isinstance(slot, int)]
    return [*found, *(step.slot for step in own.instructions if step.op is Op.STEP_REDUCE)]


B = TypeVar("B", GradBucket, ParamBucket)


def _later(bucket: B, first: int, more: int) -> B:
    return replace(bucket, slot=bucket.slot + more) if bucket.slot >= first else bucket


class _Writer:
    """Writes the segments of a member's stage. steps, literals: new ones, by rank."""

    def __init__(
        self,
        attending: Attending,
        group: SharedMembers,
        member: int,
        ranks: Sequence[RankProgram],
        first: int,
        shared: ClassProgram,
    ) -> None:
        self.attending, self.group, self.member, self.ranks, self.first = (
            attending,
            group,
            member,
            ranks,
            first,
        )
        self.steps: list[list[CommStep]] = [[] for _ in ranks]
        self.literals: list[list[Argument]] = [[] for _ in ranks]
        self.fresh = map(Value, count(1 + max(_numbers(shared), default=-1)))
        self.samples = {
            step.segment: ranks[0].rows[step.mb][1] - ranks[0].rows[step.mb][0]
            for step in ranks[0].instructions
            if step.segment >= 0
        }

    def segment(self, number: int, segment: Segment) -> Segment:
        """The segment with its attention rows written out."""
        outputs: dict[int, tuple[Value, ...]] = {}
        rows: list[LocalRow] = []
        for row in segment.rows:
            if MARK in row.kwargs:
                made = self._made(row, self.samples[number])
                outputs[row.out.id] = made.outputs
                rows += made.rows
            elif row.op == GETITEM and _read(row).id in outputs:
                rows.append(
                    LocalRow(
                        row.out, ALIAS, (outputs[_read(row).id][int(str(row.args[1]))],), {}, row.logical
                    )
                )
            else:
                rows.append(row)
        if any(item.value.id in outputs for item in segment.outputs):
            raise InternalError("the results of attention are kept as one value")
        return replace(segment, rows=rows)

    def _made(self, row: LocalRow, samples: int) -> ContextRows:
        place = row.kwargs[MARK]
        assert isinstance(place, int), "written by the marker"
        meeting = self._meeting(place, samples)
        attending = self.attending
        key, form = (row.op, meeting), attending.form_of(self.group, meeting)
        known = attending.steps.setdefault(key, attending.next_step)
        numbers = Numbering(
            lambda: next(self.fresh),
            self.first + len(self.steps[0]),
            len(self.ranks[0].literals) + len(self.literals[0]),
            known,
        )
        made = attention_rows(form, meeting, self.member, _operands(row), numbers)
        if known == attending.next_step:
            attending.next_step += step_count(
                form, len(meeting.members), row.op in (BACKWARD, PACKED_BACKWARD)
            )
        for rank, own, steps in zip(self.ranks, self.steps, made.steps, strict=True):
            own += [attending.known.setdefault((rank.rank, step.id), step) for step in steps]
        for held, literals in zip(self.literals, made.literals, strict=True):
            held += literals
        return made

    def _meeting(self, place: int, samples: int) -> ContextGroup:
        """Who meets in an attention row, with which heads, and what they compute."""
        group, attending = self.group, self.attending
        each = [found[place] for found in group.attention]
        own = each[self.member]
        members = tuple(
            _member(attending.ranks[pipeline, at.stage], at, runs, attending.first_batch[pipeline])
            for pipeline, at, runs in zip(group.pipelines, each, group.runs, strict=True)
        )
        (query, key, value) = own.layouts
        kind = AttentionKind(
            query.shape[HEADS] // key.shape[HEADS],
            key.shape[WIDTH],
            value.shape[WIDTH],
            own.causal,
            own.window,
            scale=own.scale,
            samples=samples,
            dtype=dtype_name(own.dtype),
        )
        return ContextGroup(members, kind)


def _member(
    ranks: tuple[int, ...], attention: Attention, runs: tuple[Interval, ...], batch: int
) -> ContextMember:
    query, key, _ = attention.layouts
    heads, kv_heads = (
        tuple(_heads(layout, rank, batch) for rank in range(len(ranks))) for layout in (query, key)
    )
    return ContextMember(ranks, heads, kv_heads, runs)


def _heads(layout: Layout, rank: int, batch: int) -> Interval:
    held = flat_factor(layout.dims[HEADS]).held(Coordinate(rank, batch))
    if len(held) > 1:
        raise InternalError(f"a rank has the heads {held}, not one run of them")
    return held[0] if held else (0, 0)


def _operands(row: LocalRow) -> Operands:
    q, k, v = (_value(row.args[place]) for place in OPERANDS[row.op])
    documents = _value(row.args[DOCUMENTS[row.op]]) if row.op in DOCUMENTS else None
    if row.op in (FORWARD, PACKED):
        return Operands(q, k, v, documents)
    return Operands(q, k, v, documents, _value(row.args[0]), _value(row.args[4]), _value(row.args[5]))


def _value(argument: object) -> Value:
    assert isinstance(argument, Value), "attention reads values"
    return argument


def _read(row: LocalRow) -> Value:
    return _value(row.args[0])


def _numbers(shared: ClassProgram) -> Iterator[int]:
    for segment in shared.segments:
        yield from (row.out.id for row in segment.rows)
        yield from (item.value.id for item in segment.inputs)
