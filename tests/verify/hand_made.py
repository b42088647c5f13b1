"""Small rank programs written by hand: an MLP under tensor and data parallelism, and as a pipeline."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hspmd_compiler.base.comm_plan import Box, Combine, CommKind, CommStep, GradBucket, GradPiece, Piece
from hspmd_compiler.program.program import (
    ClassProgram,
    Hole,
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

BATCH, WIDE_IN, HIDDEN, OUT = 5, 3, 4, 2
COUNT = BATCH * OUT
FLOAT = "float32"
INPUTS = {"x": ((BATCH, WIDE_IN), FLOAT), "target": ((BATCH, OUT), FLOAT)}


class Mlp(nn.Module):
    """The model that both programs train."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(HIDDEN, WIDE_IN))
        self.w2 = nn.Parameter(torch.randn(OUT, HIDDEN))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        difference = torch.tanh(x @ self.w1.t()) @ self.w2.t() - target
        return (difference * difference).sum() / COUNT


def row(out: int, op: str, *args: object) -> LocalRow:
    return LocalRow(Value(out), op, args)


def v(number: int) -> Value:
    return Value(number)


def inputs(**kinds: tuple[InputKind, int]) -> list[SegmentInput]:
    """name=(kind, value); kept values get any name."""
    named = {InputKind.PARAM, InputKind.DATA}
    return [
        SegmentInput(kind, v(value), name if kind in named else "") for name, (kind, value) in kinds.items()
    ]


def kept(*values: int) -> list[SegmentOutput]:
    return [SegmentOutput(OutputKind.MICRO, v(value)) for value in values]


def grad(name: str, value: int) -> SegmentOutput:
    return SegmentOutput(OutputKind.GRAD, v(value), name)


def shard(name: str, whole: tuple[int, ...], box: Box, owned: bool = True) -> Shard:
    shape = tuple(high - low for low, high in box)
    here = tuple((0, size) for size in shape)
    pair = ((box, here),)
    return Shard(name, FLOAT, shape, shape, whole, whole, pair, pair if owned else (), True, False)


def rank_program(rank: int, name: str, rows: list[tuple[int, int]], **fields: object) -> RankProgram:
    values: dict[str, object] = {
        "device": rank,
        "pipeline": 0,
        "stage": 0,
        "coordinate": 0,
        "device_kind": "cpu",
        "literals": [],
        "comms": [],
        "transfers": [],
        "shards": [],
        "grad_buckets": [],
    }
    return RankProgram(rank=rank, class_name=name, rows=rows, **(values | fields))  # type: ignore[arg-type]


def program(shared: list[ClassProgram], ranks: list[RankProgram], groups: list[tuple[int, ...]]) -> Program:
    return Program(len(ranks), BATCH, INPUTS, {}, {item.name: item for item in shared}, ranks, groups)


PARAM, DATA, MICRO = InputKind.PARAM, InputKind.DATA, InputKind.MICRO

MLP_FORWARD = Segment(
    "forward",
    inputs(w1=(PARAM, 0), w2=(PARAM, 1), x=(DATA, 2), target=(DATA, 3)),
    [
        row(4, "aten.t.default", v(0)),
        row(5, "aten.mm.default", v(2), v(4)),
        row(6, "aten.tanh.default", v(5)),
        row(7, "aten.t.default", v(1)),
        row(8, "aten.mm.default", v(6), v(7)),
        row(9, "comm", v(8), 0),
        row(10, "aten.sub.Tensor", v(9), v(3)),
        row(11, "aten.mul.Tensor", v(10), v(10)),
        row(12, "aten.sum.default", v(11)),
        row(13, "aten.mul.Tensor", v(12), 1 / COUNT),
        row(14, "hspmd.zero_unless", v(13), Hole(0)),
    ],
    [*kept(6, 10), SegmentOutput(OutputKind.LOSS, v(14))],
)
MLP_BACKWARD = Segment(
    "backward",
    inputs(w2=(PARAM, 1), x=(DATA, 2), hidden=(MICRO, 6), difference=(MICRO, 10)),
    [
        row(20, "aten.mul.Tensor", v(10), 2 / COUNT),
        row(21, "aten.t.default", v(20)),
        row(22, "aten.mm.default", v(21), v(6)),
        row(23, "aten.mm.default", v(20), v(1)),
        row(24, "aten.tanh_backward.default", v(23), v(6)),
        row(25, "aten.t.default", v(24)),
        row(26, "aten.mm.default", v(25), v(2)),
    ],
    [grad("w2", 22), grad("w1", 26)],
)


