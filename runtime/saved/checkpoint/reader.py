"""A checkpoint, read box by box: each rank takes the elements that it needs, whoever wrote them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ....base.comm_plan import Box, box_volume
from ....errors import RunError
from ....program.literals import torch_dtype
from ....program.program import Shard
from ....program.switch_plan import VALUE
from ...shards import ReadBox
from ..loaded_names import Shape
from ..safetensors_file import SafetensorsReader
from .index import COPY_AGAIN, read_index
from .overlap import common_box, place_in, shared_runs, sizes_of
from .pieces import PIECES_KEY, Pieces, PieceTable, stored_name, table_problems

MOST_OPEN = 64


@dataclass(frozen=True, slots=True)
class StoredBox:
    """A box of the whole viewed as `view`, in a file from element `start` of the tensor on."""

    file: str
    view: tuple[int, ...]
    box: Box
    start: int


class CheckpointReader:
    """A checkpoint's index, and files that are opened when their elements are asked for.

    RunError where a file is missing or has another size than the index says; `damage` looks at content.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index, self.hash = read_index(folder)
        self._open: dict[str, tuple[SafetensorsReader, Pieces]] = {}
        wrong = [(name, reason) for name in self.index.files if (reason := self._wrong_size(name))]
        if wrong:
            raise RunError(
                f"{folder} is not whole",
                details=wrong[:10],
                rule="a checkpoint is read where all of its files lie in one folder",
                fix=COPY_AGAIN,
            )

    @property
    def steps(self) -> int:
        """Steps that were taken when it was made."""
        return self.index.progress.steps

    def damage(self, files: Sequence[str] | None = None) -> str:
        """Why files, by default all, are not those that were written; empty where they are. Reads them."""
        for name in self.index.files if files is None else files:
            with (self.folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != self.index.files[name].sha256:
                    return f"the content of {name} doesn't match its hash"
        return ""

    def holds(self, kind: str, name: str) -> bool:
        """Whether it has a tensor. kind: `VALUE`, or a moment by torch's name."""
        tensor = self.index.tensors.get(name)
        return tensor is not None and (kind == VALUE or kind in tensor.moments)

    def reader_of(self, kind: str, shard: Shard) -> ReadBox:
        """Reads boxes of a tensor in the view that a shard has of the whole."""
        return lambda box: self.read_box(shard.name, kind, shard.whole_view, box)

    def read_box(self, name: str, kind: str, view: tuple[int, ...], box: Box) -> Tensor:
        """A box of a tensor viewed as `view`; RunError where the files don't hold each element once."""
        tensor = self.index.tensors[name]
        found = torch.empty(sizes_of(box), dtype=torch_dtype(tensor.dtype))
        missing = torch.ones(sizes_of(box), dtype=torch.bool)
        for stored in self._boxes.get(name, ()):
            self._take(stored, stored_name("" if kind == VALUE else kind, name), view, box, found, missing)
        if bool(missing.any()):
            raise self._unfit(name, f"{int(missing.sum())} of {box_volume(box)} elements are in no file")
        return found

    def _take(
        self, stored: StoredBox, tensor: str, view: tuple[int, ...], box: Box, found: Tensor, missing: Tensor
    ) -> None:
        """What of a stored box lies in a box."""
        if stored.view == view:
            common = common_box(stored.box, box)
            if common is None:
                return
            rows: Box = (*common[:1], *stored.box[1:])  # of the stored box those that follow each other
            size = box_volume(rows)
            low = size // (common[0][1] - common[0][0]) * (common[0][0] - stored.box[0][0]) if common else 0
            part = self._elements(stored, tensor, low, low + size, found.dtype)
            self._once(missing[place_in(common, box)], tensor).fill_(False)
            found[place_in(common, box)] = part.view(sizes_of(rows))[place_in(common, rows)]
            return
        shared = shared_runs(stored.view, stored.box, view, box)
        if len(shared.length):
            part = self._elements(stored, tensor, *shared.needed, found.dtype)
            shared.copy(part, found.view(-1))
            taken = torch.zeros_like(missing)
            shared.copy(torch.ones_like(part, dtype=torch.bool), taken.view(-1))
            self._once(missing[taken], tensor)
            missing[taken] = False

    def _once(self, missing: Tensor, tensor: str) -> Tensor:
        if not bool(missing.all()):
            raise self._unfit(tensor, "elements are in two files")
        return missing

    def _elements(self, stored: StoredBox, tensor: str, low: int, high: int, dtype: torch.dtype) -> Tensor:
        """Elements of a stored box, flat."""
        file, _ = self._file(stored.file)
        if tensor not in file.shapes:
            raise self._unfit(tensor, f"{stored.file} lacks it")
        run = ((stored.start + low, stored.start + high),)
        part = file.read_box(tensor, file.shapes[tensor], run)
        if part.dtype != dtype:
            raise self._unfit(tensor, f"{stored.file} has it as {str(part.dtype).removeprefix('torch.')}")
        return part

    @cached_property
    def _boxes(self) -> dict[str, list[StoredBox]]:
        """Where elements of each tensor are."""
        found: dict[str, list[StoredBox]] = {}
        for file in self.index.files:
            for name, piece in self._file(file)[1].items():
                start = 0
                for box in piece.boxes:
                    found.setdefault(name, []).append(StoredBox(file, piece.view, box, start))
                    start += box_volume(box)
        return found

    def _file(self, name: str) -> tuple[SafetensorsReader, Pieces]:
        if name not in self._open:
            if len(self._open) >= MOST_OPEN:
                self._open.pop(next(iter(self._open)))
            file = SafetensorsReader(self.folder / name)
            self._open[name] = file, self._pieces(file, name)
        return self._open[name]

    def _pieces(self, file: SafetensorsReader, name: str) -> Pieces:
        try:
            table = PieceTable.read(file.metadata.get(PIECES_KEY, ""))
        except ValueError as error:
            raise self._unfit(name, f"{PIECES_KEY}: {str(error).splitlines()[0]}") from error
        wholes: dict[str, Shape] = {each: tensor.shape for each, tensor in self.index.tensors.items()}
        problems = list(table_problems(table, wholes, file.shapes))
        if problems:
            raise self._unfit(name, "; ".join(problems[:3]))
        return table.pieces

    def _wrong_size(self, name: str) -> str:
        try:
            size = (self.folder / name).stat().st_size
        except OSError as error:
            return error.strerror or str(error)
        wanted = self.index.files[name].size
        return "" if size == wanted else f"{size:,} bytes, the index says {wanted:,}"

    def _unfit(self, what: str, reason: str) -> RunError:
        return RunError(f"{self.folder} can't be used: {what}", details=[("reason", reason)], fix=COPY_AGAIN)
