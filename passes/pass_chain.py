"""What a pass is, and passes one after the other: each timed, checked and, where asked for, dumped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ..base.log import task
from ..errors import InternalError, OptionError

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

MOST_PROBLEMS = 5


class Pass(Generic[A, B]):
    """One step of a compile, a value: its options are its fields. It changes nothing that it is given.

    name: of its file, of its dump and of its time.
    """

    __slots__ = ()

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.name = cls.__module__.rpartition(".")[2]

    def run(self, state: A) -> B:
        """The state of a compile after the step."""
        raise NotImplementedError

    def text(self, before: A, after: B) -> str:
        """What the step decided, as stable text."""
        raise NotImplementedError

    def problems(self, before: A, after: B) -> Iterator[str]:
        """What is not as the next steps take it to be; asked after every run, so it is cheap."""
        raise NotImplementedError

    def slow_problems(self, after: B) -> Iterator[str]:
        """What costs too much to be asked in every compile: asked where it writes a dump, and by tests."""
        return iter(())


@dataclass(slots=True)
class Dump:
    """Writes the text of each step to `NN-name.txt` in a folder; does nothing without one."""

    folder: Path | None
    count: int = 0

    def write(self, name: str, text: Callable[[], str]) -> None:
        """The text is made only if it is written."""
        if self.folder is not None:
            self._write(self.folder, f"{self.count:02d}-{name}.txt", text())
        self.count += 1

    def _write(self, folder: Path, name: str, text: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise OptionError(
                f"the dump can't be written to {folder}",
                details=[("reason", error.strerror or str(error))],
                fix="name a folder that can be written, with --dump (dump= in Python)",
            ) from error


@dataclass(frozen=True, slots=True)
class Chain(Generic[A, B]):
    """Passes in order; one is appended only if it takes what the last one gives."""

    passes: tuple[Pass[Any, Any], ...]

    def then(self, step: Pass[B, C]) -> Chain[A, C]:
        """The chain with one more pass."""
        return Chain((*self.passes, step))

    def joined(self, other: Chain[B, C]) -> Chain[A, C]:
        """The passes of both."""
        return Chain((*self.passes, *other.passes))

    def states(self, state: A) -> Iterator[tuple[Pass[Any, Any], Any, Any]]:
        """Each pass with the states before and behind it, neither timed nor checked."""
        before: Any = state
        for step in self.passes:
            after = step.run(before)
            yield step, before, after
            before = after

    def run(self, state: A, dump: Dump | None = None) -> B:
        """All passes; InternalError, naming the pass, where one leaves what the next can't take."""
        after: Any = state
        for step in self.passes:
            after = run_pass(step, after, Dump(None) if dump is None else dump)
        result: B = after
        return result


def begin(step: Pass[A, B]) -> Chain[A, B]:
    """A chain of one pass."""
    return Chain((step,))


def run_pass(step: Pass[A, B], before: A, dump: Dump) -> B:
    """One pass: timed, checked and dumped."""
    with task(step.name.replace("_", " ")):
        after = step.run(before)
    refuse(step, step.problems(before, after))
    if dump.folder is not None:
        refuse(step, step.slow_problems(after))
    dump.write(step.name, lambda: step.text(before, after))
    return after


def refuse(step: Pass[Any, Any], problems: Iterator[str]) -> None:
    """An InternalError where a pass has left any problem."""
    found = list(islice(problems, MOST_PROBLEMS))
    if found:
        raise InternalError(
            f"the pass {step.name} left what the next one can't take",
            details=[("problem", problem) for problem in found],
            rule="every pass leaves a program that hangs together",
            fix="report this model and strategy, with the files of --dump",
        )
