"""Keeps what training goes on from, every so many steps, while steps go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from ....artifact.manifest import FileEntry
from ....errors import RunError
from ...batches.data import DataSource
from ...engine import Engine
from ..progress import Progress
from .background import BackgroundWork
from .folders import clear_left_over, kept_steps
from .index import CheckpointIndex, fingerprint_tensors, of_all_ranks, saved_tensors
from .keeper import find_keeper
from .save import KeptFolder, Save, SavePhase, Stand
from .snapshot import take_snapshot

POLL_S = 0.05
NOT_TAKEN = -1


@dataclass(frozen=True, slots=True)
class CheckpointNews:
    """What becomes of the checkpoint of a step.

    is_late: it is taken after a later step, when the one before is whole. problem: why there is none.
    size_bytes, seconds: of one that is whole, from the step to its name. copied_s: of these, what training
    waited.
    """

    step: int
    is_late: bool = False
    problem: str = ""
    size_bytes: int = 0
    seconds: float = 0.0
    copied_s: float = 0.0


class Checkpointer:
    """Makes checkpoints of an engine and its data in a folder. Every rank has one and calls the same methods.

    every: steps between two. keep: as many are kept, the oldest goes when a newer one is whole; None: all.
    tell: hears what becomes of each. One is under way at a time; one that is due meanwhile is taken as soon
    as the one before is whole. One that fails leaves the older ones as they are, and training goes on. What
    a run that died left unfinished is deleted here.
    """

    def __init__(
        self,
        engine: Engine,
        data: DataSource,
        directory: Path,
        every: int,
        keep: int | None = None,
        tell: Callable[[CheckpointNews], None] = lambda news: None,
    ) -> None:
        self._engine, self._data, self._every, self._tell = engine, data, every, tell
        with engine.transport.call("checkpoint"):
            self._folder = KeptFolder(directory, keep, *find_keeper(engine.transport, directory))
            if self._folder.is_keeper:
                clear_left_over(directory)
            self._tensors = of_all_ranks(engine.transport, saved_tensors(engine))
            self._folder.whole = [step for step in kept_steps(directory) if step <= engine.steps]
            is_kept = engine.steps in (0, *self._folder.whole)
            # Where a rank was lost while the last step was kept, who goes on has no step left to take.
            self._taken = engine.steps if all(engine.transport.gather_objects(is_kept)) else NOT_TAKEN
        self._save: Save | None = None
        self._cleaning: BackgroundWork[None] | None = None
        self._is_due = self._is_late = False
        self._problem = ""

    @property
    def is_under_way(self) -> bool:
        """Whether one is being written; the same on every rank."""
        return self._save is not None

    def step_done(self) -> None:
        """A step is taken: look at what is under way, begin what is due."""
        step = self._engine.steps
        self._is_due = self._is_due or (step % self._every == 0 and step != self._taken)
        with self._engine.transport.call("checkpoint", meets=False):
            self._go_on()
        if self._is_due and self._save is None:
            self._begin()
        elif self._is_due and not self._is_late:
            self._is_late = True
            self._tell(CheckpointNews(step, is_late=True))

    def finish(self) -> None:
        """Keep the last step, too, and wait for it; RunError where it can't be kept."""
        with self._engine.transport.call("checkpoint"):
            self._settle()
            if self._taken != self._engine.steps:
                self._begin()
                self._settle()
            self._engine.transport.gather_objects(None)  # an error of one would end who still deletes
        if self._problem:
            raise RunError(
                f"the checkpoint of step {self._taken} can't be written to {self._folder.directory}",
                details=[("reason", self._problem)],
                rule="a run ends well only with the checkpoint of its last step; older ones stay as they are",
                fix="make room or name another folder, and go on from the newest with --resume",
            )

    def abandon(self) -> None:
        """Give up what is under way, on this rank alone: ranks were lost, and another one goes on.

        Writing is not waited for: a thread that still writes has a folder of its own, which goes meanwhile.
        """
        if self._save is not None:
            self._save.give_up()
            self._save = None

    def _begin(self) -> None:
        begun = perf_counter()
        snapshot = take_snapshot(self._engine, Progress.of(self._engine, self._data))
        self._save = Save(self._folder, snapshot, self._describe, begun)
        self._taken = self._engine.steps
        self._is_due = self._is_late = False

    def _settle(self) -> None:
        """Wait until nothing is under way; no rank waits long for another in one reduction."""
        while self._save is not None:
            self._go_on(POLL_S)
        self.finish_cleaning()

    def _go_on(self, wait_s: float = 0.0) -> None:
        save = self._save
        if save is None:
            return
        save.go_on(self._engine.transport, wait_s)
        if save.phase is SavePhase.OVER:
            self.finish_cleaning()
            self._save, self._cleaning, self._problem = None, save.clean(), save.problem
            self._tell(
                CheckpointNews(save.step, False, save.problem, save.size_bytes, save.seconds, save.copied_s)
            )

    def finish_cleaning(self) -> None:
        """Wait until what earlier ones left is deleted."""
        if self._cleaning is not None:
            self._cleaning.wait()

    def _describe(self, stand: Stand, files: Mapping[str, FileEntry]) -> CheckpointIndex:
        return CheckpointIndex(
            ranks=self._engine.transport.world_size,
            progress=stand.progress,
            lr=stand.lr,
            random=stand.random,
            optimizer=self._engine.optimizer.config.to_json(),
            model_fingerprint=fingerprint_tensors(self._tensors, self._engine.program),
            tensors=self._tensors,
            files=dict(files),
        )
