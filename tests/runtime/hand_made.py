"""A program written by hand for three ranks: a stage split 4:2 over ranks 0 and 1, a stage on rank 2.

y = ((x + shift) @ w1) @ w2 * scale, loss = mean((y - target)^2), micro-batches of 2 and 3 samples.
`shift` is on ranks 0 and 1, its gradient a sum over both; `frozen` gets no gradient; `head` is `w2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hspmd_compiler.artifact.manifest import describe
from hspmd_compiler.artifact.store import Artifact
from hspmd_compiler.artifact.write import write
from hspmd_compiler.base.comm_plan import Box, CommKind, CommStep, GradBucket, GradPiece, Piece
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.init_program import InitProgram, InitStep
from hspmd_compiler.program.program import (
    ClassProgram,
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

BATCH = 5
ROWS = [(0, 2), (2, 5)]
COLUMNS = {0: (0, 4), 1: (4, 6)}
SHAPES = {"shift": (4,), "w1": (4, 6), "w2": (6, 3), "frozen": (2,)}
ALIASES = {"head": "w2"}
FLOAT = {"dtype": {"dtype": "float64"}}


def batch(seed: int) -> dict[str, Tensor]:
    """A global batch."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(BATCH, 4, dtype=torch.float64, generator=generator),
        "target": torch.randn(BATCH, 3, dtype=torch.float64, generator=generator),
    }


def initial(seed: int) -> dict[str, Tensor]:
    """What an unsharded model starts with."""
    torch.manual_seed(seed)
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in SHAPES.items()}


def loss_of(params: dict[str, Tensor], data: dict[str, Tensor]) -> Tensor:
    """The eager model."""
    y = (data["x"] + params["shift"]) @ params["w1"] @ params["w2"] * 0.5
    return (y - data["target"]).square().mean()


def save(
    directory: Path, optimizer: OptimizerConfig, kind: str = "cpu", shapes: Mapping[str, tuple[int, ...]] = {}
) -> Path:
    """The program as an artifact on disk. shapes: what its initialisation makes instead."""
    made = program(kind)
    whole = Artifact(
        describe({"name": "hand made"}, {}, optimizer, made, {}),
        made,
        {},
        init_program({**SHAPES, **shapes}).to_json(),
        {},
        {},
    )
    write(directory, whole)
    return directory


