"""A program for micro-batches of any size, as the plain program of one step's choice.

What is not the hot path of training works on it: proofs, pages, prices, and strategies of fixed lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from ...base.comm_plan import CommStep, GradBucket, ParamBucket
from ..arguments import leaves, map_leaves
from ..program import (
    COMM,
    COMM_START,
    ClassProgram,
    Hole,
    Instruction,
    LocalRow,
    Program,
    RankProgram,
    Segment,
)
from ..receipts import with_receipts
from .comm_numbers import filled
from .saved_bytes import saved_bytes
from .shared_rows import own_pieces
from .size_range import SizeRange
from .sizes import Count, MicroSizes, Overlay, Size
from .step_plan import StepPlan, rows_of
from .template import MOVES, step_instructions

B = TypeVar("B", GradBucket, ParamBucket)
DRAWN = frozenset({"hspmd.random_mask", "hspmd.random_numbers"})
DRAWN_PARTS = 3
"""Where rows that draw say which elements."""
Variants: TypeAlias = tuple[MicroSizes, ...]
"""The distinct sizes that a pipeline runs, each with a set of segments, literals and steps of its own."""


def instantiate(program: Program, plan: StepPlan) -> Program:
    """The plain program that does what `plan` chooses; its inputs are the whole step's.

    Of packed tokens one row, [1, N]; the micro-batches of a step lie in it from `first` on.
    """
    assert program.sizes is not None, "a program for micro-batches of any size"
    made = _Instance(program, program.sizes, plan)
    own = [made.rank(each) for each in program.ranks]
    ranks = with_receipts(own) if len(own) == program.world_size else own  # which follow from all ranks
    inputs, left_out = (
        {name: (_shape(program, shape, made.total), kind) for name, (shape, kind) in given.items()}
        for given in (program.inputs, program.left_out)
    )
    return replace(
        program,
        batch=made.total,
        inputs=inputs,
        left_out=left_out,
        classes=made.classes,
        ranks=ranks,
        sizes=None,
    )


def as_compiled(program: Program) -> Program:
    """The plain program of the first compile, on its graph's inputs: rows, where tokens vary and no
    pipelines share them."""
    assert program.sizes is not None, "a program for micro-batches of any size"
    made = instantiate(program, program.sizes.probes[0])
    if program.sizes.unit is Count.SAMPLES or program.sizes.groups:
        return made
    micros = sorted(
        (micro.first, pipeline, place)
        for pipeline, own in enumerate(program.sizes.probes[0].pipelines)
        for place, micro in enumerate(own)
    )
    made = _numbered_by_row(made, program.sizes.probes[0])
    starts = sorted({first for first, _, _ in micros})
    at = {(pipeline, place): starts.index(first) for first, pipeline, place in micros}
    ranks = [
        replace(
            own,
            rows=[(row, row + 1) for place in range(len(own.rows)) for row in [at[own.pipeline, place]]],
            row_dim=0,
        )
        for own in made.ranks
    ]
    made = replace(made, inputs=program.inputs, left_out=program.left_out)
    return replace(made, batch=program.batch, ranks=ranks)


def _numbered_by_row(program: Program, plan: StepPlan) -> Program:
    """The program whose random numbers count tokens from a micro-batch's row, where its key has rows."""
    tokens = plan.pipelines[0][0].tokens
    holes: set[tuple[str, int]] = set()

    def row(name: str, held: LocalRow) -> LocalRow:
        if held.op not in DRAWN:
            return held
        parts = held.args[DRAWN_PARTS]
        if type(parts) is Hole:
            holes.add((name, parts.index))
            return held
        args = (*held.args[:DRAWN_PARTS], _by_row(parts, tokens), *held.args[DRAWN_PARTS + 1 :])
        return replace(held, args=args)

    classes = {
        name: ClassProgram(
            name,
            [replace(each, rows=[row(name, held) for held in each.rows]) for each in shared.segments],
        )
        for name, shared in program.classes.items()
    }
    ranks = [
        replace(
            own,
            literals=[
                _by_row(each, tokens) if (own.class_name, number) in holes else each
                for number, each in enumerate(own.literals)
            ],
        )
        for own in program.ranks
    ]
    return replace(program, classes=classes, ranks=ranks)


def _by_row(parts: object, tokens: int) -> object:
    """Parts of a random value, of which one counts rows of so many tokens."""
    assert isinstance(parts, tuple), "parts of a layout"
    return tuple([(size, held, tokens * per) for size, held, per in parts])


def plain(program: Program) -> Program:
    """The program itself where it is of one size, else that of the first compile."""
    return program if program.sizes is None else as_compiled(program)


def _shape(program: Program, shape: tuple[int, ...], total: int) -> tuple[int, ...]:
    assert program.sizes is not None
    return (1, total, *shape[2:]) if program.sizes.unit is Count.TOKENS else (total, *shape[1:])


