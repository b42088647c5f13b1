"""Ranks that are stopped, late, or call other methods: told by name, and ended in time."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.log import logger
from hspmd_compiler.errors import RankLost, RunError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start import rendezvous
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions, open_engine
from hspmd_compiler.runtime.start.processes import run_ranks
from hspmd_compiler.runtime.start.rank_process import Emit, LocalRank
from hspmd_compiler.runtime.start.rendezvous import RankPlace, Timeouts, use_loopback
from hspmd_compiler.runtime.watching.calls import Calls, error_from_json, error_to_json, late, unlike_calls

from . import hand_made

SGD = OptimizerConfig(name=OptimizerName.SGD, lr=0.1)
SHORT = Timeouts(timedelta(seconds=20), timedelta(seconds=8), timedelta(seconds=3))

names = st.lists(st.sampled_from(["step", "grads"]), max_size=5)


def called(made: list[str], has_left: bool = False) -> Calls:
    calls = Calls()
    for name in made:
        calls = calls.begun(name)
    return calls.left() if has_left else calls


@given(st.lists(st.tuples(names, st.booleans()), min_size=1, max_size=4))
def test_unlike_calls(ranks: list[tuple[list[str], bool]]) -> None:
    error = unlike_calls([Calls.from_json(called(*each).to_json()) for each in ranks])
    told = [[*made, *(["end"] * 9 if has_left else [])] for made, has_left in ranks]
    columns = [{made[i] for made in told if i < len(made)} for i in range(9)]
    assert (error is not None) == any(len(column) > 1 for column in columns)
    if error is not None:
        assert error_from_json(error_to_json(error)).text() == error.text()


def test_late_ranks() -> None:
    assert late([called(["step"]), called(["step", "step"]), called(["step"], has_left=True)]) == [0]
    assert late([called(["step"]), called(["step", "step"]).returned()]) == []


def job_where(rank: int, action: Callable[[Engine], None]) -> Callable[[Engine, Emit], None]:
    """Trains; in front of its sixth step one rank does something else."""

    def job(engine: Engine, emit: Emit) -> None:
        for step in range(10_000):
            if step == 5 and engine.rank == rank:
                action(engine)
                if engine.steps < 5:
                    return
            engine.step(hand_made.batch(step))
            time.sleep(0.001)

    return job


def stop(_: Engine) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def ended(tmp_path: Path, job: Callable[[Engine, Emit], None]) -> RunError:
    directory = hand_made.save(tmp_path / "artifact", SGD)

    def logging_job(engine: Engine, emit: Emit) -> None:
        logger.addHandler(logging.StreamHandler())  # pytest has taken the one that there is
        job(engine, emit)

    start = time.monotonic()
    with pytest.raises(RunError) as caught:
        launch(directory, logging_job, StartOptions(timeouts=SHORT))
    assert time.monotonic() - start < 60
    return caught.value


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_stops_while_groups_are_made_ends_all(
    tmp_path: Path, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rendezvous.TorchDist

    def stopping(*args: Any, **more: Any) -> object:
        if torch.distributed.get_rank() == victim:
            os.kill(os.getpid(), signal.SIGSTOP)
        return made(*args, **more)

    monkeypatch.setattr(rendezvous, "TorchDist", stopping)
    error = ended(tmp_path, lambda engine, emit: None)
    assert isinstance(error, RankLost) and f"rank {victim} has said nothing for 8 s" in error.what


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_stopped_rank_is_named_and_ends_all(
    tmp_path: Path, victim: int, capfd: pytest.CaptureFixture[str]
) -> None:
    error = ended(tmp_path, job_where(victim, stop))
    assert isinstance(error, RankLost) and error.exit_code == 1
    assert error.what.startswith(f"rank {victim} has said nothing for 8 s")
    lines = [line for line in capfd.readouterr().err.splitlines() if "has said nothing" in line]
    assert len(lines) == 1 and lines[0].startswith(f"rank {victim} (") and "for 3 s; it ends" in lines[0]


@pytest.mark.parametrize("caller", [0, 1])
def test_unlike_methods_are_both_named(tmp_path: Path, caller: int) -> None:
    error = ended(tmp_path, job_where(caller, lambda engine: engine.state_dict() and None))
    texts = [text for _, text in error.details]
    assert error.what == "the ranks call different methods of their engines" and error.exit_code == 2
    assert "state_dict (call 8)" in texts and "step (call 8)" in texts


def test_data_that_end_early_on_one_rank(tmp_path: Path) -> None:
    def job(engine: Engine, emit: Emit) -> None:
        for step in range(3 if engine.rank == 1 else 5):
            engine.step(hand_made.batch(step))

    error = ended(tmp_path, job)
    assert ("rank 1", "the end of the run (call 6)") in error.details
    assert "step (call 6)" in dict(error.details).values()


def test_a_rank_that_lets_others_wait_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    error = ended(tmp_path, job_where(1, lambda engine: time.sleep(60)))
    assert ("waited for", "rank 1, which is outside of its engine, after its call 7, step") in error.details
    assert "rank 1 (" in (told := capfd.readouterr().err) and "lets the others wait" in told


def test_a_foreign_process_on_the_port(tmp_path: Path) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)
    with socket.create_server(("127.0.0.1", 0)) as mute:

        def body(local: LocalRank, emit: Emit) -> None:
            place = RankPlace(local.rank, 3, local.local_index, port=mute.getsockname()[1])
            open_engine(directory, StartOptions(timeouts=Timeouts(timedelta(seconds=1))), place)

        with pytest.raises(RunError, match="takes connections and says nothing"):
            run_ranks([1], body, lambda record: None)


def test_ranks_started_unlike_are_told_apart(tmp_path: Path) -> None:
    made = [
        hand_made.save(tmp_path / name, OptimizerConfig(OptimizerName.SGD, lr=lr))
        for name, lr in zip("ab", (0.1, 0.2), strict=True)
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def body(local: LocalRank, emit: Emit) -> None:
        use_loopback()
        options = StartOptions(seed=local.rank // 2, flags={"--lr": str(local.rank % 2)}, timeouts=SHORT)
        place = RankPlace(local.rank, 3, local.local_index, port=port)
        open_engine(made[local.rank == 1], options, place)

    with pytest.raises(RunError) as caught:
        run_ranks(range(3), body, lambda record: None)
    told = dict(caught.value.details)
    assert told["seed"] == "rank 0-1: 0; rank 2: 1" and told["--lr"] == "rank 0,2: 0; rank 1: 1"
    assert told["optimizer lr"] == "rank 0,2: 0.1; rank 1: 0.2" and len(told) == 4
