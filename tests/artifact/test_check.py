"""A program that names something that is not there is refused, with every such place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hspmd_compiler.errors import ArtifactError
from hspmd_compiler.program.check import check
from hspmd_compiler.program.program import (
    Hole,
    InputKind,
    Instruction,
    LocalRow,
    Op,
    OutputKind,
    Program,
    SegmentInput,
    SegmentOutput,
    Value,
)
from tests.artifact import sample


def test_the_sample_is_whole() -> None:
    check(sample.program())


def append_row(op: str, *args: object) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        program.classes["p1-s0-tp2"].segments[0].rows.append(LocalRow(Value(99), op, args))

    return change


def append_instruction(step: Instruction) -> Callable[[Program], None]:
    return lambda program: program.ranks[2].instructions.append(step)


def in_order(*ops: Op) -> Callable[[Program], None]:
    """The last instructions of a rank are these instead."""

    def change(program: Program) -> None:
        program.ranks[2].instructions[-3:] = [Instruction(op) for op in ops]

    return change


def replace_comm(**fields: object) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        own = program.ranks[2]
        own.comms[1] = replace(own.comms[1], **fields)  # type: ignore[arg-type]

    return change


def replace_shard(**fields: object) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        own = program.ranks[2]
        own.shards[0] = replace(own.shards[0], **fields)  # type: ignore[arg-type]

    return change


def drop(what: str) -> Callable[[Program], None]:
    return lambda program: getattr(program.ranks[2], what).clear()


def add_input(kind: InputKind, name: str) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        program.classes["p1-s0-tp2"].segments[0].inputs.append(SegmentInput(kind, Value(98), name))

    return change


def add_output(kind: OutputKind, value: int, name: str = "") -> Callable[[Program], None]:
    def change(program: Program) -> None:
        program.classes["p1-s0-tp2"].segments[0].outputs.append(SegmentOutput(kind, Value(value), name))

    return change


def bad_class(program: Program) -> None:
    program.ranks[2].class_name = "gone"


def bad_rows(program: Program) -> None:
    program.ranks[2].rows = [(4, 7)]


def bad_group(program: Program) -> None:
    program.groups.append((3, 2))


def bucket_of_another_length(program: Program) -> None:
    own = program.ranks[2]
    bucket = own.grad_buckets[0]
    own.grad_buckets[0] = replace(bucket, pieces=(replace(bucket.pieces[0], length=15),))


CASES: list[tuple[str, Callable[[Program], None], str]] = [
    ("unknown namespace", append_row("os.system", "true"), "operator 'os.system' is not one"),
    (
        "unknown aten",
        append_row("aten.nothing.default", Value(0)),
        "operator 'aten.nothing.default' is not one",
    ),
    ("unknown overload", append_row("aten.mm.none", Value(0)), "operator 'aten.mm.none' is not one"),
    ("unknown kernel", append_row("hspmd.nothing", Value(0)), "operator 'hspmd.nothing' is not one"),
    (
        "reads files",
        append_row("aten.from_file.default", "f"),
        "operator 'aten.from_file.default' is not one",
    ),
    *(
        (f"memory by {name}", append_row(f"aten.{name}", Value(0)), f"operator 'aten.{name}' is not one")
        for name in (
            "as_strided.default",
            "as_strided_copy.default",
            "_reshape_alias.default",
            "set.source_Storage",
            "resize.default",
            "empty.memory_format",
            "empty_strided.default",
            "new_empty_strided.default",
            "randn.default",
            "_nested_view_from_buffer.default",
        )
    ),
    ("in place", append_row("aten.add_.Tensor", Value(0), 1), "operator 'aten.add_.Tensor' is not one"),
    ("attribute", append_row("aten.mm.default.__class__"), "is not one"),
    ("value of later", append_row("aten.neg.default", Value(100)), "uses v100, which is not computed"),
    ("hole without literal", append_row("aten.mul.Tensor", Value(0), Hole(2)), "no literal 2"),
    ("comm without step", append_row("comm", Value(0), 2), "no comm 2"),
    ("comm of wrong form", append_row("comm", Value(0), Hole(0)), "comm takes one value and one slot"),
    ("comm of nothing", append_row("comm"), "comm takes one value and one slot"),
    ("unknown parameter", add_input(InputKind.PARAM, "w9"), "no shard of w9"),
    ("unknown data", add_input(InputKind.DATA, "y"), "no batch entry 'y'"),
    ("name too many", add_input(InputKind.MICRO, "y"), "a name goes with data and documents and param"),
    ("output of nothing", add_output(OutputKind.MICRO, 97), "output v97 is never computed"),
    ("gradient of nothing", add_output(OutputKind.GRAD, 2, "w9"), "no shard of w9"),
    ("no segment", append_instruction(Instruction(Op.FORWARD, segment=1, mb=0)), "no segment 1"),
    ("no micro-batch", append_instruction(Instruction(Op.BACKWARD, segment=0, mb=1)), "no micro-batch 1"),
    (
        "no transfer",
        append_instruction(Instruction(Op.SEND, value=2, slot=0, mb=0, tag=1)),
        "no slot 0 in transfers",
    ),
    ("no tag", append_instruction(Instruction(Op.RECV, value=2, slot=0, mb=0)), "no tag"),
    ("no reduce", append_instruction(Instruction(Op.STEP_REDUCE, value=4, slot=2)), "no slot 2 in comms"),
    (
        "vote before the gradients",
        in_order(Op.LOSS, Op.GRAD_SYNC, Op.OPTIMIZER),
        "instruction 4 GRAD_SYNC stands behind LOSS (instruction 3)",
    ),
    (
        "scattered behind the vote",
        in_order(Op.GRAD_SYNC, Op.LOSS, Op.GRAD_SCATTER, Op.OPTIMIZER),
        "instruction 5 GRAD_SCATTER stands behind LOSS (instruction 4)",
    ),
    (
        "gathered before the update",
        in_order(Op.GRAD_SYNC, Op.LOSS, Op.PARAM_GATHER, Op.OPTIMIZER),
        "instruction 5 PARAM_GATHER stands behind LOSS",
    ),
    ("gathered behind the update", in_order(Op.GRAD_SYNC, Op.LOSS, Op.OPTIMIZER, Op.PARAM_GATHER), ""),
    ("update before the vote", in_order(Op.GRAD_SYNC, Op.OPTIMIZER, Op.LOSS), "1 LOSS, of which one stands"),
    ("two votes", in_order(Op.LOSS, Op.GRAD_SYNC, Op.LOSS, Op.OPTIMIZER), "2 LOSS, of which one stands"),
    ("no vote", in_order(Op.GRAD_SYNC, Op.OPTIMIZER), "0 LOSS, of which one stands before OPTIMIZER"),
    ("two updates", in_order(Op.GRAD_SYNC, Op.LOSS, Op.OPTIMIZER, Op.OPTIMIZER), "more than one OPTIMIZER"),
    ("no literals", drop("literals"), ""),
    ("no shards", drop("shards"), "no shard of w1"),
    ("class", bad_class, "class gone is not in the artifact"),
    ("rows", bad_rows, "rows [4, 7) are not in a batch of 6"),
    ("group order", bad_group, "[3, 2]: not ascending ranks below 4"),
    (
        "group unknown",
        replace_comm(group=(1, 2, 3)),
        "the group [1, 2, 3] is not one of the artifact's groups",
    ),
    ("group of others", replace_comm(group=(1, 3)), "rank 2 is not in its group [1, 3]"),
    ("box outside", replace_comm(src_view=(2, 3)), "box [0:2, 0:4] is not inside [2, 3]"),
    ("no source", replace_comm(src_view=None), "sends: a piece of a tensor that this rank does not have"),
    ("result size", replace_comm(dst_shape=(2, 9)), "the result [2, 9] can't be viewed as [2, 8]"),
    ("result half known", replace_comm(dst_shape=None), "a result needs both its shape and its view"),
    ("shard view", replace_shard(view=(2, 4)), "[4, 4] can't be viewed as [2, 4]"),
    ("shard box", replace_shard(boxes=((((0, 4), (0, 4)), ((0, 4), (0, 2))),)), "differ in size"),
    ("bucket length", bucket_of_another_length, "boxes do not hold 15 elements"),
]


@pytest.mark.parametrize(("change", "text"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_not_there_is_named(change: Callable[[Program], None], text: str) -> None:
    program = sample.program()
    change(program)
    if not text:
        check(program)
        return
    with pytest.raises(ArtifactError) as caught:
        check(program)
    assert text in str(caught.value)


def test_all_places_are_told_and_counted() -> None:
    program = sample.program()
    for own in program.ranks:
        own.instructions[:0] = [Instruction(Op.FORWARD, segment=9, mb=9)] * 5
    with pytest.raises(ArtifactError) as caught:
        check(program)
    assert "(40 places)" in caught.value.what
    assert caught.value.details[-1] == ("...", "20 more")
