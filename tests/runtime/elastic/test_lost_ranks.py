"""Ranks that are killed while the product's engine trains: the others end where an undisturbed run does."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from hspmd_compiler.errors import RankLost
from hspmd_compiler.program.program import Op
from hspmd_compiler.runtime.elastic import training as training_module
from hspmd_compiler.runtime.elastic.presence import Presence
from hspmd_compiler.runtime.switching.carry import carry
from tests.runtime.elastic import product
from tests.runtime.elastic.product import Training

STEPS = 6


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return product.compiled(product.twice(), tmp_path_factory.mktemp("elastic") / "twice")


def check(training: Training, steps: int = STEPS) -> None:
    """Each step once, in order, and the end of an undisturbed run."""
    assert training.of("step") == list(range(1, steps + 1))
    check_end(training, steps)


def check_end(training: Training, steps: int) -> None:
    """Torch's own parameters."""
    (end,) = training.of("end")
    for name, value in product.eager(steps).items():
        assert end[name] == pytest.approx(value, rel=1e-10, abs=1e-12), name


@pytest.mark.slow
def test_nobody_dies(artifact: Path, tmp_path: Path) -> None:
    check(Training(artifact, tmp_path / "scratch", STEPS).run())


@pytest.mark.parametrize(
    ("op", "inside"),
    [
        (Op.LOSS, True),
        *(
            pytest.param(*where, marks=pytest.mark.slow)
            for where in (
                (Op.FORWARD, False),
                (Op.BACKWARD, False),
                (Op.GRAD_SYNC, True),
                (Op.OPTIMIZER, False),
            )
        ),
    ],
)
def test_a_rank_dies_in_a_step(op: Op, inside: bool, artifact: Path, tmp_path: Path) -> None:
    training = Training(artifact, tmp_path / "scratch", STEPS, {1: (3, op, inside, 9)}).run()
    check(training)
    (change,) = training.of("regroup")
    assert change["lost"] == [1] and change["resumed_s"] < 4


def test_a_dead_rank_is_replaced_and_is_given_its_state(artifact: Path, tmp_path: Path) -> None:
    training = Training(artifact, tmp_path / "scratch", STEPS, {0: (3, Op.LOSS, True, 9)}, respawns=1).run()
    check(training)
    (change,) = training.of("regroup")
    assert change["lost"] == [0] and change["strategy"] == "twice" and change["bytes_moved"] > 0


@pytest.mark.slow
def test_two_at_once_and_the_store(artifact: Path, tmp_path: Path) -> None:
    """A whole pipeline goes, rank 0 in it, and the process that hosts the store."""

    def strike(training: Training, step: int) -> None:
        if step == 2:
            assert training.launcher._keeper.process is not None
            training.launcher._keeper.process.kill()
            training.kill(0)
            training.kill(1)

    training = Training(artifact, tmp_path / "scratch", STEPS, on_step=strike).run()
    check(training)
    assert sorted(each for change in training.of("regroup") for each in change["lost"]) == [0, 1]


@pytest.mark.slow
def test_a_rank_that_is_stopped_for_too_long_does_not_come_back(artifact: Path, tmp_path: Path) -> None:
    """It is killed before the others decide: to be woken later means nothing.

    It stops itself: a launcher that runs late could do so only behind the last step.
    """
    faults = {1: (3, Op.BACKWARD, False, int(signal.SIGSTOP))}
    training = Training(artifact, tmp_path / "scratch", STEPS, faults).run()
    check(training)
    (change,) = training.of("regroup")
    assert change["lost"] == [1] and change["halted_s"] < 1


