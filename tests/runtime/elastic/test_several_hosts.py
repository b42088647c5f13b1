"""A launcher for each of several hosts: ranks, launchers and the deciding one die, the others go on."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from hspmd_compiler.program.program import Op
from tests.runtime.elastic import product
from tests.runtime.elastic.several_hosts import SeveralHosts

STEPS, LONG = 60, 250


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return product.compiled(product.twice(), tmp_path_factory.mktemp("hosts") / "twice")


def check(run: SeveralHosts, steps: int = STEPS) -> None:
    """No step twice, in order, and the end of an undisturbed run.

    Records that a deciding launcher dies with are not shown.
    """
    shown = run.of("step")
    assert shown == sorted(set(shown)) and shown[-1] == steps, [run.errors(each) for each in run.codes]
    (end,) = run.of("end")
    for name, value in product.eager(steps).items():
        assert end[name] == pytest.approx(value, rel=1e-10, abs=1e-12), name


def kill_launcher(number: int, at: int, how: int = signal.SIGKILL) -> object:
    def strike(hosts: SeveralHosts, step: int) -> None:
        if step == at and hosts.once("strike"):
            os.kill(hosts.pid(number), how)

    return strike


@pytest.mark.slow
def test_a_rank_of_a_host_that_does_not_decide_dies(artifact: Path, tmp_path: Path) -> None:
    run = SeveralHosts(artifact, tmp_path / "run", [(0, 1), (2, 3)], STEPS, {3: (3, Op.LOSS, True, 9)}).run()
    check(run)
    (change,) = run.of("regroup")
    assert change["lost"] == [3] and run.codes == {0: 0, 1: 0}


@pytest.mark.slow
def test_a_whole_host_is_lost(artifact: Path, tmp_path: Path) -> None:
    run = SeveralHosts(artifact, tmp_path / "run", [(0, 1), (2, 3)], STEPS, strike=kill_launcher(1, 2)).run()
    check(run)
    assert sorted(run.of("regroup")[0]["lost"]) == [2, 3] and run.codes == {0: 0, 1: -9}


def test_the_deciding_host_is_lost_with_the_store(artifact: Path, tmp_path: Path) -> None:
    run = SeveralHosts(artifact, tmp_path / "run", [(0, 1), (2, 3)], STEPS, strike=kill_launcher(0, 2)).run()
    check(run)
    (change,) = run.of("regroup")
    assert sorted(change["lost"]) == [0, 1] and run.codes == {0: -9, 1: 0}
    assert set(run.of("by")) == {0, 1}


@pytest.mark.slow
def test_one_deciding_host_after_the_other_is_lost(artifact: Path, tmp_path: Path) -> None:
    def strike(hosts: SeveralHosts, step: int) -> None:
        for number, at in ((0, 5), (1, 25)):
            if step >= at and hosts.once(f"strike-{number}"):
                os.kill(hosts.pid(number), signal.SIGKILL)

    run = SeveralHosts(artifact, tmp_path / "run", [(0,), (1,), (2, 3)], STEPS, strike=strike).run()
    check(run)
    assert [each["lost"] for each in run.of("regroup")] == [[0], [1]]
    assert run.codes == {0: -9, 1: -9, 2: 0} and set(run.of("by")) == {0, 1, 2}


@pytest.mark.slow
def test_a_rank_of_another_host_is_replaced_there(artifact: Path, tmp_path: Path) -> None:
    faults = {3: (3, Op.BACKWARD, False, 9)}
    run = SeveralHosts(artifact, tmp_path / "run", [(0, 1), (2, 3)], STEPS, faults, respawns=1).run()
    check(run)
    changes = run.of("regroup")
    assert changes[0]["lost"] == [3] and changes[-1]["strategy"] == "twice" and run.codes == {0: 0, 1: 0}


@pytest.mark.slow
def test_a_deciding_launcher_that_is_stopped_is_given_up_by_the_others(
    artifact: Path, tmp_path: Path
) -> None:
    """Woken, it hears that they went on, and ends with its rank."""

    def strike(hosts: SeveralHosts, step: int) -> None:
        if step >= 2 and hosts.once("stop"):
            os.kill(hosts.pid(0), signal.SIGSTOP)
        if hosts.number == 1 and hosts.once("wake"):
            os.kill(hosts.pid(0), signal.SIGCONT)

    run = SeveralHosts(
        artifact, tmp_path / "run", [(0,), (1,), (2, 3)], LONG, pause_s=0.03, strike=strike
    ).run()
    check(run, LONG)
    assert run.codes == {0: 1, 1: 0, 2: 0}
    assert "the other launchers go on without this one" in run.errors(0)


@pytest.mark.slow
def test_half_of_the_launchers_without_the_first_does_not_go_on(artifact: Path, tmp_path: Path) -> None:
    """The first is stopped, so that it may live: the second ends; the first, woken, goes on alone."""

    def strike(hosts: SeveralHosts, step: int) -> None:
        if step == 2 and hosts.once("stop"):
            wake = threading.Timer(6.0, os.kill, (hosts.pid(0), signal.SIGCONT))
            if not os.fork():
                wake.start()
                wake.join()
                os._exit(0)
            os.kill(hosts.pid(0), signal.SIGSTOP)

    run = SeveralHosts(artifact, tmp_path / "run", [(0, 1), (2, 3)], LONG, pause_s=0.03, strike=strike).run()
    assert run.codes == {0: 0, 1: 1}
    check(run, LONG)
    assert "has lost contact to those that may go on" in run.errors(1)
    assert "not heard, may live" in run.errors(1)
    assert sorted(run.of("regroup")[0]["lost"]) == [2, 3]


@pytest.mark.slow
def test_pieces_that_a_lost_host_had_come_from_a_checkpoint(tmp_path: Path) -> None:
    """Under a strategy that was compiled ahead, by the launcher that has taken over."""
    strategies = {"twice": product.twice(zero=1), "one": product.one(zero=1)}
    directory = product.bundle(strategies, tmp_path / "bundle")
    run = SeveralHosts(
        directory,
        tmp_path / "run",
        [(1,), (0, 2, 3)],
        STEPS,
        pause_s=0.03,
        strike=kill_launcher(0, 20),
        checkpoints=tmp_path / "kept",
    ).run()
    steps = run.of("step")
    assert steps[-1] == STEPS and len(steps) > STEPS - 20 and run.codes == {0: -9, 1: 0}, run.errors(1)
    (end,) = run.of("end")
    for name, value in product.eager(STEPS).items():
        assert end[name] == pytest.approx(value, rel=1e-10, abs=1e-12), name
    assert run.of("regroup")[0]["strategy"] == "one"
