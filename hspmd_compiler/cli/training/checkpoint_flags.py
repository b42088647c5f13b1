"""Flags of `hspmd run`: when and where training is kept, and from where it goes on."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...runtime.batches.data import DataSource
    from ...runtime.engine import Engine
    from ...runtime.saved.checkpoint.checkpointer import CheckpointNews
    from ...runtime.start.rank_process import Emit

EVERY, KEEP = 100, 2
CHECKPOINT, RESUMED = "checkpoint", "resumed"
"""Records: what becomes of a checkpoint; from which training goes on, or why not from one."""


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FOLDER",
        help="write what training goes on from to FOLDER, while steps go on",
    )
    parser.add_argument(
        "--every", type=int, metavar="N", help=f"steps between two checkpoints (default: {EVERY})"
    )
    parser.add_argument(
        "--keep", type=int, metavar="K", help=f"checkpoints that stay, the newest ones (default: {KEEP})"
    )


def check(args: Namespace) -> list[tuple[str, str]]:
    """What is wrong with them, as (flag, text)."""
    given = (("--every", args.every), ("--keep", args.keep))
    bad = [
        (flag, f"{value}: a whole number above 0") for flag, value in given if value is not None and value < 1
    ]
    if args.checkpoint is None:
        bad += [(flag, "goes with --checkpoint only") for flag, value in given if value is not None]
    elif args.checkpoint.exists() and not args.checkpoint.is_dir():
        bad.append(("--checkpoint", f"{args.checkpoint}: not a folder"))
    elif _kept(args.checkpoint) and not _is_of(args.resume, args.checkpoint):
        text = f"holds checkpoints already: go on from them with --resume {args.checkpoint}, or name another"
        bad.append(("--checkpoint", f"{args.checkpoint}: {text}"))
    elif newer := _newer(args.resume, args.checkpoint):
        text = f"{newer[0]} and so on are" if len(newer) > 1 else f"{newer[0]} is"
        text = f"{text} of later steps and would be taken as this run's: move away, or name another folder"
        bad.append(("--checkpoint", f"{args.checkpoint}: {text}"))
    if args.resume is not None and (reason := _not_resumable(args.resume, args.checkpoint)):
        bad.append(("--resume", f"{args.resume}: {reason}"))
    return bad


def alike(args: Namespace) -> dict[str, str]:
    """What all ranks must be started with alike."""
    return {
        "--checkpoint": str(args.checkpoint is not None),
        "--every": str(args.every),
        "--keep": str(args.keep),
    }


def resumed_files(path: Path | None) -> list[Path]:
    """What says which training a run goes on from: a file, or the indexes of checkpoints."""
    if path is None or path.is_file():
        return [] if path is None else [path]
    from ...runtime.saved.checkpoint.folders import INDEX

    found = [path, *_kept(path)]
    return [folder / INDEX for folder in found if (folder / INDEX).is_file()]


def resume(engine: Engine, data: DataSource, args: Namespace, emit: Emit) -> None:
    """Go on from --resume, if it is given; every rank calls this."""
    from ...runtime.saved.checkpoint.folders import is_checkpoint
    from ...runtime.saved.checkpoint.load import load_checkpoint, load_newest
    from ...runtime.saved.training_state import load_state

    path: Path | None = args.resume
    if path is None:
        return
    if path.is_file():
        load_state(engine, data, path)
    elif is_checkpoint(path):
        load_checkpoint(engine, data, path)
        emit({RESUMED: {"folder": str(path), "problem": ""}})
    else:
        found = load_newest(
            engine,
            data,
            path,
            lambda folder, reason: emit({RESUMED: {"folder": str(folder), "problem": reason}}),
        )
        emit({RESUMED: {"folder": "" if found is None else str(found), "problem": ""}})


@contextmanager
def keeping(engine: Engine, data: DataSource, args: Namespace, emit: Emit) -> Iterator[Callable[[], None]]:
    """What keeps training where it is asked for, called behind each step; every rank enters after `resume`.

    The last step is kept at the end; where an error ends it, what is under way is given up.
    """
    from ...runtime.saved.checkpoint.checkpointer import Checkpointer

    if args.checkpoint is None:
        yield lambda: None
        return

    def tell(news: CheckpointNews) -> None:
        emit({CHECKPOINT: asdict(news)})

    checkpointer = Checkpointer(engine, data, args.checkpoint, args.every or EVERY, args.keep or KEEP, tell)
    try:
        yield checkpointer.step_done
    except BaseException:
        checkpointer.abandon()
        raise
    checkpointer.finish()


def _kept(folder: Path) -> list[Path]:
    """The checkpoints in a folder."""
    from ...runtime.saved.checkpoint.folders import kept_steps

    return list(kept_steps(folder).values())


def _is_of(resumed: Path | None, folder: Path) -> bool:
    """Whether training goes on from this folder, or from one checkpoint of it."""
    return resumed is not None and folder.resolve() in (resumed.resolve(), resumed.resolve().parent)


def _newer(resumed: Path | None, folder: Path) -> list[str]:
    """Checkpoints of a folder that are of later steps than the one of it that training goes on from."""
    kept = [path.resolve() for path in _kept(folder)]
    if resumed is None or resumed.resolve() not in kept:
        return []
    return [path.name for path in kept[kept.index(resumed.resolve()) + 1 :]]


def _not_resumable(path: Path, folder: Path | None) -> str:
    """Why training can't go on from there; a run that keeps its checkpoints there may begin."""
    from ...runtime.saved.checkpoint.folders import is_checkpoint

    if path.is_file() or (folder is not None and path.resolve() == folder.resolve()):
        return ""
    if not path.is_dir():
        return "no such file or folder"
    if is_checkpoint(path) or _kept(path):
        return ""
    from ...runtime.saved.safetensors_file import file_in

    return f"a folder without checkpoints; {file_in(path)}"