@pytest.mark.parametrize("when", ["within", pytest.param("before", marks=pytest.mark.slow)])
def test_a_rank_dies_while_the_state_moves(
    when: str, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others still have the old state, and begin the switch anew."""
    mark = tmp_path / "died"

    def mortal(plan: Any, rank: int, *more: Any, **named: Any) -> Any:
        moved = None if when == "before" else carry(plan, rank, *more, **named)
        if rank == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return carry(plan, rank, *more, **named) if moved is None else moved

    monkeypatch.setattr(training_module, "carry", mortal)
    training = Training(
        artifact, tmp_path / "scratch", STEPS, {0: (3, Op.BACKWARD, False, 9)}, respawns=9
    ).run()
    check(training)
    assert mark.exists() and sorted(training.of("regroup")[0]["lost"]) == [0, 1]


@pytest.mark.slow
def test_devices_come_back_at_a_step_boundary(artifact: Path, tmp_path: Path) -> None:
    """Steps take a while: the run must not end before the new process has started."""
    gone = Presence(frozenset({0, 1, 2}), after_step=2)
    back = Presence(frozenset({0, 1, 2, 3}), after_step=4)
    training = Training(artifact, tmp_path / "scratch", 40, schedule=[gone, back], pause_s=0.1).run()
    check(training, 40)
    first, second = training.of("regroup")
    assert first["lost"] == [3] and second["joined"] == [3] and second["strategy"] == "twice"


def test_a_lost_piece_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    directory = product.compiled(product.twice(zero=1), tmp_path / "zero")
    training = Training(directory, tmp_path / "scratch", STEPS, {2: (3, Op.BACKWARD, False, 9)})
    with pytest.raises(RankLost) as caught:
        training.run()
    text = str(caught.value)
    assert "nobody is left who holds all of the state" in text and "--checkpoint" in text
    assert re.search(r"blocks.[01].weight +exp_avg", text), text


@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_pieces_that_are_lost_come_from_a_checkpoint(zero: int, tmp_path: Path) -> None:
    """All ranks go back to one step, and the data with them: some steps are taken twice."""
    directory = product.compiled(product.twice(zero=zero), tmp_path / "zero")
    training = Training(
        directory, tmp_path / "scratch", 9, {2: (6, Op.OPTIMIZER, False, 9)}, checkpoints=tmp_path / "kept"
    ).run()
    steps = training.of("step")
    again = steps.index(max(steps[: steps.index(9)], default=0)) if 9 in steps else 0
    assert steps[-1] == 9 and again >= 0 and len(steps) > 9
    check_end(training, 9)


@pytest.mark.slow
def test_a_strategy_that_was_compiled_ahead_is_taken(tmp_path: Path) -> None:
    directory = product.bundle({"twice": product.twice(), "one": product.one()}, tmp_path / "bundle")
    training = Training(directory, tmp_path / "scratch", STEPS, {1: (3, Op.GRAD_SYNC, True, 9)}).run()
    check(training)
    (change,) = training.of("regroup")
    assert change["strategy"] == "one" and change["note"] == "compiled ahead"


@pytest.mark.slow
def test_losses_go_on_to_the_last_pipeline(artifact: Path, tmp_path: Path) -> None:
    """A strategy that was made for what was left is kept where only idle devices go, and cut down further."""

    def strike(training: Training, step: int) -> None:
        for at, device in ((5, 0), (15, 1), (25, 2)):
            if step == at:
                training.kill(device)

    training = Training(artifact, tmp_path / "scratch", 40, on_step=strike)
    with pytest.raises(RankLost, match="nobody is left who holds all of the state"):
        training.run()
    assert [each["strategy"] for each in training.of("regroup")] == ["twice without 0", "twice without 0"]


@pytest.mark.parametrize("zero", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_ranks_could_not_exchange_behind_an_update_is_brought_later(zero: int, tmp_path: Path) -> None:
    """Nobody dies: a rank has only what it owns of the new step, and old copies of the rest."""
    directory = product.compiled(product.twice(zero=zero), tmp_path / "zero")
    faults = {1: (3, Op.PARAM_GATHER, True, product.NETWORK)}
    training = Training(directory, tmp_path / "scratch", STEPS, faults).run()
    assert (tmp_path / "scratch" / "struck-1").exists()
    check_end(training, STEPS)
    steps = training.of("step")
    assert steps == sorted(set(steps)) and steps[-1] == STEPS
