"""ZeRO-3 brings a layer's parameters by one gather, started while the layer before is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hspmd_compiler.base.comm_plan import CommKind
from hspmd_compiler.errors import VerifyError
from hspmd_compiler.program.check import check
from hspmd_compiler.program.program import COMM, COMM_START, LocalRow, Program, Segment
from hspmd_compiler.verify.shape.fit import check_fit

from .test_zero_training import made

LAYERS = 2


def gathers(program: Program, rank: int, segment: str) -> list[tuple[str, int]]:
    """Rows of a segment that start gathers of parameters, or wait for them, with their slots."""
    own = program.ranks[rank]
    (found,) = (each for each in program.classes[own.class_name].segments if each.name == segment)
    calls = [(row.op, int(str(row.args[1]))) for row in found.rows if row.op in (COMM, COMM_START)]
    return [(op, slot) for op, slot in calls if own.comms[slot].note.startswith("parameter")]


@pytest.mark.parametrize(("segment", "outside"), [("forward.0", 2), ("backward.0", 1)])
def test_a_layer_comes_by_one_gather_ahead(segment: str, outside: int) -> None:
    """What stands before the layers, of which backward needs nothing, each layer, and what stands behind."""
    program = made("llama", "dp3", 3)
    check(program)
    found = gathers(program, 0, segment)
    starts = [slot for op, slot in found if op == COMM_START]
    assert starts == [slot for op, slot in found if op == COMM]
    assert len(starts) == LAYERS + outside
    ahead = [COMM_START, *[COMM_START, COMM] * (len(starts) - 1), COMM]
    assert [op for op, _ in found] == ahead
    own = program.ranks[0]
    for slot in starts:
        step = own.comms[slot]
        assert step.kind is CommKind.ALL_GATHER and step.dst_view is not None and len(step.dst_view) == 1


def test_gradients_are_handed_over_by_the_same_runs() -> None:
    own = made("llama", "dp3", 3).ranks[0]
    summed = [{piece.param for piece in bucket.pieces} for bucket in own.grad_buckets]
    assert len(summed) == LAYERS + 2
    assert not any(one & other for at, one in enumerate(summed) for other in summed[:at])


def test_a_tied_embedding_comes_alone() -> None:
    """Layers at both ends read it: a run with others would keep these, too."""
    own = made("gpt2", "dp2", 3).ranks[0]
    (alone,) = (
        bucket for bucket in own.grad_buckets if "transformer.wte.weight" in {p.param for p in bucket.pieces}
    )
    assert {piece.param for piece in alone.pieces} == {"transformer.wte.weight"}


def test_unlike_columns_come_box_by_box() -> None:
    """Of two and three ranks, rows are joined; columns, cut in the middle of rows, are not."""
    program = made("llama", "sp", 3)
    shapes = {
        len(step.dst_view or ())
        for own in program.ranks
        for step in own.comms
        if step.note.startswith("parameter")
    }
    assert shapes == {1, 2}


Change = Callable[[list[LocalRow]], list[LocalRow]]


def with_rows(program: Program, rank: int, change: Change) -> Program:
    """One rank with a class of its own, whose first forward segment has other rows."""
    own = program.ranks[rank]
    shared = program.classes[own.class_name]
    segments: list[Segment] = [
        replace(each, rows=change(each.rows)) if each.name == "forward.0" else each
        for each in shared.segments
    ]
    faulty = replace(shared, name="faulty", segments=segments)
    ranks = [replace(each, class_name="faulty") if each is own else each for each in program.ranks]
    return replace(program, classes={**program.classes, "faulty": faulty}, ranks=ranks)


def starts_in_another_order(rows: list[LocalRow]) -> list[LocalRow]:
    """Both that stand behind each other, with what makes their operands."""
    first, second = [at for at, row in enumerate(rows) if row.op == COMM_START][:2]
    made = list(rows)
    held = made.pop(first)
    return [*made[:second], held, *made[second:]]


def waits_in_another_order(rows: list[LocalRow]) -> list[LocalRow]:
    first, second = [at for at, row in enumerate(rows) if row.op == COMM][:2]
    made = list(rows)
    held = made.pop(second)
    return [*made[:first], held, *made[first:]]


FAULTS = {"starts": (starts_in_another_order, "meets"), "waits": (waits_in_another_order, "has started step")}


@pytest.mark.parametrize("fault", FAULTS)
def test_other_orders_on_one_rank_show(fault: str) -> None:
    program = made("llama", "dp3", 3)
    change, text = FAULTS[fault]
    with pytest.raises(VerifyError, match=text):
        check_fit(with_rows(program, 1, change))
