"""A folder of checkpoints: one folder for each step that was kept, there whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

INDEX = "index.json"
UNFINISHED = ".part"
"""Ends the name of whatever may be deleted: a checkpoint that is being written, or being removed."""
OF_STEP = re.compile(r"step-([0-9]{8,18})", re.ASCII)
LEFT_OVER = re.compile(r"step-[0-9]{8,18}\.[0-9a-z]+\.part", re.ASCII)
OLD = "old"


def folder_of(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return directory / f"step-{step:08d}"


def unfinished(directory: Path, step: int, run: str) -> Path:
    """Where it is written, by a run with this name, or deleted."""
    return directory / f"{folder_of(directory, step).name}.{run}{UNFINISHED}"


def is_checkpoint(path: Path) -> bool:
    """Whether a path is one checkpoint, not a folder of them."""
    return (path / INDEX).is_file()


def kept_steps(directory: Path) -> dict[int, Path]:
    """The checkpoints of a folder by their steps, ascending; nothing where there is no folder."""
    try:
        names = [each.name for each in os.scandir(directory) if each.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found = {int(match[1]): directory / name for name in names if (match := OF_STEP.fullmatch(name))}
    return dict(sorted(found.items()))


def clear_left_over(directory: Path) -> None:
    """Delete what a run that died was writing or removing."""
    for each in list(os.scandir(directory)):
        if LEFT_OVER.fullmatch(each.name):
            shutil.rmtree(each.path, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """The names in a folder are on the disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(directory: Path, step: int, run: str) -> None:
    """Give a checkpoint that a run has written its name, in one rename.

    One of the same step, of a run that went on from an earlier one, makes room. Another rank may have
    renamed it already, where two don't see that their folder is one.
    """
    written, target = unfinished(directory, step, run), folder_of(directory, step)
    older = unfinished(directory, step, OLD)
    if target.exists() and written.exists():
        target.rename(older)
    try:
        written.rename(target)
    except FileNotFoundError:
        if not target.exists():
            raise
    sync_folder(directory)
    shutil.rmtree(older, ignore_errors=True)


def remove(directory: Path, steps: Collection[int]) -> None:
    """Delete checkpoints; one that is deleted in part no longer has the name of one."""
    for step in sorted(steps):
        target, doomed = folder_of(directory, step), unfinished(directory, step, OLD)
        try:
            target.rename(doomed)
        except FileNotFoundError:
            continue
        shutil.rmtree(doomed, ignore_errors=True)
