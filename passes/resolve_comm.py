"""Each communication marker becomes, per rank, one step, or one of each round; equal ones are shared."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..base.comm_plan import Combine, CommKind, CommStep, CostModel
from ..ir.annotated import CommMarker
from .resolve_layouts import WantedLayouts
from .resolve_rounds import on_ranks, rounds

Ranks = tuple[int, ...]


@dataclass(slots=True)
class CommResolver:
    """Resolves markers and numbers the steps; `steps` are made once for equal requests.

    cost: what ways are compared by; None: as programs are made today, see `ways.PREFERRED`.
    """

    cost: CostModel | None = None
    made: dict[object, dict[int, CommStep]] = field(default_factory=dict)
    planned: dict[tuple[WantedLayouts, Ranks], tuple[dict[int, CommStep], ...]] = field(default_factory=dict)
    count: int = 0

    def steps(
        self, marker: CommMarker, ranks: Ranks, batch: int, dtype: str
    ) -> tuple[dict[int, CommStep], ...]:
        """The step of each rank of a stage for a conversion inside it, at one micro-batch, in each round."""
        wanted = WantedLayouts.of(marker, ranks, (), batch, dtype, self.cost)
        if wanted.reduces:
            return (self._all_reduce(ranks, marker.combine, dtype),)
        return self._rounds(wanted, ranks)

    def transfer(
        self, marker: CommMarker, source_ranks: Ranks, target_ranks: Ranks, batch: int, dtype: str
    ) -> dict[int, CommStep]:
        """The step of each rank of two stages for a value that crosses between them."""
        wanted = WantedLayouts.of(marker, source_ranks, target_ranks, batch, dtype, self.cost)
        (steps,) = self._rounds(wanted, source_ranks + target_ranks)
        return steps

    def reduce(self, ranks: Ranks, dtype: str) -> dict[int, CommStep]:
        """A sum of whole values over ranks."""
        return self._all_reduce(ranks, Combine.SUM, dtype)

    def _all_reduce(self, ranks: Ranks, combine: Combine, dtype: str) -> dict[int, CommStep]:
        group = tuple(sorted(ranks))
        key = (group, combine, dtype)
        if key not in self.made:
            step = CommStep(self.next_id(), CommKind.ALL_REDUCE, group, combine, dtype=dtype)
            self.made[key] = dict.fromkeys(group, step)
        return self.made[key]

    def _rounds(self, wanted: WantedLayouts, ranks: Ranks) -> tuple[dict[int, CommStep], ...]:
        key = (wanted, ranks)
        if key not in self.planned:
            found = rounds(wanted)
            numbers = sorted({step.id for steps in found for step in steps.values()})
            ids = {number: self.next_id() for number in numbers}
            names = dict(zip(wanted.ranks + wanted.receivers, ranks, strict=True))
            self.planned[key] = tuple(on_ranks(steps, names, ids) for steps in found)
        return self.planned[key]

    def next_id(self) -> int:
        """The id of a new step."""
        self.count += 1
        return self.count - 1
