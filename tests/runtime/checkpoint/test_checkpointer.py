"""Checkpoints appear whole while steps go on, one at a time; what fails leaves the older ones."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
import torch
from torch import Tensor

from hspmd_compiler.errors import RunError
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.program import Program
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.saved.checkpoint import save as save_module
from hspmd_compiler.runtime.saved.checkpoint.checkpointer import Checkpointer, CheckpointNews
from hspmd_compiler.runtime.saved.checkpoint.folders import kept_steps
from hspmd_compiler.runtime.saved.checkpoint.load import load_checkpoint, newest
from hspmd_compiler.runtime.saved.safetensors_file import SafetensorsWriter

from ...training.test_zero_training import CASES
from ...training.training_cases import graph_of, program_for
from .drawn_ranks import Source, ThreadRanks

ADAMW = OptimizerConfig()


@pytest.fixture(scope="module")
def made() -> Program:
    return program_for(graph_of("mlp-ce"), replace(CASES["dp2"], zero=1))


class Run:
    """One rank of a training without steps' work. news: what it was told."""

    def __init__(self, engine: Engine, data: Source, directory: Path, options: dict[str, int]) -> None:
        self.engine, self.news = engine, list[CheckpointNews]()
        self.checkpointer = Checkpointer(
            engine, data, directory, **({"every": 2} | options), tell=self.news.append
        )

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.optimizer.steps += 1
            self.checkpointer.step_done()

    def meet(self) -> None:
        """Wait until all ranks are here."""
        self.engine.transport.gather_objects(None)

    def settled(self) -> None:
        """Steps take their time: what is under way ends meanwhile."""
        while self.checkpointer.is_under_way:
            self.checkpointer.step_done()
        self.checkpointer.finish_cleaning()


def trained(
    made: Program, directory: Path, job: Callable[[Run], None], start: int = 0, **options: int
) -> list[CheckpointNews]:
    """`job` on each rank; what rank 0 is told."""
    ranks = ThreadRanks(made, ADAMW, 1, start)

    def work(engine: Engine, data: Source) -> list[CheckpointNews]:
        run = Run(engine, data, directory, options)
        job(run)
        return run.news

    return ranks.all(work)[0]


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def in_turn(run: Run, steps: int) -> None:
    """Each save ends before the next step."""
    for _ in range(steps):
        run.steps(1)
        run.settled()


def test_every_so_many_steps_and_the_last(made: Program, tmp_path: Path) -> None:
    def job(run: Run) -> None:
        in_turn(run, 5)
        run.checkpointer.finish()

    directory = tmp_path / "new" / "run"
    news = trained(made, directory, job)
    assert [each.step for each in news] == [2, 4, 5]
    assert names(directory) == ["step-00000002", "step-00000004", "step-00000005"]
    assert all(each.size_bytes > 0 and 0 < each.copied_s <= each.seconds for each in news)


@pytest.mark.parametrize(("keep", "left"), [(1, [8]), (2, [6, 8]), (9, [2, 4, 6, 8])])
def test_the_oldest_go(made: Program, tmp_path: Path, keep: int, left: list[int]) -> None:
    trained(made, tmp_path, lambda run: in_turn(run, 8), keep=keep)
    assert list(kept_steps(tmp_path)) == left


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Nothing is written before it is set."""
    opened, write = Event(), SafetensorsWriter.write

    def late(self: SafetensorsWriter, name: str, tensor: Tensor) -> None:
        assert opened.wait(20)
        write(self, name, tensor)

    monkeypatch.setattr(SafetensorsWriter, "write", late)
    yield opened
    opened.set()


def test_steps_go_on_meanwhile_and_the_next_is_late(made: Program, tmp_path: Path, gate: Event) -> None:
    """What is written is of step 2, though seven steps are taken before it is."""

    def job(run: Run) -> None:
        run.steps(7)
        (part,) = names(tmp_path)
        assert part.startswith("step-00000002.") and part.endswith(".part")
        for value in run.engine.params.values():
            value.zero_()
        gate.set()
        run.settled()
        run.checkpointer.finish()

    news = trained(made, tmp_path, job)
    assert [(each.step, each.is_late) for each in news] == [(4, True), (2, False), (7, False)]
    again = ThreadRanks(made, ADAMW, None)
    again.all(lambda engine, data: load_checkpoint(engine, data, tmp_path / "step-00000002"))
    wanted = ThreadRanks(made, ADAMW, 1)
    for one, two in zip(again.engines, wanted.engines, strict=True):
        assert all(torch.equal(value, two.params[name]) for name, value in one.params.items())


def test_a_rank_that_gives_up_leaves_nothing_behind(made: Program, tmp_path: Path, gate: Event) -> None:
    """As a run that lost a rank does, before another Checkpointer goes on."""

    def job(run: Run) -> None:
        run.steps(2)
        work = run.checkpointer._save._work
        run.checkpointer.abandon()
        again = Checkpointer(run.engine, Source(), tmp_path, 2)
        run.meet()
        assert names(tmp_path) == []
        gate.set()
        work.wait()
        again.finish()

    trained(made, tmp_path, job)
    assert names(tmp_path) == ["step-00000002"]


def test_the_last_step_is_kept_though_a_rank_was_lost_while_it_was(made: Program, tmp_path: Path) -> None:
    """Who goes on has no step left to take. One that is kept already isn't written again."""

    def job(run: Run) -> None:
        run.steps(3)
        run.checkpointer.abandon()
        for number in range(2):
            again = Checkpointer(run.engine, Source(), tmp_path, 2, tell=run.news.append)
            again.finish()
            assert [each.step for each in run.news] == [3], number

    trained(made, tmp_path, job)
    assert names(tmp_path) == ["step-00000003"]


