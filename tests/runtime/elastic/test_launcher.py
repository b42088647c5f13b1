"""The launcher with real processes and a toy job: whoever dies, the others go on to the undisturbed end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from hspmd_compiler.errors import HspmdError, RankLost, StrategyError
from hspmd_compiler.runtime.elastic.agent import Tell
from hspmd_compiler.runtime.elastic.choosing import Situation, Successor
from hspmd_compiler.runtime.elastic.launcher import ElasticLauncher, ElasticLimits
from hspmd_compiler.runtime.elastic.members import LiveRank
from hspmd_compiler.runtime.elastic.presence import Presence
from tests.runtime.elastic import toy

STEPS = 6
LIMITS = ElasticLimits(silent_s=2.0, grace_s=20.0)


class Outcome:
    def __init__(self, steps: int = STEPS) -> None:
        self.steps = steps
        self.records: list[Mapping[str, Any]] = []
        self.launcher: ElasticLauncher | None = None

    def run(self, ranks: int, trouble: Callable[[int, int, str], None], **options: Any) -> Outcome:
        self.launcher = ElasticLauncher(
            toy.body(self.steps, trouble), toy.choose, range(ranks), self.records.append, LIMITS, **options
        )
        self.launcher.run()
        return self

    def of(self, key: str) -> list[Any]:
        return [record[key] for record in self.records if key in record]

    def check(self) -> None:
        """Every step once and in order; all that are left have the state of a run of one process."""
        assert self.of("step") == list(range(1, self.steps + 1))
        ends = self.of("end")
        assert ends, "somebody is left"
        for end in ends:
            assert end == ends[0]
            assert end == pytest.approx(toy.undisturbed(self.steps), rel=1e-10, abs=1e-12)


def quiet(id: int, step: int, point: str) -> None:
    pass


def test_nobody_dies() -> None:
    outcome = Outcome().run(3, quiet)
    outcome.check()
    assert not outcome.of("regroup")


def test_a_run_begins_as_it_is_told_whatever_checkpoints_there_are() -> None:
    """--resume says from which: the newest is none of the run's own before its first step."""
    outcome = Outcome().run(
        2, toy.dies(0, 1, "first"), respawns=1, checkpoint=lambda steps: pytest.fail("asked")
    )
    outcome.check()


BOTH = toy.all_of(toy.dies(0, 4, "first"), toy.dies(1, 4, "first"))


def test_no_checkpoint_is_asked_for_that_the_run_has_not_come_to(tmp_path: Path) -> None:
    """The folder may hold later ones, of the run that this one goes on from an earlier one of."""

    def asked(steps: int) -> str:
        with (tmp_path / "asked").open("a") as file:
            file.write(f"{steps},")
        return ""

    with pytest.raises(RankLost, match="nobody is left who holds all of the state") as told:
        Outcome().run(2, BOTH, respawns=2, checkpoint=asked)
    assert (tmp_path / "asked").read_text() == "3,"
    text = str(told.value)
    assert (
        re.search("--checkpoint +holds no whole one of a step up to 3", text)
        and "--checkpoint DIR" not in text
    )
    assert "a smaller --every N; or --survive F" in text


def test_without_checkpoints_they_are_the_advice() -> None:
    with pytest.raises(RankLost, match="give --checkpoint DIR --every N; or --survive F"):
        Outcome().run(2, BOTH, respawns=2)


def test_ranks_are_heard_while_a_checkpoint_is_read(tmp_path: Path) -> None:
    """One that dies meanwhile is lost at once; a child that is stopped is asked again by another one."""
    begun = tmp_path / "begun"

    def slow(steps: int) -> str:
        times = len(begun.read_text()) if begun.exists() else 0
        begun.write_text("x" * (times + 1))
        if times == 0:
            sleep(60)  # until it is given up, as the parent has lost one more
        if times == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        raise StrategyError("asked a third time")

    outcome = Outcome()
    launcher = ElasticLauncher(
        toy.body(STEPS, BOTH), toy.choose, range(2), outcome.records.append, LIMITS, 2, checkpoint=slow
    )
    heard = launcher._poll

    def poll() -> list[LiveRank]:
        if begun.exists() and begun.read_text() == "x" and not struck:
            struck.append(True)
            launcher._ranks[0].process.kill()
        return heard()

    struck: list[bool] = []
    launcher._searches.poll = poll
    started = monotonic()
    with pytest.raises(StrategyError, match="asked a third time"):
        launcher.run()
    assert struck and monotonic() - started < 30


def test_a_search_that_is_stopped_is_begun_anew(tmp_path: Path) -> None:
    """One that is needed now; what one ahead, of low priority, fails to find is searched for when needed."""
    usual = os.nice(0)

    def stopped(situation: Situation) -> Successor:
        mark = tmp_path / "stopped"
        if len(situation.devices) < 3 and not mark.exists():
            if os.nice(0) > usual:
                raise StrategyError("not ahead")
            mark.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return toy.choose(situation)

    outcome = Outcome()
    ElasticLauncher(
        toy.body(STEPS, toy.dies(1, 4, "reduced")), stopped, range(3), outcome.records.append, LIMITS
    ).run()
    assert (tmp_path / "stopped").exists()
    outcome.check()


