"""The verdict before the first step, and where vocabulary and devices come from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hspmd_compiler.errors import RunError
from hspmd_compiler.program.program import (
    ClassProgram,
    InputKind,
    LocalRow,
    Op,
    Segment,
    SegmentInput,
    Value,
)
from hspmd_compiler.runtime.batches.sources import vocabulary_of
from hspmd_compiler.runtime.device import find_device
from hspmd_compiler.runtime.start.rendezvous import RankPlace
from hspmd_compiler.runtime.start.roll_call import Report, agreed_shortcuts, find_problems, transfer_order

from . import hand_made


def report(rank: int, **more: object) -> Report:
    plain = Report(rank, "node", rank, "cpu", "", {"torch": "2.13", "--lr": "0.1"}, {}, {}, {})
    return replace(plain, **more)  # type: ignore[arg-type]


def test_nothing_wrong() -> None:
    assert find_problems([report(0), report(1)]) == []
    assert find_problems([]) == []


def test_every_problem_is_told() -> None:
    other = {"torch": "2.12", "--lr": "0.1", "classes/c1.json": "0af1"}
    assert find_problems([report(0), report(1, problem="no device"), report(2, same=other)]) == [
        ("rank 1", "no device (node, local 1, cpu)"),
        ("torch", "rank 0-1: 2.13; rank 2: 2.12"),
    ]


def test_order_of_messages() -> None:
    program = hand_made.program()
    sends = {str(own.rank): transfer_order(own, Op.SEND) for own in program.ranks}
    receives = {str(own.rank): transfer_order(own, Op.RECV) for own in program.ranks}
    reports = [report(rank, sends=sends[str(rank)], receives=receives[str(rank)]) for rank in range(3)]
    assert find_problems(reports) == []
    swapped = replace(reports[2], receives={**receives["2"], "1": "another"})
    assert find_problems([*reports[:2], swapped]) == [
        ("rank 1", "sends in another order than rank 2 receives")
    ]


def test_shortcuts_need_all_members() -> None:
    mine = report(0, shortcuts={"1": "all_gather", "2": "all_gather", "3": "reduce_scatter"})
    other = report(1, shortcuts={"1": "all_gather", "2": "none"})
    assert agreed_shortcuts([mine, other]) == {"1", "3"}


def test_devices() -> None:
    assert find_device("cpu", 3).device == torch.device("cpu")
    assert "isn't known" in find_device("abacus", 0).problem
    if torch.cuda.device_count() == 0:
        assert find_device("cuda", 0).problem == "compiled for cuda, but this host has no CUDA device"


def test_place_of_the_environment() -> None:
    given = {"RANK": "3", "WORLD_SIZE": "5", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "77"}
    assert RankPlace.from_environment(given) == RankPlace(3, 5, 1, "a", 77)
    with pytest.raises(RunError, match="rank"):
        RankPlace.from_environment({})
    with pytest.raises(RunError, match="rank"):
        RankPlace.from_environment({**given, "RANK": "three"})


def test_vocabulary() -> None:
    segment = Segment(
        "forward",
        [SegmentInput(InputKind.DATA, Value(0), "input_ids"), SegmentInput(InputKind.PARAM, Value(1), "w2")],
        [LocalRow(Value(2), "aten.embedding.default", (Value(1), Value(0)))],
        [],
    )
    shards = hand_made.program().ranks[2].shards
    assert vocabulary_of(ClassProgram("a", [segment]), shards) == 6
    assert vocabulary_of(ClassProgram("a", []), shards) is None
