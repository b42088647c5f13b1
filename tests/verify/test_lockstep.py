from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from hspmd_compiler.base.comm_plan import Combine, CommKind, CommStep, GradPiece, Piece
from hspmd_compiler.base.number_ranges import number_ranges
from hspmd_compiler.errors import VerifyError
from hspmd_compiler.program.program import ClassProgram, Instruction, LocalRow, Op, Program, Segment, Value
from hspmd_compiler.verify.shape.fit import check_fit

from .hand_made import pipeline, program, rank_program, recv_step, send_step, tensor_and_data_parallel


def test_what_fits_is_counted() -> None:
    report = check_fit(tensor_and_data_parallel())
    assert report.counts() == {"all_reduce": 3, "grad_reduce": 2, "loss_reduce": 1}
    assert report.moved()["all_reduce"] == 4 * 2 * (2 * 2 + 2 * 1 + 2)
    assert len(report.peak) == 3 and min(report.peak) > 0
    assert check_fit(pipeline()).counts() == {"loss_reduce": 1, "send_recv": 8}


def test_operators_run_once_for_ranks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    from hspmd_compiler.verify.shape import fit

    books: list[fit.ShapeBook] = []

    class Book(fit.ShapeBook):
        def __init__(self) -> None:
            super().__init__()
            books.append(self)

    monkeypatch.setattr(fit, "ShapeBook", Book)
    many = 64
    step = CommStep(0, CommKind.ALL_REDUCE, tuple(range(many)), Combine.SUM)
    base = tensor_and_data_parallel()
    first = base.ranks[0]
    lone = [replace(piece, dst_boxes=piece.dst_boxes) for piece in first.grad_buckets[0].pieces]
    ranks = [
        replace(
            first,
            rank=rank,
            comms=[step],
            grad_buckets=[replace(first.grad_buckets[0], group=(rank,), pieces=tuple(lone))],
        )
        for rank in range(many)
    ]
    report = check_fit(replace(base, world_size=many, ranks=ranks))
    assert books[0].computed == 4  # forward and backward, two micro-batch sizes
    assert report.counts()["all_reduce"] == 2


def mutate(base: Program, rank: int, index: int, **fields: int) -> Program:
    """`base` with one instruction of one rank changed."""
    instructions = list(base.ranks[rank].instructions)
    instructions[index] = replace(instructions[index], **fields)
    return with_rank(base, rank, instructions=instructions)


def with_rank(base: Program, rank: int, **fields: object) -> Program:
    ranks = list(base.ranks)
    ranks[rank] = replace(ranks[rank], **fields)  # type: ignore[arg-type]
    return replace(base, ranks=ranks)


def instructions_of(base: Program, rank: int, op: Op) -> list[int]:
    return [index for index, item in enumerate(base.ranks[rank].instructions) if item.op is op]


def refused(base: Program) -> str:
    with pytest.raises(VerifyError) as caught:
        check_fit(base)
    return str(caught.value)


def test_a_dropped_send_names_the_receiver_and_its_peer() -> None:
    base = pipeline()
    at = instructions_of(base, 1, Op.SEND)[0]
    kept = [item for index, item in enumerate(base.ranks[1].instructions) if index != at]
    text = refused(with_rank(base, 1, instructions=kept))
    assert "deadlock: 3 of 3 ranks" in text
    assert "#0 RECV mb=0 value=6 tag=0: receive 0 from [0, 1] tag 0, waits for rank 1" in text


def test_a_dropped_receive_leaves_a_message() -> None:
    base = pipeline()
    at = instructions_of(base, 0, Op.RECV)[1]
    kept = [item for index, item in enumerate(base.ranks[0].instructions) if index not in (at, at + 1)]
    text = refused(with_rank(base, 0, instructions=kept))
    assert "1 messages are sent and never received" in text
    assert "from rank 2 to rank 0" in text


def test_swapped_tags_of_equal_micro_batches_are_found_by_their_rows() -> None:
    base = pipeline(rows_equal=True)
    first, second = instructions_of(base, 0, Op.SEND)
    text = refused(mutate(mutate(base, 0, first, tag=1), 0, second, tag=0))
    assert "rows (2, 4) is sent, (0, 2) is expected" in text
    assert "rank 0" in text and "rank 2" in text


def test_a_wrong_length_shows_both_ranks() -> None:
    base = pipeline()
    transfers = list(base.ranks[0].transfers)
    transfers[0] = replace(transfers[0], sends=(Piece(2, (((0, 2), (0, 2)),)),))
    text = refused(with_rank(base, 0, transfers=transfers))
    assert "boxes of elements (4,) is sent, (6,) is expected" in text


