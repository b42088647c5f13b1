"""The logical graph as a program of one rank: the reference for values, and the simplest program there is."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

from ..base.comm_plan import GradBucket, GradPiece
from ..errors import InternalError
from ..ir.graph import LogicalGraph, OriginKind, ParamInfo, Phase, Ref, Row, row_inputs
from ..ir.own_names import is_marker
from ..ir.type_text import dtype_name
from ..passes.lower.lower_stage import ALIAS
from ..program.program import (
    ClassProgram,
    DType,
    InputKind,
    Instruction,
    LocalRow,
    Op,
    OutputKind,
    Program,
    RankProgram,
    Segment,
    SegmentInput,
    SegmentOutput,
    Shard,
    Value,
)

PLACEHOLDER = "placeholder"
NAME = "single_device"
UNFILLED = frozenset(
    {"aten.empty.memory_format", "aten.empty_like.default"}
    | {"aten.new_empty.default", "aten.new_empty_strided.default"}
)
"""Memory as it is; every rank has zeros there."""
FORWARD, BACKWARD = 0, 1


def single_device_program(graph: LogicalGraph) -> Program:
    """One rank, one micro-batch: the whole batch. Values have the ids of their rows."""
    shards = [_shard(info) for info in graph.params.values()]
    buckets = [
        _bucket(number, info)
        for number, info in enumerate(info for info in graph.params.values() if info.grad is not None)
    ]
    steps = (Op.GRAD_SYNC, Op.LOSS, Op.OPTIMIZER)
    instructions = [Instruction(Op.FORWARD, FORWARD, 0), Instruction(Op.BACKWARD, BACKWARD, 0)]
    rank = RankProgram(
        rank=0,
        device=0,
        pipeline=0,
        stage=0,
        coordinate=0,
        class_name=NAME,
        device_kind="cpu",
        rows=[(0, graph.batch)],
        literals=[],
        comms=[],
        transfers=[],
        shards=shards,
        grad_buckets=buckets,
        instructions=[*instructions, *(Instruction(op) for op in steps)],
    )
    inputs = {info.name: (info.shape, dtype_name(info.dtype)) for info in graph.inputs.values()}
    aliases = {alias: info.name for info in graph.params.values() for alias in info.aliases}
    shared = ClassProgram(NAME, [_segment(graph, Phase.FORWARD), _segment(graph, Phase.BACKWARD)])
    return Program(1, graph.batch, inputs, aliases, {NAME: shared}, [rank], [(0,)])


def _segment(graph: LogicalGraph, phase: Phase) -> Segment:
    """One half of the graph; what the other half makes is kept between them."""
    inside = {row.id for row in graph.rows if _phase(row) is phase}
    read = dict.fromkeys(number for row in graph.rows if row.id in inside for number in row_inputs(row))
    outside = [graph.rows[number] for number in read if number not in inside]
    rows = [local_row(row) for row in graph.rows if row.id in inside]
    if graph.tangent in read:
        rows.insert(0, _tangent(graph.rows[graph.tangent]))
    inputs = [_input(row) for row in outside if row.origin.kind is not OriginKind.TANGENT]
    return Segment(phase.name.lower(), inputs, rows, list(_outputs(graph, phase, inside)))


def _outputs(graph: LogicalGraph, phase: Phase, inside: set[int]) -> Iterator[SegmentOutput]:
    if phase is Phase.FORWARD:
        later = dict.fromkeys(n for row in graph.rows if row.id not in inside for n in row_inputs(row))
        yield from (SegmentOutput(OutputKind.MICRO, Value(n)) for n in later if n in inside)
    if graph.loss in inside:
        yield SegmentOutput(OutputKind.LOSS, Value(graph.loss))
    for name, number in graph.mutated.items():
        if number in inside:
            yield SegmentOutput(OutputKind.BUFFER, Value(number), name)
    for info in graph.params.values():
        if info.grad is not None and info.grad in inside:
            yield SegmentOutput(OutputKind.GRAD, Value(info.grad), info.name)


def _phase(row: Row) -> Phase | None:
    return None if row.op == PLACEHOLDER else row.phase


def _input(row: Row) -> SegmentInput:
    kinds = {
        OriginKind.PARAM: InputKind.PARAM,
        OriginKind.BUFFER: InputKind.PARAM,
        OriginKind.INPUT: InputKind.DATA,
        OriginKind.RANDOM: InputKind.KEY,
        OriginKind.ACTIVATION: InputKind.MICRO,
    }
    kind = kinds[row.origin.kind] if row.op == PLACEHOLDER else InputKind.MICRO
    return SegmentInput(kind, Value(row.id), row.origin.name if row.op == PLACEHOLDER else "")


def _tangent(row: Row) -> LocalRow:
    assert row.shape is not None and row.dtype is not None, "the tangent is a tensor"
    dtype = DType(dtype_name(row.dtype))
    return LocalRow(Value(row.id), "hspmd.full", (row.shape, 1.0, dtype), logical=row.id)


def local_row(row: Row) -> LocalRow:
    """A row of the graph with its global literals, as a local row; a marker changes nothing on one device."""
    if is_marker(row.op):
        return LocalRow(Value(row.id), ALIAS, (_argument(row.args[0]),), {}, row.id)
    if row.op in UNFILLED and row.shape is not None and row.dtype is not None:
        shape_and_type = (row.shape, 0, DType(dtype_name(row.dtype)))
        return LocalRow(Value(row.id), "hspmd.full", shape_and_type, {}, row.id)
    args = tuple(_argument(argument) for argument in row.args)
    kwargs = {name: _argument(argument) for name, argument in row.kwargs.items()}
    return LocalRow(Value(row.id), row.op, args, kwargs, row.id)


def _argument(argument: object) -> object:
    if isinstance(argument, Ref):
        return Value(argument.id)
    if isinstance(argument, torch.dtype):
        return DType(dtype_name(argument))
    if isinstance(argument, (torch.memory_format, torch.layout)):
        return str(argument).removeprefix("torch.")
    if isinstance(argument, torch.device):
        return argument.type
    if isinstance(argument, (tuple, list)):
        return tuple(_argument(item) for item in argument)
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    raise InternalError(f"a literal of type {type(argument).__name__} has no form in a program")


def _shard(info: ParamInfo) -> Shard:
    box = tuple((0, size) for size in info.shape)
    shape, pairs = info.shape, ((box, box),)
    return Shard(
        name=info.name,
        dtype=dtype_name(info.dtype),
        shape=shape,
        view=shape,
        whole_shape=shape,
        whole_view=shape,
        boxes=pairs,
        owned=pairs,
        trainable=info.trainable,
        is_buffer=info.is_buffer,
        persistent=info.persistent,
    )


def _bucket(number: int, info: ParamInfo) -> GradBucket:
    boxes = (tuple((0, size) for size in info.shape),)
    piece = GradPiece(info.name, prod(info.shape), info.shape, boxes, info.shape, boxes)
    return GradBucket(number, (0,), dtype_name(info.dtype), (piece,))
