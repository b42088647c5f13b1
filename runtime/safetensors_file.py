"""Safetensors files: read box by box, written one tensor at a time so that only one is in memory."""

from __future__ import annotations

import ctypes
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

from ..artifact.boxes import slices
from ..comm_plan import Box
from ..errors import RunError

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

ALIGNMENT = 8


class SafetensorsReader:
    """An open file; tensors are mapped, and only the boxes that are asked for are read."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise RunError(f"there is no weights file {path}", fix="name a .safetensors file")
        try:
            self._file = cast(Any, safe_open(str(path), framework="pt"))
            self.shapes = {
                name: tuple(self._file.get_slice(name).get_shape())
                for name in self._file.keys()  # noqa: SIM118
            }
        except (SafetensorError, OSError) as error:
            raise RunError(
                f"{path} is not a safetensors file", details=[("reason", str(error).splitlines()[0])]
            ) from error

    def read_box(self, name: str, view: tuple[int, ...], box: Box) -> Tensor:
        """A box of the tensor viewed as `view`; of its rows only those that the box touches are read."""
        shape = self.shapes[name]
        part = self._file.get_slice(name)
        if view == shape and shape:
            return _tensor(part[slices(box)])
        if not shape or not view or view[0] == 0 or shape[0] % view[0]:
            return _tensor(self._file.get_tensor(name)).reshape(view)[slices(box)]
        low, high = box[0]
        rows = shape[0] // view[0]
        read = _tensor(part[low * rows : high * rows])
        return read.reshape(high - low, *view[1:])[slices(((0, high - low), *box[1:]))]


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor), "safetensors was opened for torch"
    return value


class SafetensorsWriter:
    """Writes tensors in the order of `entries` to a temporary file, which `with` renames at the end.

    entries: (name, dtype, shape), wide dtypes first, so that each tensor is aligned.
    An error inside the `with` block leaves no file behind.
    """

    def __init__(self, path: Path, entries: Iterable[tuple[str, str, tuple[int, ...]]]) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        entries = list(entries)
        self._left = [name for name, _, _ in entries]
        try:
            self._file = self._temporary.open("wb")
        except OSError as error:
            raise RunError(f"{path} can't be written", details=[("reason", str(error))]) from error
        self._file.write(_header(entries))

    def __enter__(self) -> SafetensorsWriter:
        return self

    def write(self, name: str, tensor: Tensor) -> None:
        """The next tensor."""
        assert self._left and self._left[0] == name, "tensors are written in the order of the header"
        self._left.pop(0)
        data = tensor.detach().cpu().contiguous()
        size = data.numel() * data.element_size()
        if size:
            self._file.write((ctypes.c_char * size).from_address(data.data_ptr()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None and not self._left:
            self._temporary.replace(self._path)
        else:
            with suppress(OSError):
                self._temporary.unlink()


def _header(entries: Iterable[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """Length and JSON of the header; `format` is what transformers asks for."""
    header: dict[str, Mapping[str, object]] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape in entries:
        end = offset + math.prod(shape) * getattr(torch, dtype).itemsize
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