@dataclass(slots=True)
class _Instance:
    """One program that is being made. names: of classes, by those of the sized program and the sizes."""

    program: Program
    sizes: SizeRange
    plan: StepPlan
    classes: dict[str, ClassProgram] = field(default_factory=dict)
    names: dict[tuple[str, Variants], str] = field(default_factory=dict)
    steps: dict[tuple[int, MicroSizes, int], CommStep] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    total: int = 0
    stride: int = 0

    def __post_init__(self) -> None:
        self.total = self.plan.total(self.sizes.unit)
        ids = (step.id for own in self.program.ranks for step in (*own.comms, *own.transfers))
        self.stride = 1 + max(ids, default=0)
        self.slots = {name: _row_slots(shared) for name, shared in self.program.classes.items()}

    def micros(self, pipeline: int) -> tuple[MicroSizes, ...]:
        return self.plan.micros(pipeline, self.sizes.unit)

    def variants(self, pipeline: int) -> tuple[Variants, list[int]]:
        """Distinct sizes, and which each micro-batch has; members of a group tell them apart alike."""
        group = [self.micros(member) for member in self.sizes.group_of(pipeline)]
        keys = [tuple(micro.shape for micro in met) for met in zip(*group, strict=True)]
        distinct = list(dict.fromkeys(keys))
        which = [distinct.index(key) for key in keys]
        own = self.micros(pipeline)
        return tuple(own[which.index(variant)].shape for variant in range(len(distinct))), which

    def rank(self, own: RankProgram) -> RankProgram:
        """The plain program of a rank."""
        sized = own.sized
        assert sized is not None, "a program for micro-batches of any size"
        variants, which = self.variants(own.pipeline)
        held = self.slots[own.class_name]
        more = (len(variants) - 1) * held
        by_number = list(enumerate(variants))
        micros = self.micros(own.pipeline)
        return replace(
            own,
            class_name=self.class_of(own.class_name, variants),
            rows=[rows_of(micro, self.sizes.unit) for micro in micros],
            pieces=own_pieces(self.sizes, own.pipeline, micros, self.program.inputs),
            literals=[self.argument(each, micro) for micro in variants for each in own.literals],
            comms=[
                *(each for at in by_number for each in self.filled(own.comms[:held], sized.comms, at)),
                *own.comms[held:],
            ],
            transfers=[each for at in by_number for each in self.filled(own.transfers, sized.transfers, at)],
            instructions=self.instructions(own, which, more),
            grad_buckets=[_moved(each, held, more) for each in own.grad_buckets],
            param_buckets=[_moved(each, held, more) for each in own.param_buckets],
            row_dim=1 if self.sizes.unit is Count.TOKENS else 0,
            saved=[saved_bytes(own, micro, self.total) for micro in micros],
            sized=None,
        )

    def class_of(self, name: str, variants: Variants) -> str:
        """The class program with a set of segments for each size."""
        key = (name, variants)
        if key not in self.names:
            made = self.names[key] = f"{name}.{len(self.names)}"
            held, literals = self.slots[name], _holes(self.program.classes[name])
            segments = [
                self.segment(each, micro, number, number * held, number * literals)
                for number, micro in enumerate(variants)
                for each in self.program.classes[name].segments
            ]
            self.classes[made] = ClassProgram(made, segments)
        return self.names[key]

    def segment(self, segment: Segment, micro: MicroSizes, number: int, slots: int, holes: int) -> Segment:
        """A segment at one size. slots, holes: how many come before those of this size."""
        rows = [self.row(row, micro, slots, holes) for row in segment.rows]
        name, _, rest = segment.name.partition(".")
        return replace(segment, name=f"{name}.{number}{rest[1:]}", rows=rows)

    def row(self, row: LocalRow, micro: MicroSizes, slots: int, holes: int) -> LocalRow:
        if row.op in (COMM, COMM_START):
            return replace(row, args=(row.args[0], row.args[1] + slots)) if slots else row  # type: ignore[operator]
        args = tuple([self.argument(each, micro, holes) for each in row.args])
        kwargs = {key: self.argument(each, micro, holes) for key, each in row.kwargs.items()}
        return LocalRow(row.out, row.op, args, kwargs, row.logical)

    def argument(self, argument: object, micro: MicroSizes, holes: int = 0) -> object:
        """An argument with numbers for its sizes; its holes are those of the size."""

        def changed(leaf: object) -> object:
            if type(leaf) is Size:
                return leaf.at(micro, self.total)
            return Hole(leaf.index + holes) if type(leaf) is Hole else leaf

        return map_leaves(argument, changed)

    def filled(
        self, steps: Sequence[CommStep], overlays: Sequence[Overlay], at: tuple[int, MicroSizes]
    ) -> list[CommStep]:
        """Steps of one size; each has an id of its own, by which its members find each other."""
        number, micro = at
        made = []
        for step, overlay in zip(steps, overlays, strict=False):
            key = (id(step), micro, number)
            if key not in self.steps:
                numbered = replace(step, id=step.id + number * self.stride) if number else step
                self.steps[key] = filled(numbered, overlay, micro, self.total)
            made.append(self.steps[key])
        return made

    def instructions(self, own: RankProgram, which: Sequence[int], more: int) -> list[Instruction]:
        """Those of the step, each with the segment and the transfer of its micro-batch's size."""
        segments, transfers = len(self.program.classes[own.class_name].segments), len(own.transfers)
        held = self.slots[own.class_name]
        made = []
        for each in step_instructions(own, self.sizes, self.plan.counts):
            number = which[each.mb] if each.mb >= 0 else 0
            if each.op in MOVES:
                made.append(replace(each, slot=each.slot + number * transfers))
            elif each.segment >= 0:
                made.append(replace(each, segment=each.segment + number * segments))
            else:
                made.append(replace(each, slot=each.slot + more) if each.slot >= held else each)
        return made


def _row_slots(shared: ClassProgram) -> int:
    """Steps that the rows of a class take from its ranks; those of sums and buckets stand behind them."""
    slots = [row.args[1] for segment in shared.segments for row in segment.rows if row.op == COMM]
    return 1 + max((slot for slot in slots if isinstance(slot, int)), default=-1)


def _holes(shared: ClassProgram) -> int:
    rows = (row for segment in shared.segments for row in segment.rows)
    found = (leaf for row in rows for leaf in leaves((row.args, row.kwargs)) if type(leaf) is Hole)
    return 1 + max((hole.index for hole in found), default=-1)


def _moved(bucket: B, held: int, more: int) -> B:
    """A bucket whose step stands behind those of further sizes."""
    return replace(bucket, slot=bucket.slot + more) if bucket.slot >= held else bucket
