"""Batches that are given again where the step that drew them came to no end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...program.sized.size_range import SizeRange
from ...program.sized.step_plan import StepPlan
from ..batches.data import Batch, DataSource, SampleRanges
from .messages import RunPosition


class ReturnedBatches:
    """A source of batches of which the last one may be given back. See DataSource."""

    def __init__(self, inner: DataSource) -> None:
        self._inner = inner
        self._drawn: Batch | None = None
        self._returned: Batch | None = None
        self._left_out_before = 0

    @property
    def local(self) -> bool:
        """See DataSource."""
        return self._inner.local

    @property
    def epoch(self) -> int:
        """See DataSource."""
        return self._inner.epoch

    @property
    def left_out(self) -> int:
        """See DataSource."""
        return self._inner.left_out + self._left_out_before

    @property
    def at_start(self) -> bool:
        """See DataSource."""
        return self._inner.at_start and self._returned is None

    @property
    def batches(self) -> int:
        """See DataSource."""
        return self._inner.batches

    @property
    def seed(self) -> int:
        """See DataSource."""
        return self._inner.seed

    @property
    def plan(self) -> StepPlan | None:
        """See DataSource; one that is given again was the last that was drawn."""
        return self._inner.plan

    def __iter__(self) -> Iterator[Batch]:
        if self._returned is not None:
            self._drawn, self._returned = self._returned, None
            yield self._drawn
        for batch in self._inner:
            self._drawn = batch
            yield batch

    def take_rows(self, rows: SampleRanges, keys: frozenset[str], sizes: SizeRange | None = None) -> None:
        """See DataSource."""
        self._inner.take_rows(rows, keys, sizes)

    def state_dict(self) -> dict[str, object]:
        """See DataSource."""
        return self._inner.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """See DataSource."""
        self._drawn = self._returned = None
        self._inner.load_state_dict(state)

    def used(self) -> None:
        """The step of the batch that was drawn last is complete."""
        self._drawn = None

    def go_on(
        self,
        position: RunPosition,
        rows: SampleRanges,
        keys: frozenset[str],
        sizes: SizeRange | None = None,
    ) -> None:
        """Stand behind the last completed step, with these rows. Whole batches need no reading again."""
        if self._inner.local or not self._stands_at(position):
            at = {"epoch": position.epoch, "batches": position.batches, "seed": position.data_seed}
            self.load_state_dict(at)
            self._left_out_before = position.left_out - self._inner.left_out
        elif self._drawn is not None:
            self._returned, self._drawn = self._drawn, None
        self._inner.take_rows(rows, keys, sizes)

    def position(self) -> tuple[int, int, int]:
        """Epoch, batches used of it and samples left out, behind the last completed step."""
        undone = (self._drawn is not None) + (self._returned is not None)
        return self.epoch, self.batches - undone, self.left_out

    def _stands_at(self, position: RunPosition) -> bool:
        stands = (*self.position(), self.seed)
        return stands == (position.epoch, position.batches, position.left_out, position.data_seed)