def both(*mbs: int) -> list[Instruction]:
    """Forward and backward of each micro-batch in turn."""
    pairs = [(Instruction(Op.FORWARD, 0, mb), Instruction(Op.BACKWARD, 1, mb)) for mb in mbs]
    return [instruction for pair in pairs for instruction in pair]


ENDING = [Instruction(Op.GRAD_SYNC), Instruction(Op.LOSS), Instruction(Op.OPTIMIZER)]
HIDDEN_OF = {0: (0, 3), 1: (3, 4), 2: (0, 4)}
"""Hidden units of each rank: 3 and 1 in the first pipeline, all in the second."""


def tensor_and_data_parallel() -> Program:
    """Pipeline 0: ranks 0, 1 share the hidden units 3:1, rows 0-2 and 2-3. Pipeline 1: rank 2, rows 3-5."""
    sum_outputs = {
        rank: CommStep(0 if rank < 2 else 1, CommKind.ALL_REDUCE, (0, 1) if rank < 2 else (2,), Combine.SUM)
        for rank in range(3)
    }
    ranks = [
        rank_program(
            rank,
            "mlp",
            [(3, 5)] if rank == 2 else [(0, 2), (2, 3)],
            literals=[rank != 1],
            comms=[sum_outputs[rank]],
            shards=[
                shard("w1", (HIDDEN, WIDE_IN), (HIDDEN_OF[rank], (0, WIDE_IN)), rank != 2),
                shard("w2", (OUT, HIDDEN), ((0, OUT), HIDDEN_OF[rank]), rank != 2),
            ],
            grad_buckets=[_bucket(peer, rank) for peer in (0, 1) if rank in (peer, 2)],
            instructions=[*both(*range(1 if rank == 2 else 2)), *ENDING],
        )
        for rank in range(3)
    ]
    return program([ClassProgram("mlp", [MLP_FORWARD, MLP_BACKWARD])], ranks, [(0, 1), (2,), (0, 2), (1, 2)])


def _bucket(peer: int, rank: int) -> GradBucket:
    """The gradients of `peer`'s hidden units, summed over `peer` and rank 2."""
    low, high = HIDDEN_OF[peer] if rank == 2 else (0, HIDDEN_OF[peer][1] - HIDDEN_OF[peer][0])
    width = HIDDEN if rank == 2 else high
    first: tuple[Box, ...] = (((low, high), (0, WIDE_IN)),)
    second: tuple[Box, ...] = (((0, OUT), (low, high)),)
    one, two = (width, WIDE_IN), (OUT, width)
    pieces = (
        GradPiece("w1", (high - low) * WIDE_IN, one, first, one, first),
        GradPiece("w2", (high - low) * OUT, two, second, two, second),
    )
    return GradBucket(10 + peer, (peer, 2), FLOAT, pieces)


STAGE0_FORWARD = Segment(
    "stage0.forward",
    inputs(w1=(PARAM, 0), x=(DATA, 2)),
    [
        row(4, "aten.t.default", v(0)),
        row(5, "aten.mm.default", v(2), v(4)),
        row(6, "aten.tanh.default", v(5)),
    ],
    kept(6),
)
STAGE0_BACKWARD = Segment(
    "stage0.backward",
    inputs(x=(DATA, 2), hidden=(MICRO, 6), slope=(MICRO, 23)),
    [
        row(24, "aten.tanh_backward.default", v(23), v(6)),
        row(25, "aten.t.default", v(24)),
        row(26, "aten.mm.default", v(25), v(2)),
    ],
    [grad("w1", 26)],
)
STAGE1_FORWARD = Segment(
    "stage1.forward",
    inputs(w2=(PARAM, 1), target=(DATA, 3), hidden=(MICRO, 6)),
    [
        row(7, "aten.t.default", v(1)),
        row(8, "aten.mm.default", v(6), v(7)),
        row(10, "aten.sub.Tensor", v(8), v(3)),
        row(11, "aten.mul.Tensor", v(10), v(10)),
        row(12, "aten.sum.default", v(11)),
        row(13, "aten.mul.Tensor", v(12), 1 / COUNT),
    ],
    [*kept(10), SegmentOutput(OutputKind.LOSS, v(13))],
)
STAGE1_BACKWARD = Segment(
    "stage1.backward",
    inputs(w2=(PARAM, 1), hidden=(MICRO, 6), difference=(MICRO, 10)),
    [
        row(20, "aten.mul.Tensor", v(10), 2 / COUNT),
        row(21, "aten.t.default", v(20)),
        row(22, "aten.mm.default", v(21), v(6)),
        row(23, "aten.mm.default", v(20), v(1)),
    ],
    [grad("w2", 22), *kept(23)],
)
ROWS = [(0, 2), (2, 5)]
"""Micro-batches of the pipeline."""


