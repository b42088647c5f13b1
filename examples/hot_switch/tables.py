"""The numbers of the example, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from bytes_moved import Flow
from published_runs import BucketStrategy
from rich.table import Table
from rich.text import Text
from trained_runs import TrainedRun

TOLERANCE = 1e-5
"""Of losses in float32, relative."""
MEGA = 1e6


def flow_table(flows: Sequence[Flow], strategies: Sequence[BucketStrategy]) -> Table:
    """What a step moves for each strategy, once however many parts it runs."""
    of = {flow.strategy: flow for flow in flows}
    table = Table(title="parameters out, gradients back: MB that plans move between ranks in a step")
    for column in ("strategy", "tokens", "samples", "out", "back", "kept"):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    for each in strategies:
        flow = of.get(each.name)
        moved = ["home", "", ""]
        if flow is not None:
            moved = [f"{size / MEGA:,.2f}" for size in (flow.out_bytes, flow.back_bytes, flow.kept_bytes)]
        table.add_row(each.name, f"{each.longest:,}", str(each.strategy.global_batch), *moved)
    return table


def run_table(runs: Sequence[TrainedRun]) -> Table:
    """Losses and step times of all trainings, the one in parts first."""
    first = runs[0]
    table = Table(title="in parts by length, and each strategy alone on all sequences padded")
    for column in ("training", "loss first", "loss last", "difference", "parts", "tokens", "seconds"):
        table.add_column(column, justify="left" if column == "training" else "right", no_wrap=True)
    for run in runs:
        gap = difference(first, run)
        steps = len(run.losses)
        table.add_row(
            run.name,
            f"{run.losses[0]:.6f}",
            f"{run.losses[-1]:.6f}",
            "" if run is first else f"{gap:.1e}",
            f"{run.parts / steps:.1f}",
            f"{run.tokens / steps:,.0f}",
            f"{run.step_s:.3f}",
        )
    return table


def spent_table(run: TrainedRun) -> Table:
    """Where the time of a step in parts goes."""
    table = Table(title="seconds of the last step in parts, rank 0")
    for what in run.spent:
        table.add_column(what, justify="right")
    table.add_row(*(f"{seconds:.3f}" for seconds in run.spent.values()))
    return table


def difference(one: TrainedRun, other: TrainedRun) -> float:
    """The largest relative difference of losses; without end where one is no number."""
    pairs = zip(one.losses, other.losses, strict=True)
    found = [abs(a - b) / max(abs(a), abs(b)) for a, b in pairs]
    return max(gap if isfinite(gap) else inf for gap in found)


@dataclass(frozen=True, slots=True)
class Verdict:
    """worst: the largest relative difference of losses."""

    worst: float

    @property
    def is_equal(self) -> bool:
        """Up to rounding; a number that isn't one is no equality."""
        return self.worst <= TOLERANCE

    def __rich__(self) -> Text:
        if self.is_equal:
            text = "EQUAL: a step in parts is the step of each strategy on the whole padded batch (float32)"
            return Text(text, style="bold green")
        return Text(f"NOT EQUAL: losses differ by {self.worst:.1e}", style="bold red")


def verdict(runs: Sequence[TrainedRun]) -> Verdict:
    """Of all against the first."""
    return Verdict(max(difference(runs[0], run) for run in runs))
