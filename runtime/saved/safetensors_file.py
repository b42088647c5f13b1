"""Safetensors files: read box by box, written one tensor at a time so that only one is in memory."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...base.comm_plan import Box
from ...errors import RunError
from ...program.boxes import slices

CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}

ALIGNMENT = LENGTH = 8
"""Bytes that a header ends at a multiple of; and of the number in front of it, which is its length."""
HASH, NO_HASH = "sha256", "0" * 64
"""Of the whole file, with zeros in its own place."""
WEIGHTS_KEY, STATE_KEY = "hspmd_weights", "hspmd_training_state"
"""In the header of what `--save` and `--save-state` write; a file without either came from elsewhere."""
HASHED_AT_ONCE = 1 << 20


class SafetensorsReader:
    """An open file; tensors are mapped, and only the boxes that are asked for are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise RunError(f"{path} is a folder", fix=file_in(path))
        if not path.is_file():
            raise RunError(f"there is no weights file {path}", fix="name a .safetensors file")
        try:
            self._file = cast(Any, safe_open(str(path), framework="pt"))
            self.metadata: Mapping[str, str] = self._file.metadata() or {}
            self.size = path.stat().st_size
            self.shapes = {
                name: tuple(self._file.get_slice(name).get_shape())
                for name in self._file.keys()  # noqa: SIM118
            }
        except (SafetensorError, OSError) as error:
            raise RunError(
                f"{path} is not a safetensors file", details=[("reason", str(error).splitlines()[0])]
            ) from error

    @property
    def written_hash(self) -> str:
        """The hash that was written with the file, empty if none was."""
        return self.metadata.get(HASH, "")

    def damage(self) -> str | None:
        """Why the file is not the one that was written, None if it is; reads all of it."""
        written = self.written_hash
        if not written:
            return "it has no hash"
        with self.path.open("rb") as file:
            head = file.read(LENGTH)
            head += file.read(int.from_bytes(head, "little"))
            digest = hashlib.sha256(head.replace(_field(written), _field(NO_HASH)))
            while block := file.read(HASHED_AT_ONCE):
                digest.update(block)
        return None if digest.hexdigest() == written else "its content doesn't match its hash"

    def whole(self, name: str) -> Tensor:
        """A whole tensor."""
        return _tensor(self._file.get_tensor(name))

    def read_box(self, name: str, view: tuple[int, ...], box: Box) -> Tensor:
        """A box of the tensor viewed as `view`; of its rows only those that the box touches are read."""
        shape = self.shapes[name]
        part = self._file.get_slice(name)
        if view == shape and shape:
            return _tensor(part[slices(box)])
        if not shape or not view or view[0] == 0 or shape[0] % view[0]:
            return self.whole(name).reshape(view)[slices(box)]
        low, high = box[0]
        rows = shape[0] // view[0]
        read = _tensor(part[low * rows : high * rows])
        return read.reshape(high - low, *view[1:])[slices(((0, high - low), *box[1:]))]


def file_in(folder: Path) -> str:
    """What to name instead of a folder."""
    found = sorted(each.name for each in folder.glob("*.safetensors"))
    if len(found) == 1:
        return f"name the file in it, {folder / found[0]}"
    return "name one .safetensors file that holds all weights" + (
        f"; the folder has {len(found)}, which must be joined into one first" if found else ""
    )


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor), "safetensors was opened for torch"
    return value


class SafetensorsWriter:
    """Writes tensors in the order of `entries` to a temporary file, which `with` renames at the end.

    entries: (name, dtype, shape), wide dtypes first, so that each tensor is aligned.
    An error inside the `with` block leaves no file behind. metadata: texts for the header; where there are
    any, a hash of the whole file is put beside them, unless it is kept elsewhere (`sha256`).
    """

    def __init__(
        self,
        path: Path,
        entries: Iterable[tuple[str, str, tuple[int, ...]]],
        metadata: Mapping[str, str] | None = None,
        hashes_itself: bool = True,
    ) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        entries = list(entries)
        self._left = [name for name, _, _ in entries]
        try:
            self._file = self._temporary.open("wb")
        except OSError as error:
            raise _cant_be_written(path, error) from error
        self._has_own_hash = bool(metadata) and hashes_itself
        own = {HASH: NO_HASH} if self._has_own_hash else {}
        self._head = _header(entries, {**(metadata or {}), **own})
        self._digest = hashlib.sha256(self._head) if metadata else None
        self._file.write(self._head)

    def __enter__(self) -> SafetensorsWriter:
        return self

    def write(self, name: str, tensor: Tensor) -> None:
        """The next tensor."""
        assert self._left and self._left[0] == name, "tensors are written in the order of the header"
        self._left.pop(0)
        data = tensor.detach().cpu().contiguous()
        size = data.numel() * data.element_size()
        if size:
            content = (ctypes.c_char * size).from_address(data.data_ptr())
            try:
                self._file.write(content)
            except OSError as error:
                raise _cant_be_written(self._path, error) from error
            if self._digest is not None:
                self._digest.update(content)

    @property
    def sha256(self) -> str:
        """The hash of all that was written, with zeros in the place of the file's own."""
        assert self._digest is not None, "of a file with metadata"
        return self._digest.hexdigest()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._left:
                self._close_whole()
                self._temporary.replace(self._path)
        except OSError as failed:
            raise _cant_be_written(self._path, failed) from failed
        finally:
            with suppress(OSError):
                self._file.close()  # tries to write what a full disk didn't take
            self._temporary.unlink(missing_ok=True)

    def _close_whole(self) -> None:
        """All of it lies on the disk before it takes the place of an older file."""
        if self._digest is not None and self._has_own_hash:
            self._file.seek(self._head.index(_field(NO_HASH)))
            self._file.write(_field(self._digest.hexdigest()))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def check_place(path: Path) -> None:
    """RunError where no file can be written there."""
    try:
        SafetensorsWriter(path, ()).__exit__(RunError, None, None)
    except OSError as error:
        raise _cant_be_written(path, error) from error


def _cant_be_written(path: Path, error: OSError) -> RunError:
    reason = error.strerror or str(error)
    return RunError(
        f"{path} can't be written", details=[("reason", reason)], rule="an older file stays as it is"
    )


def _field(digest: str) -> bytes:
    """The hash as it stands in the header."""
    return f'"{HASH}":"{digest}"'.encode()


def _header(entries: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """Length and JSON of the header; `format` is what transformers asks for."""
    header: dict[str, Mapping[str, object]] = {"__metadata__": {"format": "pt", **metadata}}
    offset = 0
    for name, dtype, shape in entries:
        end = offset + math.prod(shape) * getattr(torch, dtype).itemsize
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(LENGTH, "little") + text
