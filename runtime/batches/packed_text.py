"""Text files as whole documents, packed into rows: none is cut, and each is predicted as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...errors import RunError
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Count
from .data import Batch, BatchShape, Epochs, SampleRanges, epoch_seed
from .text_data import IDS, LABELS
from .tokens import Tokens

POSITIONS, SHIFTED = "position_ids", "shift_labels"
PACKED_INPUTS = (IDS, POSITIONS, LABELS, SHIFTED)
IGNORED = -100
"""A label that the loss leaves out: of the last token of a document, and of what fills a row up."""


FIXED = "compile the model with packed=1 and seq=TOKENS, as long as the longest file"
SIZED = "compile the model with packed=1, end sizes.tokens at the longest file or later, and pack as much"
FILLING = 64
"""Tokens of a document that fills a row up: one long one costs attention, many short ones cost calls."""


class PackedText(Epochs):
    """Each file is a document. They come in an order that seed and epoch give, each in the first row that has
    room for it; what is left of a row is tokens that nothing else sees, and the loss leaves out.

    Only the rows of this rank are read. A last incomplete batch of an epoch is filled up with empty rows, so
    that every document is seen once an epoch.
    """

    local = True

    def __init__(
        self,
        documents: Sequence[Tokens],
        shape: BatchShape,
        rows: SampleRanges,
        keys: frozenset[str],
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self._documents = [each for each in documents if len(each)]
        self._shape, self._rows, self._keys = shape, rows, keys
        self._length = shape.inputs[IDS][0][1]

    def __iter__(self) -> Iterator[Batch]:
        rows = self._packed()
        while self._batches * self._shape.batch < len(rows):
            chosen = rows[self._batches * self._shape.batch :][: self._shape.batch]
            self._batches += 1
            yield self._batch([*chosen, *([()] * (self._shape.batch - len(chosen)))])
        self._end_epoch()

    def take_rows(self, rows: SampleRanges, keys: frozenset[str], sizes: SizeRange | None = None) -> None:
        """See DataSource."""
        self._rows, self._keys = rows, keys

    def _packed(self) -> list[tuple[int, ...]]:
        """The documents of each row of this epoch, the same on every rank."""
        drawn = torch.Generator().manual_seed(epoch_seed(self._seed, self.epoch))
        order: list[int] = torch.randperm(len(self._documents), generator=drawn).tolist()
        return first_fit(order, [len(each) for each in self._documents], self._length)

    def _batch(self, rows: Sequence[tuple[int, ...]]) -> Batch:
        if not self._keys:
            return {}
        own = [self._row(chosen) for low, high in self._rows for chosen in rows[low:high]]
        empty = torch.empty(0, self._length, dtype=torch.int64)
        return {key: torch.stack([row[key] for row in own]) if own else empty for key in self._keys}

    def _row(self, chosen: Sequence[int]) -> dict[str, Tensor]:
        documents = [self._documents[each] for each in chosen]
        return packed_row([each.read(0, len(each)) for each in documents], self._length)


def packed_row(documents: Sequence[Tensor], length: int) -> dict[str, Tensor]:
    """One row of whole documents, filled up with short ones: what a model takes of it."""
    documents = [each for each in documents if len(each)]
    room = torch.zeros(length - sum(map(len, documents)), dtype=torch.int64)
    shifted = [torch.cat([each[1:], each.new_full((1,), IGNORED)]) for each in documents]
    return {
        IDS: torch.cat([*documents, room]),
        POSITIONS: torch.cat(
            [*(torch.arange(len(each)) for each in documents), torch.arange(len(room)) % FILLING]
        ),
        LABELS: torch.cat([*documents, room + IGNORED]),
        SHIFTED: torch.cat([*shifted, room + IGNORED]),
    }


def first_fit(order: Sequence[int], lengths: Sequence[int], room: int) -> list[tuple[int, ...]]:
    """Documents by row: each in the first row that has room for it."""
    rows: list[list[int]] = []
    left: list[int] = []
    for each in order:
        fits = next((row for row, free in enumerate(left) if free >= lengths[each]), len(rows))
        if fits == len(rows):
            rows.append([])
            left.append(room)
        rows[fits].append(each)
        left[fits] -= lengths[each]
    return [tuple(row) for row in rows]


def check_packing(
    shape: BatchShape,
    files: Sequence[Path],
    lengths: Sequence[int],
    room: int,
    sizes: SizeRange | None = None,
) -> None:
    """RunError with all that keeps documents of files from being packed for a program.

    sizes: of rows that it takes, where each step chooses them.
    """
    wrong = [(key, "packed text can't give this input") for key in shape.inputs if key not in PACKED_INPUTS]
    needed = (IDS, POSITIONS, SHIFTED)
    wrong += [
        (key, "missing: documents would run into each other") for key in needed if key not in shape.inputs
    ]
    wrong += [
        (key, f"{dtype}{list(size)}: the program's rows have no {room} tokens")
        for key, (size, dtype) in shape.inputs.items()
        if key in PACKED_INPUTS and ((sizes is None and size[1:] != (room,)) or dtype != "int64")
    ]
    if sizes is not None and sizes.unit is not Count.TOKENS:
        wrong.append(("sizes", "a micro-batch has any number of samples: compile with sizes.tokens"))
    elif sizes is not None and not sizes.low <= room <= sizes.high:
        wrong.append(("--pack", f"{room:,}: the program's rows have {sizes.low:,} to {sizes.high:,} tokens"))
    wrong += [
        (str(path), f"{length:,} tokens, more than a row of {room:,}")
        for path, length in zip(files, lengths, strict=True)
        if length > room
    ]
    wrong += [] if any(lengths) else [("--text", "no file holds a token")]
    if wrong:
        raise RunError(
            "the text can't be packed for this program",
            details=wrong,
            rule=f"rows of --pack tokens hold whole files; the model takes {', '.join(PACKED_INPUTS)}",
            fix=FIXED if sizes is None else SIZED,
        )


def check_shifted(keys: frozenset[str]) -> None:
    """RunError where a rank's loss reads labels that are not shifted. keys: inputs that the rank reads."""
    if LABELS in keys and SHIFTED not in keys:
        raise RunError(
            "the model shifts labels along packed rows",
            details=[(SHIFTED, "is taken and not read")],
            rule="shifted by the model, the last token of a document is trained on the first of the next",
            fix="let the loss take shift_labels where they are given, as models of transformers do",
        )
