"""What a lockstep run found: matched communication, bytes by kind, peak memory of each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table

from ...base.by_key import by_key
from ...base.number_ranges import number_ranges

GRAD_REDUCE = "grad_reduce"
LOSS_REDUCE = "loss_reduce"
SEND_RECV = "send_recv"

MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Event:
    """One matched collective or transfer.

    kind: kind of its step, `grad_reduce` or `loss_reduce`. op: the instruction it happened in.
    step: id of its step or bucket. moved: bytes that members hand over to each other; for a
    reduction, what each member puts in, summed over members.
    """

    kind: str
    ranks: tuple[int, ...]
    moved: int
    op: str
    step: int = -1
    segment: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class LockstepReport:
    """A step in which every rank's requests met their partners.

    peak: most bytes of parameters, gradients, inputs and live values that each rank held at once,
    without optimizer state; empty where it was not measured.
    """

    world_size: int
    events: tuple[Event, ...]
    peak: tuple[int, ...] = ()

    def counts(self) -> dict[str, int]:
        """Events by kind."""
        return dict(sorted(Counter(event.kind for event in self.events).items()))

    def moved(self) -> dict[str, int]:
        """Bytes by kind."""
        total: Counter[str] = Counter()
        for event in self.events:
            total[event.kind] += event.moved
        return dict(sorted(total.items()))

    def to_json(self) -> dict[str, object]:
        """For scripts."""
        return {
            "world_size": self.world_size,
            "matched": self.counts(),
            "bytes": self.moved(),
            "peak_bytes": list(self.peak),
        }

    def rendered(self) -> RenderableType:
        """For people."""
        tables: list[RenderableType] = [self._traffic()]
        if self.peak:
            tables.append(peak_table(self.peak))
        return Group(*tables)

    def _traffic(self) -> Table:
        table = Table(title=f"{self.world_size} ranks, {len(self.events)} exchanges matched")
        table.add_column("kind")
        table.add_column("matched", justify="right")
        table.add_column("MB", justify="right")
        moved = self.moved()
        for kind, count in self.counts().items():
            table.add_row(kind, f"{count:,}", f"{moved[kind] / MEGABYTE:,.3f}")
        return table


def peak_table(peak: Sequence[int]) -> Table:
    """Peak memory by rank; ranks with equal peaks share a line."""
    table = Table()
    table.add_column("ranks")
    table.add_column("peak MB, without optimizer state", justify="right")
    for size, ranks in by_key((size, rank) for rank, size in enumerate(peak)).items():
        table.add_row(number_ranges(ranks), f"{size / MEGABYTE:,.3f}")
    return table
