"""One stage of one pipeline as segments: local rows, with holes where its ranks' literals differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ...errors import InternalError
from ...ir.annotated import (
    COMM,
    GATHER,
    GATHER_START,
    AnnotatedRow,
    AnnotatedValue,
    PerCoordinate,
    PipelineGraph,
)
from ...layout.layout import Coordinate
from ...program.program import (
    COMM_START,
    DType,
    Hole,
    InputKind,
    LocalRow,
    OutputKind,
    Segment,
    SegmentInput,
    SegmentOutput,
    Value,
)
from ...program.sized.documents import STARTS
from ..liveness import StageRows
from ..segments import Outputs

DROPPED_KWARGS = frozenset({"device", "pin_memory", "layout", "memory_format", "non_blocking"})
ALIAS = "aten.alias.default"
SAME_VALUE = frozenset({"aten.clone.default", "hspmd.comm.default", "hspmd.comm_backward.default"})


@dataclass(slots=True)
class StageLowering:
    """Lowers the rows of one stage. ranks: number of ranks. rounds: of each communicating row, in the order
    in which rows are lowered, how many steps it takes.

    literals: per rank, the values of the class program's holes. slots: of steps that were taken. started: of
    gathers that may be under way, by the value of the start.
    """

    graph: PipelineGraph
    stage: int
    ranks: int
    logical_rows: int
    rows: StageRows
    rounds: Sequence[int] = ()
    values: dict[int, Value] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    literals: list[list[object]] = field(default_factory=list)
    renamed: dict[int, AnnotatedValue] = field(default_factory=dict)
    leaves: dict[int, tuple[InputKind, str]] = field(default_factory=dict)
    same: dict[int, int] = field(default_factory=dict)
    next_number: int = 0
    slots: int = 0
    communicated: int = 0
    started: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.literals = [[] for _ in range(self.ranks)]
        self.next_number = self.logical_rows
        for kind, table in ((InputKind.PARAM, self.graph.params), (InputKind.DATA, self.graph.inputs)):
            self.leaves |= {v.id: (kind, name) for (name, stage), v in table.items() if stage == self.stage}
        if self.stage in self.graph.keys:
            self.leaves[self.graph.keys[self.stage].id] = (InputKind.KEY, "")
        for (name, stage), value in self.graph.params.items():
            if (
                stage == self.stage and name in self.rows.stored
            ):  # a row makes it, and later parts read it as kept
                self.leaves.pop(value.id, None)
        self.leaves |= {value.id: (InputKind.STORED, name) for name, value in self.rows.stored.items()}
        self._add_documents()
        self.renamed = {step.row.out.id: step.share for step in (*self.rows.steps, *self.rows.sums)}

    def _add_documents(self) -> None:
        """Where the documents of an input begin is an input too, one value whoever asks."""
        first: dict[str, int] = {}
        for row in (*self.rows.forward, *self.rows.backward):
            kind, name = self.leaves.get(row.reads[0].id, (None, "")) if row.op == STARTS else (None, "")
            if kind is InputKind.DATA:
                self.leaves[row.out.id] = (InputKind.DOCUMENTS, name)
                self.same[row.out.id] = first.setdefault(name, row.out.id)

    def value(self, value: AnnotatedValue) -> Value:
        """The value in the class program: by its logical row's id, else by a fresh one."""
        number = self.same.get(value.id, value.id)
        found = self.values.get(number)
        if found is None:
            share = self.renamed.get(value.id)
            found = self._new_value(value) if share is None else self.value(share)
            self.values[number] = found
        return found

    def _new_value(self, value: AnnotatedValue) -> Value:
        if value.logical is None or value.logical in self.taken:
            return self._unnamed()
        self.taken.add(value.logical)
        return Value(value.logical)

    def segment(self, name: str, rows: Sequence[AnnotatedRow], outputs: Outputs, batch: int) -> Segment:
        """Rows of one phase as a segment for the micro-batch at coordinate `batch`."""
        rows = [row for row in rows if row.out.id not in self.same]
        local = [made for row in rows for made in self._rows(row, batch)]
        made = {row.out.id for row in rows}
        inputs: dict[int, SegmentInput] = {}
        given = [value for _, value, _ in outputs.special]
        for value in (*(operand for row in rows for operand in row.reads), *given):
            number = self.same.get(value.id, value.id)
            if number not in made and number not in inputs:
                inputs[number] = self._input(value)
        numbers = sorted(self.value(value).id for value in outputs.micro if value.id not in self.same)
        results = [SegmentOutput(OutputKind.MICRO, Value(number)) for number in numbers]
        results += [SegmentOutput(kind, self.value(value), name) for kind, value, name in outputs.special]
        return Segment(name, list(inputs.values()), local, results)

    def _input(self, value: AnnotatedValue) -> SegmentInput:
        number = self.value(value)
        if value.id in self.renamed:
            return SegmentInput(InputKind.STEP, number)
        kind, name = self.leaves.get(value.id, (InputKind.MICRO, ""))
        return SegmentInput(kind, number, name)

    def _rows(self, row: AnnotatedRow, batch: int) -> list[LocalRow]:
        if row.op == COMM:
            return self._rounds(row)
        if row.op == GATHER_START:
            return [self._started(row)]
        if row.op == GATHER:
            source = self.value(row.reads[0])
            return [LocalRow(self.value(row.out), COMM, (source, self.started.pop(source.id)))]
        return [self._row(row, batch)]

    def _rounds(self, row: AnnotatedRow) -> list[LocalRow]:
        """A communication, one row for each of its rounds."""
        source, out = self.value(row.reads[0]), self.value(row.out)
        last = self.rounds[self.communicated] - 1
        self.communicated += 1
        made: list[LocalRow] = []
        for number in range(last + 1):
            result = out if number == last else self._unnamed()
            logical = row.out.logical if number == last else None
            counts = tuple([self.value(each) for each in row.reads[1:]])
            made.append(LocalRow(result, COMM, (source, self.slots, *counts), {}, logical))
            self.slots += 1
            source = result
        return made

    def _started(self, row: AnnotatedRow) -> LocalRow:
        """A gather that may be under way; the row that reads the result has its slot."""
        out, slot = self.value(row.out), self.slots
        self.started[out.id] = slot
        self.slots += 1
        self.communicated += 1
        return LocalRow(out, COMM_START, (self.value(row.reads[0]), slot))

    def _unnamed(self) -> Value:
        """A value between two rounds."""
        self.next_number += 1
        return Value(self.next_number - 1)

    def _row(self, row: AnnotatedRow, batch: int) -> LocalRow:
        out = self.value(row.out)
        logical = row.out.logical
        if row.op in SAME_VALUE:
            return LocalRow(out, ALIAS, (self._argument(row.args[0], batch),), {}, logical)
        args = tuple([self._argument(argument, batch) for argument in row.args])
        if not row.kwargs:
            return LocalRow(out, row.op, args, {}, logical)
        kwargs = {
            key: self._argument(value, batch)
            for key, value in row.kwargs.items()
            if key not in DROPPED_KWARGS and value is not None
        }
        return LocalRow(out, row.op, args, kwargs, logical)

    def _argument(self, argument: object, batch: int) -> object:
        kind = type(argument)
        if kind is AnnotatedValue:
            return self.value(argument)  # type: ignore[arg-type]
        if kind is int:
            return argument
        if isinstance(argument, PerCoordinate):
            return self._literal(argument, batch)
        if isinstance(argument, (tuple, list)):
            return tuple([self._argument(item, batch) for item in argument])
        if isinstance(argument, torch.dtype):
            return DType(str(argument).removeprefix("torch."))
        if argument is None or isinstance(argument, (bool, int, float, str)):
            return argument
        raise InternalError(
            f"argument {argument!r} can't be written into a program",
            rule="arguments are values, numbers, strings and dtypes",
            fix="report this model",
        )

    def _literal(self, literal: PerCoordinate, batch: int) -> object:
        """The literal itself where all ranks agree, else a hole that each rank fills."""
        values = [literal.at(Coordinate(rank, batch)) for rank in range(self.ranks)]
        if all(value == values[0] for value in values):
            return values[0]
        for own, value in zip(self.literals, values, strict=True):
            own.append(value)
        return Hole(len(self.literals[0]) - 1)
