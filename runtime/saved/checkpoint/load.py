"""Training goes on from a checkpoint, under any strategy; from the one before where the newest is damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from ....base.by_key import by_key
from ....base.name_groups import shortened
from ....base.number_ranges import number_ranges
from ....errors import RunError
from ....program.program import Shard
from ....program.switch_plan import VALUE
from ...batches.data import DataSource
from ...collect import ROOT
from ...engine import Engine
from ...shards import ReadBox
from ..progress import check_goes_on
from .folders import INDEX, folder_of, kept_steps
from .index import SavedTensor, SavedTensors, fingerprint_tensors, of_all_ranks, saved_tensors
from .reader import CheckpointReader

Damaged = Callable[[Path, str], None]
"""Hears of a checkpoint that can't be used, and why."""


def newest(
    directory: Path, on_damaged: Damaged = lambda folder, reason: None, most_steps: int | None = None
) -> Path | None:
    """The newest checkpoint of a folder whose files are as they were written; reads all of them.

    most_steps: of later ones none is taken, for a run that has not come to them.
    """
    for step, folder in reversed(kept_steps(directory).items()):
        if most_steps is not None and step > most_steps:
            continue
        reason = _why_not(folder)
        if not reason:
            return folder
        on_damaged(folder, reason)
    return None


def _why_not(folder: Path) -> str:
    try:
        return CheckpointReader(folder).damage()
    except RunError as error:
        return _reason(error)
    except OSError as error:
        return error.strerror or str(error)


def _reason(error: RunError) -> str:
    return "; ".join([error.what, *(f"{name}: {text}" for name, text in error.details)])


def load_newest(
    engine: Engine, data: DataSource, directory: Path, on_damaged: Damaged = lambda folder, reason: None
) -> Path | None:
    """Go on from the newest checkpoint of a folder that no rank finds damaged, if any; every rank calls this.

    RunError where there are some, and none can be used.
    """
    with engine.transport.call("load_newest"):
        there = cast(list[list[int]], engine.transport.gather_objects(list(kept_steps(directory))))
        steps = sorted({step for held in there for step in held}, reverse=True)
        refused = []
        for folder in (folder_of(directory, step) for step in steps):
            reader, reason = _examined(engine, folder)
            if reader is not None:
                _load(engine, data, reader)
                return folder
            refused.append((folder.name, reason))
            on_damaged(folder, reason)
    if refused:
        raise RunError(f"no checkpoint of {directory} can be used", details=refused[:10])
    return None


def load_checkpoint(engine: Engine, data: DataSource, folder: Path) -> None:
    """Go on from one checkpoint; every rank calls this and reads what it needs. All files are checked.

    The program may be of another strategy, with the same model, global batch and optimizer.
    """
    with engine.transport.call("load_checkpoint"):
        reader, reason = _examined(engine, folder)
        if reader is None:
            raise RunError(f"the checkpoint {folder} can't be used", details=[("reason", reason)])
        _load(engine, data, reader)


def _examined(engine: Engine, folder: Path) -> tuple[CheckpointReader | None, str]:
    """A checkpoint that every rank can use, or why one can't. Each rank reads its share of all files."""
    transport, reader, reason = engine.transport, None, ""
    try:
        reader = CheckpointReader(folder)
        reason = reader.damage(list(reader.index.files)[transport.rank :: transport.world_size])
    except RunError as error:
        reason = _reason(error)
    except OSError as error:
        reason = error.strerror or str(error)
    own = (reason, "" if reader is None else reader.hash)
    told = cast(list[tuple[str, str]], transport.gather_objects(own))
    wrong = by_key((text, rank) for rank, (text, _) in enumerate(told) if text)
    others = [rank for rank, (text, found) in enumerate(told) if not text and found != told[ROOT][1]]
    if others and not told[ROOT][0]:
        wrong[f"another {INDEX} than rank {ROOT} has"] = others
    reasons = [f"{_these(ranks, len(told))}: {text}" for text, ranks in wrong.items()]
    return (None, "; ".join(reasons[:5])) if wrong else (reader, "")


def _these(ranks: Sequence[int], world_size: int) -> str:
    """For people: what is the same on all is told once."""
    if len(ranks) == world_size > 1:
        return "on all ranks"
    return f"rank {number_ranges(ranks)}"


def _load(engine: Engine, data: DataSource, reader: CheckpointReader) -> None:
    index = reader.index
    _check_model(reader, of_all_ranks(engine.transport, saved_tensors(engine)), engine)
    check_goes_on(engine, index.progress, index.moment_shapes)
    engine.read_parameters(lambda shard: reader.reader_of(VALUE, shard), unsaved_too=True)

    def moment_of(moment: str, shard: Shard) -> ReadBox | None:
        return reader.reader_of(moment, shard) if reader.holds(moment, shard.name) else None

    engine.read_moments(moment_of, index.progress.steps)
    engine.seed, engine.lr = index.progress.seed, index.lr
    data.load_state_dict(index.progress.data)
    index.random.restore()


def _check_model(reader: CheckpointReader, here: SavedTensors, engine: Engine) -> None:
    """The checkpoint is of this model: all that differs, at once."""
    saved = reader.index.tensors
    wrong = [(name, "the program has no such parameter") for name in saved if name not in here]
    for name, tensor in here.items():
        if name not in saved:
            wrong.append((name, "missing"))
        elif (found := _described(saved[name])) != (wanted := _described(tensor)):
            wrong.append((name, f"{found} in the checkpoint, {wanted} here"))
    if not wrong and reader.index.model_fingerprint != fingerprint_tensors(here, engine.program):
        wrong.append(("tied names", "others than here"))
    if wrong:
        raise RunError(
            f"the checkpoint {reader.folder} is of another model",
            details=shortened(wrong),
            rule="training goes on with the same parameters and buffers, of the same types",
            fix="weights alone, which may be of other types, go by `hspmd run --save FILE` and `--init FILE`",
        )


def _described(tensor: SavedTensor) -> str:
    kind = "a buffer" if tensor.is_buffer else "trained" if tensor.trainable else "not trained"
    return f"{tensor.dtype}{list(tensor.shape)}, {kind}"
