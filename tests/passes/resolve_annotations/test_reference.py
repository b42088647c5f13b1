"""Against the reference's answers: ours are the same or cheaper, and each difference has a named reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum

import pytest

from hspmd_compiler.errors import AnnotationError
from hspmd_compiler.passes.resolve_annotations import Resolution, resolve, text_of
from hspmd_compiler.passes.resolve_annotations.moves import ExchangeMove
from hspmd_compiler.passes.resolve_annotations.patterns import named
from hspmd_compiler.passes.resolve_annotations.text import ALONE

from .proof import COSTS, check_pair
from .reference_rows import SHAPE, Row, rows_of_one_group, rows_of_unions

NAMES = {
    "UNUSED": {""},
    "SCATTER": {"local slice"},
    "COMM_SPLIT": {"local slice"},
    "ALL_GATHER": {"all-gather"},
    "ALL_REDUCE": {"all-reduce"},
    "REDUCE_SCATTER": {"reduce-scatter"},
    "SPLIT_ALL_GATHER": {"split all-gather", "all-gather"},
    "SPLIT_ALL_REDUCE": {"split all-reduce", "all-reduce", "split reduce-scatter", "split all-gather"},
    "SPLIT_REDUCE_SCATTER": {"split reduce-scatter", "reduce-scatter"},
    "P2P": {"send/receive"},
    "BSR": {"send/receive", "broadcast", "split broadcast"},
}
"""Our names of the reference's operators; a split collective with one group is no split one."""


class Reason(Enum):
    """Why an answer of ours is not the reference's."""

    SAME = "every rank does the same"
    RESOLVED = "the reference raises an error"
    REFUSED = "a whole value would become a pending sum: both refuse"
    WRONG = "what the reference does gives other values than its target annotation names"
    ONE_TIER = "one all-reduce over all addends, where the reference reduces twice"
    NO_BATCH = "a collective, a local slice or nothing, where the reference plans sends and receives"


def taken_by(found: Resolution) -> dict[int, dict[str, set[tuple[int, ...]]]]:
    """Per rank what it takes part in, by name, and with whom."""
    taken: dict[int, dict[str, set[tuple[int, ...]]]] = {}
    for part in found.parts:
        for move in part.moves():
            groups: Iterable[tuple[str, tuple[int, ...]]] = (
                named(move)
                if isinstance(move, ExchangeMove)
                else [("all-reduce", group) for group in move.groups]
            )
            for name, ranks in groups:
                for rank in ranks:
                    taken.setdefault(rank, {}).setdefault(name, set()).add(ranks)
    return taken


def reason_of(row: Row) -> Reason:
    """The first reason that holds; where none does, values are wrong or ours costs more, the test fails."""
    if row.target.is_partial and not row.source.is_partial:
        with pytest.raises(AnnotationError, match="a whole value is to become a pending sum"):
            resolve(row.source, row.target, SHAPE)
        assert not row.answers
        return Reason.REFUSED
    found = resolve(row.source, row.target, SHAPE)
    check_says_why(found)
    check_pair(row.source, row.target, SHAPE, COSTS[0])
    if not row.answers or not row.is_right():
        return Reason.WRONG if row.answers else Reason.RESOLVED
    assert found.seconds <= row.seconds() + 1e-12, f"{row.name}: {found.seconds} > {row.seconds()}"
    taken = taken_by(found)
    names = {rank: set(own) for rank, own in taken.items()}
    ops = {rank: answer.ops for rank, answer in row.answers.items()}
    if all(_same(names.get(rank, {""}), own) for rank, own in ops.items()):
        for rank, answer in row.answers.items():
            assert not answer.groups or set().union(*taken[rank].values()) == answer.groups, row.name
        return Reason.SAME
    if all(names.get(rank) == {"all-reduce"} for rank in ops) and any(len(own) > 1 for own in ops.values()):
        return Reason.ONE_TIER
    others = (rank for rank, own in ops.items() if not _same(names.get(rank, {""}), own))
    assert {op for rank in others for op in ops[rank]} == {"BSR"}, f"{row.name}: {names} for {ops}"
    return Reason.NO_BATCH


def check_says_why(found: Resolution) -> None:
    """Of each way, the text gives the price of those that were not taken, or why there is no other."""
    text = text_of(found)
    for part in found.parts:
        others = [way for way in part.ways if way.method is not part.method]
        told = [
            f"no {way.method.value}: " if way.seconds is None else f"{way.method.value} " for way in others
        ]
        assert all(each in text for each in told or [ALONE[part.method]]), text


def _same(names: set[str], ops: tuple[str, ...]) -> bool:
    return len(ops) == 1 and names <= NAMES[ops[0]]


@pytest.mark.parametrize("rows", [rows_of_one_group, rows_of_unions], ids=["one group", "unions"])
def test_every_row_has_a_reason(rows: Callable[[], Iterable[Row]]) -> None:
    assert Counter(map(reason_of, rows())).total()
