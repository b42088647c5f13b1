"""Ranks are killed that alone had pieces of the state: copies of these are of the last step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hspmd_compiler.errors import RankLost
from hspmd_compiler.program.program import Op
from hspmd_compiler.strategy.strategy import Strategy
from tests.runtime.elastic import product
from tests.runtime.elastic.product import Training
from tests.runtime.elastic.test_lost_ranks import STEPS, check

FEW = ("wanted", "survived")


def struck(strategy: Strategy, tmp_path: Path, survive: int, *devices: int, **more: Any) -> Training:
    """These die together, once two steps are told."""

    def strike(training: Training, step: int) -> None:
        if step == 2:
            for device in devices:
                training.kill(device)

    directory = product.compiled(strategy, tmp_path / "program")
    return Training(directory, tmp_path / "scratch", STEPS, survive=survive, on_step=strike, **more)


@pytest.mark.parametrize(
    ("zero", "op", "device"),
    [
        (3, Op.OPTIMIZER, 3),
        *(
            pytest.param(zero, op, 2, marks=pytest.mark.slow)
            for zero in (1, 2, 3)
            for op in (Op.BACKWARD, Op.LOSS, Op.OPTIMIZER)
        ),
    ],
)
def test_a_rank_that_alone_had_pieces_dies(zero: int, op: Op, device: int, tmp_path: Path) -> None:
    directory = product.compiled(product.twice(zero=zero), tmp_path / "zero")
    faults = {device: (3, op, op is Op.LOSS, 9)}
    training = Training(directory, tmp_path / "scratch", STEPS, faults, survive=1).run()
    check(training)
    (change,) = training.of("regroup")
    assert change["lost"] == [device] and change["strategy"] == f"zero without {device}"
    first, second = training.of("copies")
    assert [first[key] for key in FEW] == [second[key] for key in FEW] == [1, 1]
    assert bool(first["step_bytes"]) == (zero > 1) and first["memory_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 3])
def test_two_ranks_that_had_all_of_a_piece_die(zero: int, tmp_path: Path) -> None:
    """Of four; two are left, and can make up for one of them only, which is told."""
    training = struck(product.twice(zero=zero), tmp_path, 2, 1, 2)
    check(training.run())
    assert sorted(each for change in training.of("regroup") for each in change["lost"]) == [1, 2]
    told = [[each[key] for key in FEW] for each in training.of("copies")]
    assert told[0] == [2, 2] and told[-1] == [2, 1]


@pytest.mark.slow
def test_more_are_lost_than_copies_make_up_for(tmp_path: Path) -> None:
    training = struck(product.twice(zero=3), tmp_path, 1, 0, 1)
    with pytest.raises(RankLost, match="nobody is left who holds all of the state"):
        training.run()


@pytest.mark.slow
def test_a_stage_that_nobody_else_has_is_lost(tmp_path: Path) -> None:
    """One pipeline: its values, too, are on one rank. A rank that is idle keeps copies."""
    training = struck(product.one(), tmp_path, 1, 0)
    check(training.run())
    assert training.of("copies")[-1]["survived"] == 0


@pytest.mark.slow
def test_a_new_process_is_given_its_state_out_of_copies(tmp_path: Path) -> None:
    training = struck(product.twice(zero=3), tmp_path, 1, 2, respawns=1)
    check(training.run())
    (change,) = training.of("regroup")
    assert change["strategy"] == "program" and [each["survived"] for each in training.of("copies")] == [1, 1]