def init_program(shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> InitProgram:
    steps = [
        InitStep("aten.randn.default", (list(shape),), FLOAT, (number,), True, (name,), (number,))
        for number, (name, shape) in enumerate(shapes.items())
    ]
    number = len(SHAPES)
    steps.append(
        InitStep("aten.full.default", ([1], 0.5), FLOAT, (number,), done=("scale",), frees=(number,))
    )
    return InitProgram({**{name: i for i, name in enumerate(SHAPES)}, "scale": number}, tuple(steps))


def program(kind: str = "cpu") -> Program:
    return Program(
        world_size=3,
        batch=BATCH,
        inputs={"x": ((BATCH, 4), "float64"), "target": ((BATCH, 3), "float64")},
        aliases=ALIASES,
        classes={made.name: made for made in (_first_stage(), _last_stage())},
        ranks=[_first_rank(0, kind), _first_rank(1, kind), _last_rank(kind)],
        groups=[(0, 1), (0, 1, 2)],
    )


def _row(out: int, op: str, *args: object) -> LocalRow:
    return LocalRow(Value(out), op, args)


def _first_stage() -> ClassProgram:
    x, shift, w1 = (
        SegmentInput(InputKind.DATA, Value(0), "x"),
        SegmentInput(InputKind.PARAM, Value(1), "shift"),
        SegmentInput(InputKind.PARAM, Value(2), "w1"),
    )
    forward = Segment(
        "forward",
        [x, shift, w1],
        [_row(3, "aten.add.Tensor", Value(0), Value(1)), _row(4, "aten.mm.default", Value(3), Value(2))],
        [SegmentOutput(OutputKind.MICRO, Value(3)), SegmentOutput(OutputKind.MICRO, Value(4))],
    )
    backward = Segment(
        "backward",
        [SegmentInput(InputKind.MICRO, Value(3)), SegmentInput(InputKind.MICRO, Value(10)), w1],
        [
            _row(11, "aten.t.default", Value(3)),
            _row(12, "aten.mm.default", Value(11), Value(10)),
            _row(13, "aten.t.default", Value(2)),
            _row(14, "aten.mm.default", Value(10), Value(13)),
            _row(15, "aten.sum.dim_IntList", Value(14), (0,)),
        ],
        [SegmentOutput(OutputKind.GRAD, Value(12), "w1"), SegmentOutput(OutputKind.GRAD, Value(15), "shift")],
    )
    return ClassProgram("first", [forward, backward])


def _last_stage() -> ClassProgram:
    w2 = SegmentInput(InputKind.PARAM, Value(2), "w2")
    scale = SegmentInput(InputKind.PARAM, Value(9), "scale")
    count = BATCH * 3
    forward = Segment(
        "forward",
        [
            SegmentInput(InputKind.MICRO, Value(4)),
            SegmentInput(InputKind.DATA, Value(0), "target"),
            w2,
            scale,
        ],
        [
            _row(5, "aten.mm.default", Value(4), Value(2)),
            _row(6, "aten.mul.Tensor", Value(5), Value(9)),
            _row(7, "aten.sub.Tensor", Value(6), Value(0)),
            _row(8, "aten.mul.Tensor", Value(7), Value(7)),
            _row(20, "aten.sum.default", Value(8)),
            _row(21, "aten.mul.Scalar", Value(20), 1 / count),
        ],
        [SegmentOutput(OutputKind.LOSS, Value(21)), SegmentOutput(OutputKind.MICRO, Value(7))],
    )
    backward = Segment(
        "backward",
        [SegmentInput(InputKind.MICRO, Value(4)), SegmentInput(InputKind.MICRO, Value(7)), w2, scale],
        [
            _row(30, "aten.mul.Scalar", Value(7), 2 / count),
            _row(31, "aten.mul.Tensor", Value(30), Value(9)),
            _row(32, "aten.t.default", Value(4)),
            _row(33, "aten.mm.default", Value(32), Value(31)),
            _row(34, "aten.t.default", Value(2)),
            _row(10, "aten.mm.default", Value(31), Value(34)),
        ],
        [SegmentOutput(OutputKind.GRAD, Value(33), "w2"), SegmentOutput(OutputKind.MICRO, Value(10))],
    )
    return ClassProgram("last", [forward, backward])


def _first_rank(rank: int, kind: str) -> RankProgram:
    low, high = COLUMNS[rank]
    width = high - low
    sends = [_transfer(mb, (rank, 2), source=width, sends=[(2, 0, width)]) for mb in range(2)]
    recvs = [_transfer(mb, (rank, 2), width, recvs=[(2, 0, width)]) for mb in range(2)]
    shift = _shard("shift", ((0, 4),), ((0, 4),), (4,), owned=rank == 0)
    w1 = _shard("w1", ((0, 4), (low, high)), ((0, 4), (0, width)), (4, width))
    return RankProgram(
        rank,
        rank,
        0,
        0,
        rank,
        "first",
        kind,
        ROWS,
        [],
        [],
        [*sends, *recvs],
        [shift, w1, *([] if rank else [_whole("frozen")])],
        [_bucket(0, (rank,), "w1", (4, width)), _bucket(1, (0, 1), "shift", (4,))],
        [
            *(step for mb in range(2) for step in (_forward(mb), _send(mb, 4, mb, _tag(rank, mb)))),
            *(step for mb in range(2) for step in (_recv(mb, 10, 2 + mb, _tag(2, mb)), _backward(mb))),
            *_END,
        ],
    )


def _last_rank(kind: str) -> RankProgram:
    parts = [(rank, low, high) for rank, (low, high) in COLUMNS.items()]
    recvs = [_transfer(mb, (0, 1, 2), 6, recvs=parts) for mb in range(2)]
    sends = [_transfer(mb, (0, 1, 2), source=6, sends=parts) for mb in range(2)]
    instructions = []
    for mb in range(2):
        instructions += [_recv(mb, 4, mb, _tag(0, mb)), _forward(mb), _backward(mb)]
        instructions += [_send(mb, 10, 2 + mb, _tag(2, mb))]
    return RankProgram(
        2,
        2,
        0,
        1,
        0,
        "last",
        kind,
        ROWS,
        [],
        [],
        [*recvs, *sends],
        [_whole("w2"), _scale()],
        [_bucket(0, (2,), "w2", (6, 3))],
        [*instructions, *_END],
    )


_END = [Instruction(Op.GRAD_SYNC), Instruction(Op.LOSS), Instruction(Op.OPTIMIZER)]


def _tag(sender: int, mb: int) -> int:
    """Both first ranks send one piece each of one transfer."""
    return mb if sender < 2 else 2 + mb


def _forward(mb: int) -> Instruction:
    return Instruction(Op.FORWARD, segment=0, mb=mb)


def _backward(mb: int) -> Instruction:
    return Instruction(Op.BACKWARD, segment=1, mb=mb)


def _send(mb: int, value: int, slot: int, tag: int) -> Instruction:
    return Instruction(Op.SEND, value=value, slot=slot, mb=mb, tag=tag)


def _recv(mb: int, value: int, slot: int, tag: int) -> Instruction:
    return Instruction(Op.RECV, value=value, slot=slot, mb=mb, tag=tag)


def _transfer(
    mb: int,
    group: tuple[int, ...],
    target: int | None = None,
    *,
    source: int | None = None,
    sends: list[tuple[int, int, int]] | None = None,
    recvs: list[tuple[int, int, int]] | None = None,
) -> CommStep:
    """Columns to and from peers, as (peer, low, high), of a value of `source` or `target` columns."""
    low, high = ROWS[mb]
    rows = high - low

    def pieces(parts: list[tuple[int, int, int]] | None) -> tuple[Piece, ...]:
        return tuple(Piece(peer, (((0, rows), (first, last)),)) for peer, first, last in parts or ())

    view = None if target is None else (rows, target)
    return CommStep(
        100 + mb,
        CommKind.SEND_RECV,
        group,
        src_view=None if source is None else (rows, source),
        dst_view=view,
        dst_shape=view,
        sends=pieces(sends),
        recvs=pieces(recvs),
        dtype="float64",
    )


def _shard(name: str, whole: Box, local: Box, shape: tuple[int, ...], owned: bool = True) -> Shard:
    boxes = ((whole, local),)
    size = SHAPES[name]
    return Shard(name, "float64", shape, shape, size, size, boxes, boxes if owned else (), True, False)


def _whole(name: str) -> Shard:
    box = tuple((0, size) for size in SHAPES[name])
    return _shard(name, box, box, SHAPES[name])


def _scale() -> Shard:
    boxes = ((((0, 1),), ((0, 1),)),)
    return Shard("scale", "float64", (1,), (1,), (1,), (1,), boxes, boxes, False, True, persistent=False)


def _bucket(number: int, group: tuple[int, ...], name: str, shape: tuple[int, ...]) -> GradBucket:
    box: Box = tuple((0, size) for size in shape)
    length = 1
    for size in shape:
        length *= size
    return GradBucket(number, group, "float64", (GradPiece(name, length, shape, (box,), shape, (box,)),))


def own_rows(batch: Mapping[str, Tensor], rows: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    """A rank's samples of a global batch, one micro-batch after the other."""
    return {key: torch.cat([tensor[low:high] for low, high in rows]) for key, tensor in batch.items()}