@contextmanager
def small_disk(run: Run) -> Iterator[None]:
    """Files of the process can't grow beyond some bytes; an error says so, as of a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    run.meet()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
    run.meet()
    try:
        yield
        run.meet()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    run.meet()


def test_a_full_disk_leaves_the_older_ones_and_steps_go_on(made: Program, tmp_path: Path) -> None:
    def job(run: Run) -> None:
        in_turn(run, 2)
        with small_disk(run):
            in_turn(run, 2)
        in_turn(run, 2)
        run.checkpointer.finish()

    news = trained(made, tmp_path, job, keep=1)
    assert [(each.step, bool(each.problem)) for each in news] == [(2, False), (4, True), (6, False)]
    assert "rank 1: " in news[1].problem and "File too large" in news[1].problem
    assert names(tmp_path) == ["step-00000006"]


def test_a_run_whose_last_save_fails_ends_with_an_error(made: Program, tmp_path: Path) -> None:
    def job(run: Run) -> None:
        in_turn(run, 3)
        with small_disk(run):
            run.checkpointer.finish()

    with pytest.raises(RunError, match=r"(?s)the checkpoint of step 3 can't be written to .*File too large"):
        trained(made, tmp_path, job, keep=1)
    assert names(tmp_path) == ["step-00000002"]


@pytest.mark.parametrize("what", ["write_index", "put_in_place"])
def test_an_index_that_can_not_be_written_is_like_a_full_disk(
    made: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def job(run: Run) -> None:
        in_turn(run, 2)
        run.meet()
        monkeypatch.setattr(save_module, what, full)
        run.meet()
        in_turn(run, 2)

    news = trained(made, tmp_path, job, keep=1)
    assert [bool(each.problem) for each in news] == [False, True]
    assert "No space left on device" in news[1].problem
    assert names(tmp_path) == ["step-00000002"]


def test_what_a_run_that_died_left_is_deleted(made: Program, tmp_path: Path) -> None:
    for name in ("step-00000004.1f.part", "step-00000002.old.part", "step-00000009", "mine.part", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-0000.safetensors").write_text("half")
    trained(made, tmp_path, lambda run: None)
    assert names(tmp_path) == ["mine", "mine.part", "step-00000009"]


def test_a_run_that_went_on_from_an_earlier_one(made: Program, tmp_path: Path) -> None:
    """The newer one is damaged: it is replaced, and until then the earlier one stays."""
    trained(made, tmp_path, lambda run: in_turn(run, 4))
    (tmp_path / "step-00000004" / "index.json").write_text("{}")
    assert newest(tmp_path) == tmp_path / "step-00000002"
    trained(made, tmp_path, lambda run: in_turn(run, 1), start=2, keep=1, every=1)
    assert list(kept_steps(tmp_path)) == [3, 4]
    trained(made, tmp_path, lambda run: in_turn(run, 1), start=3, keep=1, every=1)
    assert names(tmp_path) == ["step-00000004"] and newest(tmp_path) == tmp_path / "step-00000004"


def test_hosts_with_disks_of_their_own(made: Program, tmp_path: Path) -> None:
    """Each keeps the files of its ranks, and the index of all; they are read where they are put together."""
    ranks = ThreadRanks(made, ADAMW, 1)

    def work(engine: Engine, data: Source) -> None:
        run = Run(engine, data, tmp_path / f"host{engine.rank}", {"keep": 1})
        in_turn(run, 4)

    ranks.all(work)
    own = [tmp_path / f"host{rank}" / "step-00000004" for rank in range(2)]
    assert [names(each) for each in own] == [
        ["index.json", f"rank-000{rank}.safetensors"] for rank in range(2)
    ]
    assert newest(tmp_path / "host0") is None
    (own[1] / "rank-0001.safetensors").rename(own[0] / "rank-0001.safetensors")
    assert newest(tmp_path / "host0") == own[0]


def test_a_folder_that_can_not_be_written_is_told_before_the_first_step(
    made: Program, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="checkpoints can't be written to") as caught:
        trained(made, tmp_path / "file", lambda run: None)
    assert [name for name, _ in caught.value.details] == ["rank 0", "rank 1"]
