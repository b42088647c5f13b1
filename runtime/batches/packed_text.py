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
NEEDED = (IDS, POSITIONS, SHIFTED)
IGNORED = -100
"""A label that the loss leaves out: of the last token of a document, and of what fills a row up."""


FIX_INPUTS = "compile the model with packed=1"
FIX_UNIT = "give the strategy sizes.tokens in place of sizes.samples"
FIX_EMPTY = "give --text files that hold text"
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
    longest = max(lengths, default=0)
    held, missing = _held(shape, sizes), [key for key in NEEDED if key not in shape.inputs]
    alien = [(key, "packed text can't give this input") for key in shape.inputs if key not in PACKED_INPUTS]
    too_long = [
        (str(path), f"{length:,} tokens, more than a row of {room:,}")
        for path, length in zip(files, lengths, strict=True)
        if length > room
    ]
    found = [
        (alien, FIX_INPUTS),
        ([(key, "missing: documents would run into each other") for key in missing], FIX_INPUTS),
        _of_room(shape, room, max(room, longest), held, sizes),
        (too_long, _longer(longest, held, sizes)),
        ([] if any(lengths) else [("--text", "no file holds a token")], FIX_EMPTY),
    ]
    if wrong := [each for problems, _ in found for each in problems]:
        raise RunError(
            "the text can't be packed for this program",
            details=wrong,
            rule=f"rows of --pack tokens hold whole files; the model takes {', '.join(PACKED_INPUTS)}",
            fix="; ".join(dict.fromkeys(fix for problems, fix in found if problems)),
        )


def _held(shape: BatchShape, sizes: SizeRange | None) -> int:
    """Tokens of the longest row that a program takes; 0: it takes none."""
    if sizes is not None:
        return sizes.high if sizes.unit is Count.TOKENS else 0
    size = shape.inputs[IDS][0] if IDS in shape.inputs else ()
    return size[1] if len(size) == 2 else 0


def _of_room(
    shape: BatchShape, room: int, wanted: int, held: int, sizes: SizeRange | None
) -> tuple[list[tuple[str, str]], str]:
    """What keeps a program from rows of so many tokens, and its fix. wanted: rows of a new compile."""
    if sizes is not None and sizes.unit is not Count.TOKENS:
        return [("sizes", "a micro-batch has any number of samples: compile with sizes.tokens")], FIX_UNIT
    inputs = {key: value for key, value in shape.inputs.items() if key in PACKED_INPUTS}
    wrong = [
        (key, f"{dtype}{list(size)}: the program's rows have no {room} tokens")
        for key, (size, dtype) in inputs.items()
        if (sizes is None and size[1:] != (room,)) or dtype != "int64"
    ]
    if sizes is not None:
        beyond = not sizes.low <= room <= sizes.high
        taken = f"the program's rows have {sizes.low:,} to {sizes.high:,} tokens"
        wrong += [("--pack", f"{room:,}: {taken}")] if beyond else []
        return wrong, f"give --pack {sizes.low} to {sizes.high}" if beyond else FIX_INPUTS
    if not held or room == held:
        return wrong, f"{FIX_INPUTS} and seq={wanted}"
    return wrong, f"give --pack {held}, or compile the model with seq={wanted}"


def _longer(longest: int, held: int, sizes: SizeRange | None) -> str:
    """How a file longer than a row gets into one, if the program's rows may be that long; else what else."""
    if longest <= held:
        return f"give --pack {held}" if sizes is None else f"give --pack {longest} to {held}"
    how = f"seq={longest}" if sizes is None else f"sizes.tokens that end at {longest} or later"
    return f"leave longer files out, or compile with {how} and give --pack {longest}"


def check_shifted(keys: frozenset[str]) -> None:
    """RunError where a rank's loss reads labels that are not shifted. keys: inputs that the rank reads."""
    if LABELS in keys and SHIFTED not in keys:
        raise RunError(
            "the model shifts labels along packed rows",
            details=[(SHIFTED, "is taken and not read")],
            rule="shifted by the model, the last token of a document is trained on the first of the next",
            fix="let the loss take shift_labels where they are given, as models of transformers do",
        )
