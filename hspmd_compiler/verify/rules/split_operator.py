"""A few operators run whole, and again split: deduced, lowered row by row, all ranks in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from ...base.comm_plan import Combine, CommKind, CommStep
from ...ir.annotated import COMM, STEP_REDUCE, AnnotatedRow, AnnotatedValue, PipelineGraph
from ...ir.fx_convert import target_of
from ...ir.graph import LogicalGraph, Meta, Ref, Row, map_refs
from ...layout.intervals import Sets, union
from ...layout.layout import Coordinate, Layout, whole
from ...passes.deduction.deducer import Deducer
from ...passes.deduction.placement import GraphFacts, StartLayouts
from ...passes.liveness import StageRows
from ...passes.lower.lower_stage import StageLowering
from ...passes.resolve_comm import CommResolver
from ...passes.segments import Outputs
from ...program.arrays import TorchArrays
from ...program.interpret import compute_row, read_row
from ...program.kernels.counter_random import key_tensor
from ...program.kernels.kernels import kernel
from ...program.program import KEY_SIZE
from ...rules.call_rule import Alternative
from ...rules.lines.constant_lines import FILLS
from ...strategy.strategy import PipelineSpec, StageSpec
from ..assemble import gap, largest_of
from .split_operands import TOLERANCE, Locals, Operand, Random, StageMesh, joined, lying_anyhow, random_pieces

WHERE = "test.py:1"
"""The line that errors of the operator name."""
UNDEFINED = (
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "aten.empty.memory_format",
)
"""Operators whose values are whatever lies in memory."""


@dataclass
class OperandSketch:
    """Operands in given layouts, and rows that are run whole while they are added."""

    mesh: StageMesh
    sequence_parallel: bool = False
    rows: list[Row] = field(default_factory=list)
    wholes: list[object] = field(default_factory=list)
    layouts: dict[int, Layout] = field(default_factory=dict)
    pieces: dict[int, Locals] = field(default_factory=dict)
    pure: set[int] = field(default_factory=set)
    rng: Random = field(default_factory=lambda: Random(0))
    choices: dict[int, Alternative] = field(default_factory=dict)

    def operand(self, operand: Operand, layout: Layout) -> Ref:
        """A placeholder with random local tensors."""
        made = random_pieces(operand, layout, self.mesh)
        pieces = {at: lying_anyhow(self.rng, piece) for at, piece in made.items()}
        return self.given(joined(layout, pieces, "operand"), layout, pieces, operand.pure)

    def given(self, value: Tensor, layout: Layout, pieces: Locals, pure: bool) -> Ref:
        """A placeholder: the whole value, and what each rank holds of it."""
        number = len(self.rows)
        self.layouts[number] = layout
        self.pieces[number] = pieces
        if pure:
            self.pure.add(number)
        return self._append("placeholder", (), {}, value)

    def key(self, seed_and_step: tuple[int, int]) -> Ref:
        """The key of random masks: every micro-batch has its own first sample."""
        number = len(self.rows)
        firsts = [sets[0][0] for sets in self.mesh.batch] or [0]
        self.layouts[number] = whole((KEY_SIZE,))
        self.pieces[number] = {
            at: key_tensor((*seed_and_step, firsts[at.batch])) for at in self.mesh.coordinates
        }
        self.pure.add(number)
        return self._append("placeholder", (), {}, key_tensor((*seed_and_step, 0)))

    def call(self, op: str, args: Sequence[object], kwargs: dict[str, object] | None = None) -> Ref:
        """One operator, run whole at once; a program has no fills but our own."""
        plain, named = (map_refs(item, lambda ref: self.wholes[ref.id]) for item in (args, kwargs or {}))
        called: Callable[..., object] = target_of(op) if op in FILLS else kernel(op)
        value = called(*plain, **named)  # type: ignore[misc, arg-type]
        value = tuple(value) if isinstance(value, (tuple, list)) else value
        return self._append(op, tuple(args), kwargs or {}, value)

    def pick(self, ref: Ref, index: int) -> Ref:
        """One output of an operator with several."""
        return self._append("getitem", (ref, index), {}, self.wholes[ref.id][index])  # type: ignore[index]

    def _append(self, op: str, args: tuple[object, ...], kwargs: dict[str, object], value: object) -> Ref:
        row = Row(len(self.rows), op, args, kwargs, None, None, None, where=WHERE)
        if isinstance(value, Tensor):
            row.shape, row.dtype = tuple(value.shape), value.dtype
        else:
            row.outs = tuple([_meta(item) for item in value])  # type: ignore[attr-defined]
        self.rows.append(row)
        self.wholes.append(value)
        return Ref(len(self.rows) - 1)


def _meta(value: Tensor | None) -> Meta | None:
    return None if value is None else (tuple(value.shape), value.dtype)


def check(sketch: OperandSketch) -> None:
    """Every value of every row is that of the whole run. A DeduceError passes through."""
    deducer, values = deduced(sketch)
    held = run(sketch, deducer.result, values)
    for row in sketch.rows:
        if row.op in ("placeholder", *UNDEFINED) or row.outs is not None:
            continue
        value = values[row.id]
        what = f"{row.op} from {[str(layout) for layout in sketch.layouts.values()]}"
        found, wanted = joined(value.layout, held[value.id], what), sketch.wholes[row.id]
        assert isinstance(wanted, Tensor)
        assert found.dtype == wanted.dtype, f"{what}: {found.dtype} for {wanted.dtype}"
        scale = max(1.0, _largest(wanted))
        worst = largest_of(gap(_numbers(found, wanted), _numbers(wanted, wanted)))
        assert worst <= TOLERANCE * scale, f"{what}: off by {worst}"


def _numbers(value: Tensor, wanted: Tensor) -> Tensor:
    """With NaN where neither is a number: x / 0, whose addends on ranks are infinite and 0 / 0."""
    if not value.is_floating_point():
        return value
    return value.masked_fill(~(value.isfinite() | wanted.isfinite()), float("nan"))


def _largest(value: Tensor) -> float:
    sizes = value.double() if value.dtype == torch.bool else value.abs().double()
    return float(sizes.nan_to_num(0, 0, 0).max()) if value.numel() else 0.0


def deduced(sketch: OperandSketch) -> tuple[Deducer, dict[int, AnnotatedValue]]:
    """Local rows of all logical rows, each value by its row."""
    mesh = sketch.mesh
    batch = mesh.batch[-1][-1][1] if mesh.batch else 1
    graph = LogicalGraph(sketch.rows, {}, {}, len(sketch.rows) - 1, 0, batch)
    spec = PipelineSpec((StageSpec(tuple(range(mesh.ranks)), (0, 1)),), (batch,))

    def tokens(stage: int, length: int) -> Sets:
        bounds = [length * rank // mesh.ranks for rank in range(mesh.ranks + 1)]
        return tuple(union([pair]) for pair in pairwise(bounds))

    placement = StartLayouts(mesh.batch, lambda name, stage: Layout(()), tokens, sketch.sequence_parallel)
    facts, stages = GraphFacts.of(graph), [0] * len(sketch.rows)
    first, result = sketch.rows[0], PipelineGraph(0)
    deducer = Deducer(graph, spec, placement, result, facts.kinds, stages, facts.operands, first, facts.calls)
    deducer.choices = sketch.choices
    for number, layout in sketch.layouts.items():
        dtype = sketch.rows[number].dtype
        assert dtype is not None
        deducer.values[number, 0] = AnnotatedValue(number, layout, dtype, 0, pure=number in sketch.pure)
    deducer.next_id = len(sketch.rows)
    values: dict[int, AnnotatedValue] = {}
    for row in sketch.rows:
        value = deducer.value_of(row.id, 0)
        if isinstance(value, AnnotatedValue):
            values[row.id] = value
            if value.producer is not None:
                waiting, value.producer = value.producer, None
                deducer._put(waiting)
    return deducer, values


def run(sketch: OperandSketch, graph: PipelineGraph, values: dict[int, AnnotatedValue]) -> dict[int, Locals]:
    """Local tensors of every value, by value id; shapes are those of the layouts."""
    mesh = sketch.mesh
    lowering = StageLowering(graph, 0, mesh.ranks, len(sketch.rows), StageRows())
    resolver = CommResolver()
    held: dict[int, Locals] = {values[number].id: pieces for number, pieces in sketch.pieces.items()}
    for row in graph.rows:
        if row.op == STEP_REDUCE:
            total = sum(held[row.reads[0].id].values())
            assert isinstance(total, Tensor)
            held[row.out.id] = {at: total.clone() for at in mesh.coordinates}
        elif row.op == COMM:
            held[row.out.id] = _communicate(mesh, row, resolver, held)
        else:
            held[row.out.id] = {at: _local(lowering, row, at, held) for at in mesh.coordinates}
        for at, tensor in held[row.out.id].items():
            if isinstance(tensor, Tensor):
                wanted = row.out.layout.local_shape(at)
                assert tuple(tensor.shape) == wanted, f"{row.op} at {at}: {tuple(tensor.shape)} for {wanted}"
    return held


def _local(lowering: StageLowering, row: AnnotatedRow, at: Coordinate, held: dict[int, Locals]) -> Tensor:
    segment = lowering.segment("row", [row], Outputs(), at.batch)
    values = {lowering.value(value).id: held[value.id][at] for value in row.reads}
    result = compute_row(read_row(segment.rows[0], lowering.literals[at.rank]), values, "cpu")
    return result  # type: ignore[no-any-return]


def _communicate(
    mesh: StageMesh, row: AnnotatedRow, resolver: CommResolver, held: dict[int, Locals]
) -> Locals:
    assert row.marker is not None
    source, arrays = held[row.reads[0].id], TorchArrays()
    dtype = str(row.out.dtype).removeprefix("torch.")
    result: Locals = {}
    if row.marker.batch_sum is not None:
        total = arrays.reduce(list(source.values()), Combine.SUM)
        return {at: total.clone() for at in mesh.coordinates}
    for batch in range(max(1, len(mesh.batch))):
        local = {rank: source[Coordinate(rank, batch)] for rank in range(mesh.ranks)}
        for steps in resolver.steps(row.marker, tuple(range(mesh.ranks)), batch, dtype):
            local = answered(steps, local)
        result |= {Coordinate(rank, batch): tensor for rank, tensor in local.items()}
    return result


def answered(steps: Mapping[int, CommStep], local: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """What every rank has after its step of a round."""
    arrays = TorchArrays()
    reduced = {step.group: step for step in steps.values() if step.kind is CommKind.ALL_REDUCE}
    result: dict[int, Tensor] = {}
    for group, step in reduced.items():
        total = arrays.reduce([local[rank] for rank in group], step.combine)
        result |= {rank: total.clone() for rank in group}
    moved = [rank for rank in steps if rank not in result]
    parts = {rank: arrays.cut(steps[rank], local[rank]) for rank in moved}
    for rank in moved:
        arrived = {peer: cut[rank] for peer, cut in parts.items() if rank in cut}
        result[rank] = arrays.paste(steps[rank], arrived)
    return result
