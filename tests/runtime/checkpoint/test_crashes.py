"""A machine that stops between any two things that a save does to a disk: the last good checkpoint stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hspmd_compiler.errors import RunError
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.program import Program
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.saved.checkpoint.checkpointer import Checkpointer
from hspmd_compiler.runtime.saved.checkpoint.folders import kept_steps
from hspmd_compiler.runtime.saved.checkpoint.load import newest
from hspmd_compiler.runtime.saved.safetensors_file import SafetensorsWriter

from ...training.training_cases import STRATEGIES, graph_of, program_for
from .drawn_ranks import Source, ThreadRanks

TOUCHING: tuple[tuple[Any, str], ...] = (
    (SafetensorsWriter, "write"),
    (os, "fsync"),
    (os, "unlink"),
    (os, "rmdir"),
    *((Path, name) for name in ("mkdir", "rename", "replace", "unlink", "open", "touch")),
)
"""What changes a disk, or asks that it be written."""


class Stopped(BaseException):
    """The machine has stopped."""


class Machine:
    """Stops before so many of these; done: those that were."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int | None) -> None:
        self.done: list[str] = []
        self._last = last
        for owner, name in TOUCHING:
            patch.setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, touch: Callable[..., Any]) -> Callable[..., Any]:
        def touched(*given: Any, **named: Any) -> Any:
            if self._last is not None and len(self.done) >= self._last:
                raise Stopped
            self.done.append(f"{name} {_path(given[0]).name}")
            return touch(*given, **named)

        return touched


def _path(given: object) -> Path:
    if isinstance(given, int):
        return Path(os.readlink(f"/proc/self/fd/{given}"))
    return given._temporary if isinstance(given, SafetensorsWriter) else Path(str(given))


@pytest.fixture(scope="module")
def made() -> Program:
    return program_for(graph_of("mlp-ce"), STRATEGIES["one"])


def three_saves(made: Program, directory: Path) -> None:
    """After steps 2, 4 and 6, of which one is kept."""
    ranks = ThreadRanks(made, OptimizerConfig(), 1)

    def work(engine: Engine, data: Source) -> None:
        checkpointer = Checkpointer(engine, data, directory, 2, 1)
        for _ in range(6):
            engine.optimizer.steps += 1
            checkpointer.step_done()
            while checkpointer.is_under_way:
                checkpointer.step_done()
        with suppress(RunError):
            checkpointer.finish()

    ranks.all(work)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_stop_at_any_moment(made: Program, tmp_path: Path, every: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        whole = Machine(patch, None)
        three_saves(made, tmp_path / "whole")
    assert list(kept_steps(tmp_path / "whole")) == [6]
    left = set()
    for last in range(0, len(whole.done), every):
        directory = tmp_path / str(last)
        with pytest.MonkeyPatch.context() as patch:
            Machine(patch, last)
            with suppress(Stopped):
                three_saves(made, directory)
        there, good = list(kept_steps(directory)), newest(directory)
        done = sum(each.startswith("rename step") and each.endswith(".part") for each in whole.done[:last])
        assert (good is None) == (done == 0), whole.done[last]
        assert good is None or good.name == f"step-{there[-1]:08d}", whole.done[last]
        left.add(good and good.name)
    assert left == {None, "step-00000002", "step-00000004", "step-00000006"}


def test_all_is_on_the_disk_before_it_has_a_name(made: Program, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(patch, None)
        three_saves(made, tmp_path / "kept")
    name = next(each.split()[1] for each in machine.done if each.startswith("mkdir step-00000004."))
    placed = machine.done.index(f"rename {name}")
    before = machine.done[machine.done.index(f"mkdir {name}") : placed]
    assert [each for each in before if each.startswith("fsync")] == [
        next(each for each in before if each.startswith("fsync .rank-0000.safetensors.")),
        "fsync index.json",
        f"fsync {name}",
    ]
    assert before[-1] == f"fsync {name}" and machine.done[placed + 1] == "fsync kept"
    assert machine.done.index("rename step-00000002") > placed + 1
