"""The directory of an artifact, written: the same bytes every time, and whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.codec import encode
from ..base.collection import without_collection
from ..base.log import task
from ..errors import ArtifactError, HspmdError
from ..program.program import RankProgram
from . import paths
from .bundle_paths import BUNDLE
from .bundle_paths import FORMAT as BUNDLE_FORMAT
from .encode_shared import SharingWriter
from .json_text import parse, to_text
from .manifest import FORMAT, FileEntry, manifest_to_json
from .store import Artifact, ProgramHead

if TYPE_CHECKING:
    from torch import Tensor

# Levels of each kind of file that are written one item a line.
CLASS_DEPTH = 4
RANK_DEPTH = 2
TABLE_DEPTH = 1
TOP_DEPTH = 2
STRATEGY_DEPTH = 4

LISTINGS = ((paths.MANIFEST, FORMAT), (BUNDLE, BUNDLE_FORMAT))


def write(
    directory: str | Path,
    artifact: Artifact,
    *,
    weights: Mapping[str, Tensor] | None = None,
    rank: int | None = None,
    force: bool = False,
    links_weights: bool = False,
) -> Artifact:
    """Writes an artifact, or of it what one rank needs; returns it with the manifest, if written whole.

    weights: by canonical parameter name; without them, those of an artifact that was read are copied, or
    with `links_weights` linked to where they lie, so that they take no room. An artifact that is already
    there is replaced in one step; any other directory that is not empty is refused, unless `force`.
    """
    target = Path(directory).resolve()
    with without_collection(), task("write the artifact"), fresh_directory(target, force) as fresh:
        own = artifact.program.ranks if rank is None else [artifact.rank_program(rank)]
        entries = {path: put(fresh, path, text.encode()) for path, text in _texts(artifact, own, rank)}
        sharing = SharingWriter(own)
        with task("write the ranks", len(own)) as progress:
            for each in own:
                path = paths.rank_file(each.rank)
                entries[path] = put(fresh, path, to_text(sharing.encode(each), RANK_DEPTH).encode())
                progress.advance()
        for table, number in sharing.tables.items():
            path = paths.table_file(number)
            entries[path] = put(fresh, path, to_text(list(table), TABLE_DEPTH).encode())
        if weights is not None:
            entries[paths.WEIGHTS] = _put_weights(fresh / paths.WEIGHTS, weights)
        elif artifact.weights is not None:
            if links_weights:
                (fresh / paths.WEIGHTS).symlink_to(artifact.weights.resolve())
            else:
                shutil.copyfile(artifact.weights, fresh / paths.WEIGHTS)
            entries[paths.WEIGHTS] = entry_of(fresh / paths.WEIGHTS)
        manifest = artifact.manifest.with_files(entries, artifact.manifest.rank if rank is None else rank)
        put(fresh, paths.MANIFEST, to_text(manifest_to_json(manifest), TOP_DEPTH).encode())
    return artifact if rank is not None else replace(artifact, manifest=manifest)


def _texts(artifact: Artifact, own: list[RankProgram], rank: int | None) -> Iterator[tuple[str, str]]:
    """(path, text) of every JSON file that isn't a rank's, but the manifest."""
    program = artifact.program
    yield paths.PROGRAM, to_text(encode(ProgramHead.of(program)), TOP_DEPTH)
    for name in sorted({each.class_name for each in own}):
        yield paths.class_file(name), to_text(encode(program.classes[name]), CLASS_DEPTH)
    yield paths.STRATEGY, to_text(artifact.strategy, STRATEGY_DEPTH)
    yield paths.INIT, _rows(artifact.init)
    if rank is None and artifact.manifest.rank is None:
        yield paths.GRAPH, _rows(artifact.graph)
        yield paths.LAYOUTS, _rows(artifact.layouts)
        if artifact.cluster is not None:
            yield paths.CLUSTER, to_text(artifact.cluster, TOP_DEPTH)


def _rows(value: object) -> str:
    """A value of another module: the members of a list, or of the lists in an object, one a line."""
    return to_text(value, TOP_DEPTH if isinstance(value, dict) else 1)


def put(directory: Path, path: str, content: bytes) -> FileEntry:
    """Writes a file inside a directory."""
    file = directory / path
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    return FileEntry(len(content), hashlib.sha256(content).hexdigest())


def _put_weights(file: Path, weights: Mapping[str, Tensor]) -> FileEntry:
    from safetensors.torch import save_file

    save_file({name: weights[name].detach().cpu().contiguous() for name in sorted(weights)}, file)
    return entry_of(file)


def entry_of(file: Path) -> FileEntry:
    """Size and hash of a file that is there."""
    with file.open("rb") as opened:
        return FileEntry(file.stat().st_size, hashlib.file_digest(opened, "sha256").hexdigest())


@contextmanager
def fresh_directory(target: Path, force: bool) -> Iterator[Path]:
    """An empty sibling of `target` that takes its place when the block ends well, and else is gone."""
    check_target(target, force)
    fresh = target.with_name(f".{target.name}.new-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir()
        yield fresh
        _take_place(fresh, target)
    except OSError as error:
        raise ArtifactError(
            f"the artifact can't be written to {target}",
            details=[("reason", error.strerror or str(error))],
            rule="nothing is left half-written: the directory is as it was before",
            fix="name a directory that can be written, with -o",
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def check_target(target: Path, force: bool = False) -> None:
    """Refuses a place that an artifact may not take; worth asking before long work."""
    if Path.cwd().is_relative_to(target.resolve()):
        raise ArtifactError(
            f"{target} is the current folder, or holds it",
            rule="an artifact takes the place of the whole directory",
            fix="name another directory with -o, such as build/NAME",
        )
    if not target.exists() or (
        target.is_dir() and (force or not any(target.iterdir()) or _is_artifact(target))
    ):
        return
    raise ArtifactError(
        f"{target} is there already and is not an artifact",
        details=[("found", "a directory of other things" if target.is_dir() else "a file")],
        rule="only an artifact is replaced",
        fix="name another directory with -o" + (", or replace it with --force" if target.is_dir() else ""),
    )


def _is_artifact(target: Path) -> bool:
    """Whether an artifact or a bundle of any version, whole or damaged, lies there, by its listing."""
    return any(_has_format(target / name, form) for name, form in LISTINGS)


def _has_format(file: Path, form: str) -> bool:
    try:
        value = parse(file.read_bytes(), file.name)
    except (OSError, HspmdError):
        return False
    return isinstance(value, dict) and value.get("format") == form


def _take_place(fresh: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if not target.exists():
        fresh.rename(target)
        return
    target.rename(old)
    try:
        fresh.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