def test_a_cycle_of_receives_is_a_deadlock() -> None:
    shape = (2, 2)
    ranks = [
        rank_program(
            rank,
            "none",
            [(0, 5)],
            transfers=[recv_step(0, shape, (rank - 1) % 3), send_step(0, shape, (rank + 1) % 3)],
            instructions=[Instruction(Op.RECV, mb=0, value=1, slot=0, tag=rank)],
        )
        for rank in range(3)
    ]
    text = refused(program([ClassProgram("none", [])], ranks, []))
    assert "deadlock: 3 of 3 ranks wait for each other" in text
    for rank in range(3):
        assert f"receive 0 from [{(rank - 1) % 3}] tag {rank}, waits for rank {(rank - 1) % 3}" in text


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda step: replace(step, id=7), "step 0 meets 7"),
        (lambda step: replace(step, combine=Combine.MAX), "combination sum meets max"),
        (lambda step: replace(step, kind=CommKind.ALL_GATHER, src_view=(2, 2)), "request"),
    ],
)
def test_members_that_ask_for_different_things(change: Callable[[CommStep], CommStep], what: str) -> None:
    base = tensor_and_data_parallel()
    step = change(base.ranks[1].comms[0])
    if step.kind is CommKind.ALL_GATHER:
        step = replace(step, dst_view=(2, 2), dst_shape=(2, 2))
        base = with_rank(base, 1, instructions=base.ranks[1].instructions[:1], grad_buckets=[])
    text = refused(with_rank(base, 1, comms=[step]))
    assert what in text
    assert "rank 0" in text and "rank 1" in text and "FORWARD forward mb=0" in text


def test_a_collective_of_others_is_refused() -> None:
    base = tensor_and_data_parallel()
    step = replace(base.ranks[2].comms[0], group=(0, 1))
    assert "rank 2 joins a collective of other ranks" in refused(with_rank(base, 2, comms=[step]))


def test_unequal_groups_of_one_step_never_meet() -> None:
    base = tensor_and_data_parallel()
    step = replace(base.ranks[1].comms[0], group=(0, 1, 2))
    text = refused(with_rank(base, 1, comms=[step]))
    assert "deadlock" in text and "all_reduce 0 sum [0, 1, 2]" in text


def test_a_gradient_in_no_bucket_is_lost() -> None:
    base = pipeline()
    text = refused(with_rank(base, 2, grad_buckets=[]))
    assert "w2" in text and "in no bucket" in text


def test_an_element_without_a_source_is_found() -> None:
    base = tensor_and_data_parallel()
    bucket = base.ranks[2].grad_buckets[0]
    text = refused(with_rank(base, 2, grad_buckets=[bucket]))
    assert "9 of 12 elements are received" in text


def test_overlapping_gradient_boxes_are_found() -> None:
    base = tensor_and_data_parallel()
    one, two = base.ranks[2].grad_buckets
    wrong = [replace(piece, dst_boxes=piece.src_boxes) for piece in two.pieces]
    wrong[0] = GradPiece("w1", 3, (4, 3), (((3, 4), (0, 3)),), (4, 3), (((2, 3), (0, 3)),))
    text = refused(with_rank(base, 2, grad_buckets=[one, replace(two, pieces=tuple(wrong))]))
    assert "overlap" in text


def test_an_operator_that_can_not_be_computed_names_row_and_rank() -> None:
    base = tensor_and_data_parallel()
    forward = base.classes["mlp"].segments[0]
    rows = [LocalRow(Value(4), "aten.view.default", (Value(0), (5, 5))), *forward.rows[1:]]
    segments = [Segment("forward", forward.inputs, rows, forward.outputs), base.classes["mlp"].segments[1]]
    text = refused(replace(base, classes={"mlp": ClassProgram("mlp", segments)}))
    assert "aten.view.default can't be computed" in text
    assert "rank 0 #0 FORWARD forward mb=0" in text and "float32[3, 3]" in text


def test_a_type_that_is_not_announced_is_refused() -> None:
    base = pipeline()
    transfers = [replace(step, dtype="bfloat16") for step in base.ranks[0].transfers]
    assert "where bfloat16 is announced" in refused(with_rank(base, 0, transfers=transfers))


def test_a_contribution_that_nobody_makes_is_found() -> None:
    base = tensor_and_data_parallel()
    forward, backward = base.classes["mlp"].segments
    lossy = replace(backward, outputs=[item for item in backward.outputs if item.name != "w1"])
    text = refused(replace(base, classes={"mlp": ClassProgram("mlp", [forward, lossy])}))
    assert "w1" in text and "made by no segment" in text


def test_peak_memory_of_a_chain_is_exact() -> None:
    """Weight and input stay, a product is made, its sum is the loss."""
    base = pipeline()
    shared = base.classes["stage0"]
    lone = replace(
        base.ranks[0],
        transfers=[],
        grad_buckets=[],
        rows=[(0, 2)],
        instructions=[Instruction(Op.FORWARD, 0, 0)],
    )
    report = check_fit(replace(base, world_size=1, ranks=[lone], classes={"stage0": shared}))
    weight, inputs, product = 3 * 3 * 4, 2 * (3 + 2) * 4, 2 * 3 * 4
    loss = 8
    assert report.peak == (weight + inputs + 2 * product,)
    assert 2 * product > loss


def test_a_report_reads_well() -> None:
    report = check_fit(tensor_and_data_parallel())
    console = Console(width=60, file=io.StringIO())
    console.print(report.rendered())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3 ranks, 6 exchanges matched" in text and "all_reduce" in text and "0-1" not in text
    assert json.loads(json.dumps(report.to_json()))["matched"]["grad_reduce"] == 2
    assert number_ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
