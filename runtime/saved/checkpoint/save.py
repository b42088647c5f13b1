"""One checkpoint on its way to the disk.

It goes through phases. In each, every rank has work for a thread of its own, or none; between two steps all
ranks add up, in one small reduction, who has ended. When all have, the next phase begins.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import cast

import torch

from ....artifact.manifest import FileEntry
from ...collect import ROOT
from ...transport import Transport
from ..progress import Progress
from .background import BackgroundWork
from .folders import kept_steps, put_in_place, remove, unfinished
from .index import CheckpointIndex, write_index
from .random_state import RandomState
from .snapshot import Snapshot, write_snapshot


class SavePhase(Enum):
    """Of a save."""

    WRITE = "write"  # every rank its own file
    PLACE = "place"  # who keeps the folder: the index, and the name
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Stand:
    """Where training stood, as rank 0 tells it."""

    progress: Progress
    random: RandomState
    lr: float


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What one rank tells the others at the end of a phase. stand: of rank 0."""

    files: Mapping[str, FileEntry]
    problem: str
    stand: Stand | None


@dataclass(slots=True)
class KeptFolder:
    """The folder of a run, which has a name. keep: as many checkpoints stay, None: all.

    is_keeper: whether this rank gives the folder its names. whole: steps of those that count.
    """

    directory: Path
    keep: int | None
    is_keeper: bool
    run: str
    whole: list[int] = field(default_factory=list)

    def part(self, step: int) -> Path:
        """Where the checkpoint of a step is written."""
        return unfinished(self.directory, step, self.run)

    def place(self, step: int, index: CheckpointIndex) -> None:
        """A checkpoint whose files are all on the disk."""
        if self.is_keeper:
            write_index(self.part(step), index)
            put_in_place(self.directory, step, self.run)

    def clean(self, step: int, has_failed: bool) -> None:
        """Delete what a newer one makes needless, or one that has failed."""
        if not has_failed:
            self.whole = [*(each for each in self.whole if each != step), step]
        if not self.is_keeper:
            return
        if has_failed:
            shutil.rmtree(self.part(step), ignore_errors=True)
        elif self.keep is not None:
            there = [each for each in kept_steps(self.directory) if each <= step]
            remove(self.directory, set(there) - set(self.whole[-self.keep :]))


class Save:
    """A save under way. describe: makes the index. begun: when what a rank owns began to be copied.

    problem: why it failed, known when it is over. copied_s: what training waited for the copy.
    """

    def __init__(
        self,
        folder: KeptFolder,
        snapshot: Snapshot,
        describe: Callable[[Stand, Mapping[str, FileEntry]], CheckpointIndex],
        begun: float,
    ) -> None:
        self.step = snapshot.progress.steps
        self.phase = SavePhase.WRITE
        self.problem = ""
        self.size_bytes = 0
        self._folder, self._describe = folder, describe
        self._begun, self.copied_s = begun, perf_counter() - begun
        self._stand = Stand(snapshot.progress, snapshot.random, snapshot.lr)
        part = folder.part(self.step)
        self._work: BackgroundWork[Mapping[str, FileEntry]] = BackgroundWork(
            lambda is_given_up: write_snapshot(part, snapshot, is_given_up)
        )

    @property
    def seconds(self) -> float:
        """Since it began."""
        return perf_counter() - self._begun

    def go_on(self, transport: Transport, wait_s: float = 0.0) -> None:
        """One look at it between two steps, by all ranks.

        wait_s: seconds that this rank waits for its own work before.
        """
        self._work.wait(wait_s)
        ended = torch.tensor(float(self._work.is_over), dtype=torch.float64, device=transport.device)
        if float(transport.sum_over_ranks(ended)) < transport.world_size:
            return
        told = self._told(transport)
        self.problem = "; ".join(
            f"rank {rank}: {each.problem}" for rank, each in enumerate(told) if each.problem
        )
        if self.phase is SavePhase.WRITE and not self.problem:
            self._place(told)
        else:
            self.phase = SavePhase.OVER

    def clean(self) -> BackgroundWork[None]:
        """Delete, beside what goes on, what this one leaves: an older one, or its own part of what failed."""
        return BackgroundWork(lambda _: self._folder.clean(self.step, bool(self.problem)))

    def give_up(self) -> None:
        """End what this rank writes; one that is being given its name gets it."""
        self._work.give_up()
        if self.phase is SavePhase.PLACE:
            self._work.wait()

    def _told(self, transport: Transport) -> list[SaveReport]:
        stand = self._stand if transport.rank == ROOT and self.phase is SavePhase.WRITE else None
        own = SaveReport(self._work.value or {}, self._work.problem, stand)
        return cast(list[SaveReport], transport.gather_objects(own))

    def _place(self, told: list[SaveReport]) -> None:
        files = {name: entry for each in told for name, entry in each.files.items()}
        self.size_bytes = sum(entry.size for entry in files.values())
        stand = told[ROOT].stand
        assert stand is not None, "rank 0 tells where training stood"

        def place(_: Callable[[], bool]) -> Mapping[str, FileEntry]:
            self._folder.place(self.step, self._describe(stand, dict(sorted(files.items()))))
            return {}

        self.phase, self._work = SavePhase.PLACE, BackgroundWork(place)
