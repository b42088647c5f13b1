"""Files that a list names with their sizes and hashes: none is believed before both agree."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import ArtifactError
from .manifest import FileEntry

MANIFEST_LIMIT = 1 << 28


class CheckedFiles:
    """Files of a directory by what a listing in it says of them. is_ours: names that can be in a listing."""

    def __init__(
        self,
        directory: Path,
        entries: Mapping[str, FileEntry],
        listing: str,
        is_ours: Callable[[str], bool],
    ) -> None:
        self.directory = directory
        self._entries, self._listing, self._is_ours = entries, listing, is_ours

    def checked(self, path: str) -> Path:
        """The place of a file whose size and hash are those of the listing."""
        entry = self._entries.get(path)
        file = self.directory / path
        if entry is None or not self._is_ours(path):
            raise ArtifactError(
                f"the artifact has no {path}",
                rule="the manifest lists every file of the artifact",
                fix="compile again",
            )
        size = size_of(file, path)
        found = sha256_of(file) if size == entry.size else "not computed"
        if found != entry.sha256:
            raise ArtifactError(
                f"{path} was changed after it was compiled",
                details=[
                    ("size", f"{size} bytes, in the manifest {entry.size}"),
                    ("sha256", f"{found}, in the manifest {entry.sha256}"),
                ],
                rule=f"every file has the size and sha256 that {self._listing} lists",
                fix="copy the artifact again, or compile again",
            )
        return file


def check_directory(directory: Path) -> None:
    """Refuses what is no directory, before a listing is looked for in it."""
    if not directory.is_dir():
        raise ArtifactError(
            f"there is no artifact at {directory}",
            details=[("found", "a file" if directory.exists() else "nothing")],
            fix="name the directory that `hspmd compile -o` wrote",
        )


def read_limited(file: Path, path: str, limit: int) -> bytes:
    """The content of a file that isn't larger than any of its kind. path: its name in errors."""
    size = size_of(file, path)
    if size > limit:
        raise ArtifactError(
            f"{path} is too large to be a file of an artifact",
            details=[("size", f"{size} bytes"), ("limit", f"{limit} bytes")],
        )
    return file.read_bytes()


def size_of(file: Path, path: str) -> int:
    """Bytes of a file that is there."""
    try:
        return file.stat().st_size if file.is_file() else _missing(path)
    except OSError as error:
        raise ArtifactError(
            f"{path} can't be read", details=[("reason", error.strerror or str(error))]
        ) from error


def sha256_of(file: Path) -> str:
    """In hex digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _missing(path: str) -> int:
    raise ArtifactError(
        f"the artifact has no file {path}",
        rule="an artifact is a directory with a manifest.json and every file that it lists",
        fix="name the directory that `hspmd compile -o` wrote, or compile again",
    )
