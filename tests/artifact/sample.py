"""A small program with every kind of thing an artifact holds: two stages of one rank, beside one of TP 2."""

from __future__ import annotations

import math

from hspmd_compiler.artifact.manifest import describe
from hspmd_compiler.artifact.store import Artifact
from hspmd_compiler.base.comm_plan import Combine, CommKind, CommStep, GradBucket, GradPiece, Piece
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.program import (
    ClassProgram,
    DType,
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

STRATEGY = {
    "pipelines": [{"stages": [{"devices": [4]}, {"devices": [5]}]}, {"stages": [{"devices": [7, 9]}]}]
}
GRAPH: dict[str, object] = {"rows": [["x", "placeholder"], ["y", "aten.mm.default"]]}
MODEL = {"name": "mlp", "arguments": {"hidden": 8}}
MICRO_BATCHES = {0: [(0, 2), (2, 4)], 1: [(4, 6)]}


def artifact() -> Artifact:
    """The sample as an artifact that is not written yet."""
    made = program()
    return Artifact(
        manifest=describe(MODEL, GRAPH, OptimizerConfig(max_grad_norm=math.inf), made, STRATEGY),
        program=made,
        strategy=STRATEGY,
        init=[["randn", "w1", [8, 4]], ["zeros", "w2", [4, 8]]],
        graph=GRAPH,
        layouts={"0": ["x"], "1": ["y"]},
    )


def program() -> Program:
    """Ranks 0 and 1 are the stages of pipeline 0, ranks 2 and 3 share the only stage of pipeline 1."""
    return Program(
        world_size=4,
        batch=6,
        inputs={"x": ((6, 4), "float32")},
        aliases={"tied": "w1"},
        classes={made.name: made for made in (first_stage(), last_stage(), whole_model())},
        ranks=[stage_rank(0), stage_rank(1), whole_rank(2), whole_rank(3)],
        groups=[(0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (0, 1, 2, 3)],
    )


def first_stage() -> ClassProgram:
    forward = Segment(
        "forward 0",
        [SegmentInput(InputKind.DATA, Value(0), "x"), SegmentInput(InputKind.PARAM, Value(1), "w1")],
        [LocalRow(Value(2), "aten.mm.default", (Value(0), Value(1)), logical=2)],
        [SegmentOutput(OutputKind.MICRO, Value(2)), SegmentOutput(OutputKind.MICRO, Value(0))],
    )
    backward = Segment(
        "backward 0",
        [SegmentInput(InputKind.MICRO, Value(0)), SegmentInput(InputKind.MICRO, Value(6))],
        [
            LocalRow(Value(20), "aten.t.default", (Value(0),)),
            LocalRow(Value(7), "aten.mm.default", (Value(20), Value(6)), logical=7),
        ],
        [SegmentOutput(OutputKind.GRAD, Value(7), "w1")],
    )
    return ClassProgram("p0-s0", [forward, backward])


def last_stage() -> ClassProgram:
    forward = Segment(
        "forward 1",
        [SegmentInput(InputKind.MICRO, Value(2)), SegmentInput(InputKind.PARAM, Value(3), "w2")],
        [
            LocalRow(Value(4), "aten.mm.default", (Value(2), Value(3)), logical=4),
            LocalRow(Value(5), "aten.sum.default", (Value(4),), {"dtype": DType("float64")}, 5),
        ],
        [SegmentOutput(OutputKind.LOSS, Value(5)), SegmentOutput(OutputKind.MICRO, Value(2))],
    )
    backward = Segment(
        "backward 1",
        [SegmentInput(InputKind.MICRO, Value(2)), SegmentInput(InputKind.PARAM, Value(3), "w2")],
        [
            LocalRow(Value(21), "aten.full.default", ((Hole(0), 8), -math.inf)),
            LocalRow(Value(6), "aten.mm.default", (Value(21), Value(3)), logical=6),
            LocalRow(Value(22), "aten.split_with_sizes.default", (Value(2), (1, Hole(1)), 0)),
            LocalRow(Value(8), "getitem", (Value(22), 0), logical=8),
        ],
        [SegmentOutput(OutputKind.MICRO, Value(6)), SegmentOutput(OutputKind.GRAD, Value(8), "w2")],
    )
    return ClassProgram("p0-s1", [forward, backward])


def whole_model() -> ClassProgram:
    forward = Segment(
        "forward",
        [SegmentInput(InputKind.DATA, Value(0), "x"), SegmentInput(InputKind.PARAM, Value(1), "w1")],
        [
            LocalRow(Value(2), "aten.mm.default", (Value(0), Value(1)), logical=2),
            LocalRow(Value(20), "comm", (Value(2), 0)),
            LocalRow(Value(4), "comm", (Value(20), 1), logical=4),
        ],
        [SegmentOutput(OutputKind.STEP, Value(4)), SegmentOutput(OutputKind.GRAD, Value(2), "w1")],
    )
    return ClassProgram("p1-s0-tp2", [forward])


def stage_rank(stage: int) -> RankProgram:
    transfers = [activation(0, 1, stage), activation(1, 0, stage, step=6)]
    name = ("w1", "w2")[stage]
    return RankProgram(
        rank=stage,
        device=(4, 5)[stage],
        pipeline=0,
        stage=stage,
        coordinate=0,
        class_name=f"p0-s{stage}",
        device_kind="cpu",
        rows=MICRO_BATCHES[0],
        literals=[2, 1] if stage else [],
        comms=[],
        transfers=transfers,
        shards=[whole_shard(name)],
        grad_buckets=[bucket(stage, peer, stage, name) for peer in (2, 3)],
        instructions=stage_instructions(stage),
    )


def stage_instructions(stage: int) -> list[Instruction]:
    steps: list[Instruction] = []
    for mb in range(2):
        if stage == 0:
            steps += [
                Instruction(Op.FORWARD, segment=0, mb=mb),
                Instruction(Op.SEND, value=2, slot=0, mb=mb, tag=mb),
            ]
        else:
            steps += [
                Instruction(Op.RECV, value=2, slot=0, mb=mb, tag=mb),
                Instruction(Op.FORWARD, segment=0, mb=mb),
                Instruction(Op.BACKWARD, segment=1, mb=mb),
                Instruction(Op.SEND, value=6, slot=1, mb=mb, tag=2 + mb),
            ]
    if stage == 0:
        for mb in range(2):
            steps += [
                Instruction(Op.RECV, value=6, slot=1, mb=mb, tag=2 + mb),
                Instruction(Op.BACKWARD, segment=1, mb=mb),
            ]
    return [*steps, Instruction(Op.GRAD_SYNC), Instruction(Op.LOSS), Instruction(Op.OPTIMIZER)]


def whole_rank(rank: int) -> RankProgram:
    coordinate = rank - 2
    return RankProgram(
        rank=rank,
        device=(7, 9)[coordinate],
        pipeline=1,
        stage=0,
        coordinate=coordinate,
        class_name="p1-s0-tp2",
        device_kind="cpu",
        rows=MICRO_BATCHES[1],
        literals=[(coordinate, 4), "trunc"],
        comms=[
            CommStep(0, CommKind.ALL_REDUCE, (2, 3), Combine.SUM, note="row-parallel mm"),
            gather(coordinate),
        ],
        transfers=[],
        shards=[half_shard("w1", coordinate), half_shard("w2", coordinate)],
        grad_buckets=[bucket(rank, peer, peer, ("w1", "w2")[peer]) for peer in (0, 1)],
        instructions=[
            Instruction(Op.STEP_COMPUTE, segment=0, mb=0),
            Instruction(Op.STEP_REDUCE, value=4, slot=0),
            Instruction(Op.FORWARD, segment=0, mb=0),
            Instruction(Op.GRAD_SYNC),
            Instruction(Op.LOSS),
            Instruction(Op.OPTIMIZER),
        ],
    )


def gather(coordinate: int) -> CommStep:
    """Both halves of 8 columns of 2 rows, to both ranks."""
    own = ((0, 2), (0, 4))
    sends = tuple(Piece(peer, (own,)) for peer in (2, 3))
    recvs = tuple(Piece(peer, (((0, 2), (4 * (peer - 2), 4 * (peer - 1))),)) for peer in (2, 3))
    return CommStep(
        1,
        CommKind.ALL_GATHER,
        (2, 3),
        src_view=(2, 4),
        dst_view=(2, 8),
        dst_shape=(2, 8),
        sends=sends,
        recvs=recvs,
    )


def activation(source: int, target: int, rank: int, step: int = 5) -> CommStep:
    """The whole of a (2, 4) tensor from one rank to another, as `rank` sees it."""
    box = ((0, 2), (0, 4))
    if rank == source:
        return CommStep(step, CommKind.SEND_RECV, (0, 1), src_view=(2, 4), sends=(Piece(target, (box,)),))
    return CommStep(
        step, CommKind.SEND_RECV, (0, 1), dst_view=(2, 4), dst_shape=(2, 4), recvs=(Piece(source, (box,)),)
    )


def whole_shard(name: str) -> Shard:
    box = ((0, 8), (0, 4))
    return Shard(name, "float32", (8, 4), (8, 4), (8, 4), (8, 4), ((box, box),), (), True, False)


def half_shard(name: str, coordinate: int) -> Shard:
    """Four of eight rows; this side owns them all."""
    pair = (((4 * coordinate, 4 * coordinate + 4), (0, 4)), ((0, 4), (0, 4)))
    return Shard(name, "float32", (4, 4), (4, 4), (8, 4), (8, 4), (pair,), (pair,), True, False)


def bucket(rank: int, peer: int, stage: int, name: str) -> GradBucket:
    """Half of a gradient, reduced between the rank that has it all and one that has that half."""
    whole_side, half_side = min(rank, peer), max(rank, peer)
    low = 4 * (half_side - 2)
    box = ((low, low + 4), (0, 4)) if rank == whole_side else ((0, 4), (0, 4))
    view = (8, 4) if rank == whole_side else (4, 4)
    piece = GradPiece(name, 16, view, (box,), view, (box,))
    return GradBucket(10 + 2 * stage + half_side, (whole_side, half_side), "float32", (piece,))