def pipeline(rows_equal: bool = False) -> Program:
    """Stage 0 on ranks 0 and 1 (hidden units 3:1), stage 1 on rank 2; two micro-batches, 1F1B.

    rows_equal: micro-batches of rows 0-2 and 2-4, so that only their tags tell them apart.
    """
    rows = [(0, 2), (2, 4)] if rows_equal else ROWS
    ranks = [_stage0(rank, rows) for rank in (0, 1)] + [_stage1(rows)]
    shared = [
        ClassProgram("stage0", [STAGE0_FORWARD, STAGE0_BACKWARD]),
        ClassProgram("stage1", [STAGE1_FORWARD, STAGE1_BACKWARD]),
    ]
    return program(shared, ranks, [(0,), (1,), (2,), (0, 1, 2)])


def _stage0(rank: int, rows: list[tuple[int, int]]) -> RankProgram:
    size = HIDDEN_OF[rank][1] - HIDDEN_OF[rank][0]
    sends = [send_step(0, (high - low, size), 2) for low, high in rows]
    recvs = [recv_step(1, (high - low, size), 2) for low, high in rows]
    instructions = [
        *(i for mb in (0, 1) for i in (Instruction(Op.FORWARD, 0, mb), transfer(Op.SEND, 6, mb, mb))),
        *(i for mb in (0, 1) for i in (transfer(Op.RECV, 23, 2 + mb, mb), Instruction(Op.BACKWARD, 1, mb))),
        *ENDING,
    ]
    return rank_program(
        rank,
        "stage0",
        rows,
        transfers=[*sends, *recvs],
        shards=[shard("w1", (HIDDEN, WIDE_IN), (HIDDEN_OF[rank], (0, WIDE_IN)))],
        grad_buckets=[alone(rank, "w1", (size, WIDE_IN))],
        instructions=instructions,
    )


def _stage1(rows: list[tuple[int, int]]) -> RankProgram:
    shapes = [(high - low, HIDDEN) for low, high in rows]
    boxes = [{rank: ((0, rows_), HIDDEN_OF[rank]) for rank in (0, 1)} for rows_, _ in shapes]
    pieces = [tuple(Piece(rank, (box,)) for rank, box in mine.items()) for mine in boxes]
    ends = (0, 1, 2)
    recvs = [
        CommStep(0, CommKind.SEND_RECV, ends, dst_view=shape, dst_shape=shape, recvs=piece)
        for shape, piece in zip(shapes, pieces, strict=True)
    ]
    sends = [
        CommStep(1, CommKind.SEND_RECV, ends, src_view=shape, sends=piece)
        for shape, piece in zip(shapes, pieces, strict=True)
    ]
    each = [
        [
            transfer(Op.RECV, 6, mb, mb),
            Instruction(Op.FORWARD, 0, mb),
            Instruction(Op.BACKWARD, 1, mb),
            transfer(Op.SEND, 23, 2 + mb, mb),
        ]
        for mb in (0, 1)
    ]
    return rank_program(
        2,
        "stage1",
        rows,
        transfers=[*recvs, *sends],
        shards=[shard("w2", (OUT, HIDDEN), ((0, OUT), (0, HIDDEN)))],
        grad_buckets=[alone(2, "w2", (OUT, HIDDEN))],
        instructions=[*each[0], *each[1], *ENDING],
    )


def transfer(op: Op, value: int, slot: int, mb: int) -> Instruction:
    """Forward transfers have tags 0, 1; backward ones 10, 11."""
    return Instruction(op, mb=mb, value=value, slot=slot, tag=mb if value == 6 else 10 + mb)


def send_step(number: int, shape: tuple[int, int], peer: int) -> CommStep:
    """All of a local value goes to `peer`."""
    box = tuple((0, size) for size in shape)
    return CommStep(number, CommKind.SEND_RECV, (0, 1, 2), src_view=shape, sends=(Piece(peer, (box,)),))


def recv_step(number: int, shape: tuple[int, int], peer: int) -> CommStep:
    """All of a local value comes from `peer`."""
    pieces = (Piece(peer, (tuple((0, size) for size in shape),)),)
    return CommStep(number, CommKind.SEND_RECV, (0, 1, 2), dst_view=shape, dst_shape=shape, recvs=pieces)


def alone(rank: int, name: str, shape: tuple[int, int]) -> GradBucket:
    """A gradient that only this rank has."""
    boxes = (tuple((0, size) for size in shape),)
    piece = GradPiece(name, shape[0] * shape[1], shape, boxes, shape, boxes)
    return GradBucket(20 + rank, (rank,), FLOAT, (piece,))
