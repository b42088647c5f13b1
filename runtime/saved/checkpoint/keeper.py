"""Which rank gives a folder its names: several ranks may see one folder, others have one of their own."""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path
from typing import cast

from ....errors import RunError
from ...collect import ROOT
from ...transport import Transport
from .folders import sync_folder

NAME = 12
"""Characters of a run's name."""


def find_keeper(transport: Transport, directory: Path) -> tuple[bool, str]:
    """Whether this is the lowest rank that sees this folder, and a name that all ranks have for this run.

    Every rank calls this, and makes the folder. RunError on all ranks where one can't write there. Each rank
    leaves a mark for a moment, and looks whose marks it sees.
    """
    run = cast(list[str], transport.gather_objects(uuid.uuid4().hex[:NAME]))[ROOT]
    marks = [directory / f".rank-{rank}-{run}" for rank in range(transport.world_size)]
    problem = ""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        marks[transport.rank].touch()
        with suppress(OSError):  # of a parent that can't be opened
            sync_folder(directory.parent)
    except OSError as error:
        problem = error.strerror or str(error)
    problems = cast(list[str], transport.gather_objects(problem))
    lowest = next((rank for rank, mark in enumerate(marks) if mark.exists()), transport.rank)
    transport.gather_objects(None)  # nobody takes its mark away before all have looked
    with suppress(OSError):
        marks[transport.rank].unlink(missing_ok=True)
    wrong = [(f"rank {rank}", reason) for rank, reason in enumerate(problems) if reason]
    if wrong:
        raise RunError(
            f"checkpoints can't be written to {directory}",
            details=wrong,
            rule="whether a folder can be written is checked before the work that it is to keep",
            fix="name a folder that every rank can write to",
        )
    return lowest == transport.rank, run
