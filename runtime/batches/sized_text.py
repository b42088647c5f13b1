"""Text files as whole documents, packed into rows as long as they are: a program of any size runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ...program.sized.size_range import SizeRange
from ...program.sized.spread import spread_rows
from .data import Batch, Epochs, SampleRanges, epoch_seed
from .packed_text import FILLING, PACKED_INPUTS, first_fit, packed_row
from .tokens import Tokens


class SizedPackedText(Epochs):
    """As PackedText, but rows end with their last document: `plan` is that of the batch given last.

    A step has as many rows as micro-batches that its strategy names, the last of an epoch what is left; they
    are shared out by the strategy's shares. All ranks get the whole step.
    """

    local = False

    def __init__(
        self, documents: Sequence[Tokens], sizes: SizeRange, inputs: Sequence[str], room: int, seed: int = 0
    ) -> None:
        super().__init__(seed)
        self._documents = [each for each in documents if len(each)]
        self._sizes, self._room = sizes, room
        self._keys = [key for key in PACKED_INPUTS if key in inputs]
        self._rows = rows_of_step(sizes)

    def __iter__(self) -> Iterator[Batch]:
        rows = self._packed()
        while self._batches * self._rows < len(rows):
            chosen = rows[self._batches * self._rows :][: self._rows]
            self._batches += 1
            yield self._batch(chosen)
        self._end_epoch()

    def take_rows(self, rows: SampleRanges, keys: frozenset[str]) -> None:
        """See DataSource."""

    def _packed(self) -> list[tuple[int, ...]]:
        """The documents of each row of this epoch, the same on every rank."""
        drawn = torch.Generator().manual_seed(epoch_seed(self._seed, self.epoch))
        order: list[int] = torch.randperm(len(self._documents), generator=drawn).tolist()
        return first_fit(order, [len(each) for each in self._documents], self._room)

    def _batch(self, rows: Sequence[tuple[int, ...]]) -> Batch:
        """Rows side by side. One shorter than the program's range begins is filled up."""
        lengths = [[len(self._documents[each]) for each in chosen] for chosen in rows]
        filled = [_filled(row, self._sizes.low) for row in lengths]
        totals = [sum(row) for row in filled]
        made = [
            packed_row([self._documents[each].read(0, len(self._documents[each])) for each in chosen], total)
            for chosen, total in zip(rows, totals, strict=True)
        ]
        self.plan = spread_rows(totals, self._sizes, filled)
        return {key: torch.cat([row[key] for row in made])[None] for key in self._keys}


def rows_of_step(sizes: SizeRange) -> int:
    """Rows of a step by the strategy, those that several pipelines share counted once."""
    return max(round(sum(sizes.shares)), 1)


def _filled(lengths: Sequence[int], least: int) -> list[int]:
    """Documents of a row, with those that fill it up to `least` tokens."""
    room = max(least - sum(lengths), 0)
    whole, left = divmod(room, FILLING)
    return [*lengths, *[FILLING] * whole, *([left] if left else [])]
