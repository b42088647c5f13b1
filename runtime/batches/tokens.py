"""Tokens of text files, memory-mapped: bytes as they are, or a tokenizer's, kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ...errors import RunError

BYTE_VALUES = 256
TOKEN_TYPE = torch.int32
CHARACTERS_AT_ONCE = 1 << 22


class Tokens(Protocol):
    """A long row of tokens of which parts are read."""

    def __len__(self) -> int: ...

    def read(self, low: int, high: int) -> Tensor:
        """Tokens [low, high) as int64."""


class ByteTokens:
    """The bytes of files, one after the other."""

    def __init__(self, files: Sequence[Path]) -> None:
        sizes = [path.stat().st_size for path in files]
        self._parts = [_mapped(path, size, torch.uint8) for path, size in zip(files, sizes, strict=True)]
        self._starts = [0, *accumulate(sizes)]

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, low: int, high: int) -> Tensor:
        """See Tokens."""
        pieces = []
        first = bisect_right(self._starts, low) - 1
        for part, start in zip(self._parts[first:], self._starts[first:], strict=False):
            if start >= high:
                break
            pieces.append(part[max(low - start, 0) : high - start])
        return torch.cat(pieces).to(torch.int64)


class FileTokens:
    """Tokens that `tokenized` wrote."""

    def __init__(self, path: Path) -> None:
        self._tokens = _mapped(path, path.stat().st_size // TOKEN_TYPE.itemsize, TOKEN_TYPE)

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, low: int, high: int) -> Tensor:
        """See Tokens."""
        return self._tokens[low:high].to(torch.int64)


def tokenized(files: Sequence[Path], tokenizer: Path) -> tuple[Path, int]:
    """A file with the tokens of all files, and the tokenizer's vocabulary size.

    The first process of a host that asks makes the file in the user's cache; the others wait for it.
    """
    loaded = _load_tokenizer(tokenizer)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hspmd_compiler" / "tokens"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"{_digest(files, tokenizer)}.tokens"
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _write_tokens(files, loaded, target)
    return target, len(loaded)


def _write_tokens(files: Sequence[Path], tokenizer: Any, target: Path) -> None:
    part = target.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as out:
        for text in _texts(files):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            out.write(torch.tensor(ids, dtype=TOKEN_TYPE).numpy().tobytes())
    part.replace(target)


def _texts(files: Iterable[Path]) -> Iterator[str]:
    """The files' text in pieces that end with a line, so that no word is cut."""
    for path in files:
        with path.open(encoding="utf-8", errors="replace") as opened:
            while lines := opened.readlines(CHARACTERS_AT_ONCE):
                yield "".join(lines)


def _load_tokenizer(folder: Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise RunError(
            "a tokenizer folder needs transformers",
            details=[("reason", str(error))],
            fix="install hspmd-compiler[models], or leave the tokenizer away to train on bytes",
        ) from error
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"no tokenizer can be loaded from {folder}", details=[("reason", reason)]) from error


def _digest(files: Sequence[Path], tokenizer: Path) -> str:
    """Of the content of all files, and of the tokenizer's."""
    digest = hashlib.sha256()
    for path in [*files, *sorted(each for each in tokenizer.iterdir() if each.is_file())]:
        with path.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _mapped(path: Path, size: int, dtype: torch.dtype) -> Tensor:
    if size == 0:
        return torch.empty(0, dtype=dtype)
    return torch.from_file(str(path), shared=False, size=size, dtype=dtype)