@pytest.mark.parametrize("point", toy.POINTS)
def test_one_dies(point: str) -> None:
    outcome = Outcome().run(3, toy.dies(0, 3, point))
    outcome.check()
    (change,) = outcome.of("regroup")
    assert change["lost"] == [0] and change["resumed_s"] < 4


def test_one_dies_and_is_replaced() -> None:
    outcome = Outcome().run(3, toy.dies(1, 3, "reduced"), respawns=1)
    outcome.check()
    assert len(outcome.of("end")) == 3


def test_two_die_at_once() -> None:
    outcome = Outcome().run(4, toy.all_of(toy.dies(0, 3, "reduced"), toy.dies(2, 3, "first")))
    outcome.check()
    assert len(outcome.of("end")) == 2


def test_another_dies_while_the_next_generation_meets() -> None:
    outcome = Outcome().run(4, toy.all_of(toy.dies(0, 3, "first"), toy.dies(2, 3, "joining")))
    outcome.check()
    assert sorted(outcome.of("regroup")[0]["lost"]) == [0, 2] and outcome.of("regroup")[0]["resumed_s"] < 3


def test_a_stopped_rank_is_killed_and_the_others_go_on() -> None:
    outcome = Outcome().run(3, toy.dies(2, 3, "reduced", signal.SIGSTOP))
    outcome.check()
    assert outcome.of("regroup")[0]["lost"] == [2]


@pytest.mark.parametrize(("late_s", "start_s", "lost"), [(3.0, 30.0, {0}), (60.0, 3.0, {0, 1})])
def test_silence_counts_from_the_first_sign_of_life(late_s: float, start_s: float, lost: set[int]) -> None:
    """A process that is slow to start is none that is lost; one that never comes, or is stopped, is."""
    usual = toy.body(STEPS, toy.dies(0, 3, "reduced", signal.SIGSTOP))

    def slow(id: int, control: int, tell: Tell) -> None:
        sleep(late_s if id == 1 else 0)
        usual(id, control, tell)

    limits = replace(LIMITS, start_s=start_s)
    outcome = Outcome()
    ElasticLauncher(slow, toy.choose, range(4), outcome.records.append, limits).run()
    outcome.check()
    assert {each for change in outcome.of("regroup") for each in change["lost"]} == lost


def test_devices_go_and_come_back_by_a_schedule() -> None:
    moments = [Presence(frozenset({0, 2}), after_step=2), Presence(frozenset({0, 1, 2}), after_step=4)]
    outcome = Outcome().run(3, toy.slowly(0.1), schedule=moments)
    outcome.check()
    assert [each["lost"] for each in outcome.of("regroup")] == [[1], []]
    assert outcome.of("regroup")[1]["joined"] == [1] and len(outcome.of("end")) == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_store_is_killed_or_stopped_and_a_rank_dies(number: int) -> None:
    keepers: list[int] = []

    def also_the_keeper(record: Mapping[str, Any]) -> None:
        outcome.records.append(record)
        if record.get("step") in (2, 4):
            assert outcome.launcher is not None and outcome.launcher._keeper.process is not None
            keepers.append(outcome.launcher._keeper.process.pid)
            os.kill(keepers[-1], number)
            if record["step"] == 4:
                os.kill(next(iter(outcome.launcher._members.alive.values())).process.pid, signal.SIGKILL)

    outcome = Outcome()
    outcome.launcher = ElasticLauncher(
        toy.body(STEPS, toy.slowly(0.05)), toy.choose, range(3), also_the_keeper, LIMITS, respawns=1
    )
    outcome.launcher.run()
    outcome.check()
    assert len(keepers) == 2 and len(outcome.of("regroup")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_many_die_at_random(seed: int) -> None:
    """Also while groups are made: no regroup takes long, nobody healthy is killed."""
    outcome = Outcome(40).run(6, toy.at_random(seed, 0.05, 0.12), respawns=1000)
    outcome.check()
    changes = outcome.of("regroup")
    assert len(changes) > 5 and max(len(each["lost"]) for each in changes) > 1
    assert max(each["resumed_s"] for each in changes) < 3 + LIMITS.silent_s


def test_what_the_search_says_ends_the_run() -> None:
    """A search that was only made ahead does not: its error is told when it is needed."""

    def refusing(situation: Situation) -> Successor:
        if len(situation.devices) < 3:
            raise StrategyError("nothing fits")
        return toy.choose(situation)

    def dying(situation: Situation) -> Successor:
        if len(situation.devices) < 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return toy.choose(situation)

    for choose, text in ((refusing, "nothing fits"), (dying, "searches for a program died")):
        outcome = Outcome()
        launcher = ElasticLauncher(
            toy.body(STEPS, toy.dies(1, 4, "reduced")), choose, range(3), outcome.records.append, LIMITS
        )
        with pytest.raises(HspmdError, match=text):
            launcher.run()
        assert outcome.of("step") == [1, 2, 3]
