"""Text files for a program of any size: whole documents, in rows as long as they are; or samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from ...program.sized.size_range import SizeRange
from ...program.sized.spread import spread_samples
from .data import Batch, BatchShape, Epochs, SampleRanges, epoch_seed
from .packed_text import FILLING, PACKED_INPUTS, first_fit, packed_row
from .sized_data import GivenSizes
from .text_data import TextData
from .tokens import Tokens

ROWS = "rows"


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
        self._taken: GivenSizes | None = None

    def __iter__(self) -> Iterator[Batch]:
        rows = self._packed()
        while self._batches * self._rows < len(rows):
            chosen = rows[self._batches * self._rows :][: self._rows]
            self._batches += 1
            yield self._batch(chosen)
        self._end_epoch()

    def take_rows(self, rows: SampleRanges, keys: frozenset[str], sizes: SizeRange | None = None) -> None:
        """See DataSource; a step's batch is the same for all ranks."""
        self._sizes = sizes or self._sizes
        self.plan = None if self._taken is None else self._taken.plan_for(self._sizes)

    def state_dict(self) -> dict[str, object]:
        """See DataSource; `rows` of a step, so that another strategy goes on at the same place."""
        return {**super().state_dict(), ROWS: self._rows}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """See DataSource."""
        super().load_state_dict(state)
        rows = state.get(ROWS)
        self._rows = rows if type(rows) is int and rows > 0 else self._rows

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
        self._taken = GivenSizes(rows=tuple(totals), documents=tuple(map(tuple, filled)))
        self.plan = self._taken.plan_for(self._sizes)
        return {key: torch.cat([row[key] for row in made])[None] for key in self._keys}


class SizedTextData(TextData):
    """As many samples a step as the program was first compiled with, by a plan; whole batches."""

    local = False

    def __init__(self, tokens: Tokens, shape: BatchShape, sizes: SizeRange, seed: int = 0) -> None:
        super().__init__(tokens, shape, [(0, shape.batch)], frozenset(shape.inputs), seed)
        self.plan = spread_samples(shape.batch, sizes)

    def take_rows(self, rows: SampleRanges, keys: frozenset[str], sizes: SizeRange | None = None) -> None:
        """See DataSource; a step's batch is the same for all ranks."""
        self.plan = self.plan if sizes is None else spread_samples(self._shape.batch, sizes)


def rows_of_step(sizes: SizeRange) -> int:
    """Rows of a step by the strategy, those that several pipelines share counted once."""
    return max(round(sum(sizes.shares)), 1)


def _filled(lengths: Sequence[int], least: int) -> list[int]:
    """Documents of a row, with those that fill it up to `least` tokens."""
    room = max(least - sum(lengths), 0)
    whole, left = divmod(room, FILLING)
    return [*lengths, *[FILLING] * whole, *([left] if left else [])]
