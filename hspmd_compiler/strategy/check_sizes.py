"""The rules of a strategy's `sizes`: which micro-batches a step may choose."""

from __future__ import annotations

from collections.abc import Iterator

from ..base.bad_values import Problem
from ..base.limits import MOST_SAMPLES
from .strategy import ScheduleKind, Strategy


def size_problems(strategy: Strategy) -> Iterator[Problem]:
    """One range, of tokens or of samples; nothing that says how many micro-batches there are."""
    sizes = strategy.sizes
    if sizes is None:
        return
    if (sizes.tokens is None) == (sizes.samples is None):
        given = "both" if sizes.tokens else "neither"
        yield Problem("sizes", f"{given}: give one of tokens, samples")
        return
    low, high = sizes.range
    path = "sizes.tokens" if sizes.tokens else "sizes.samples"
    if not 0 < low <= high:
        yield Problem(path, f"[{low}, {high}]: a range of sizes begins at 1 or above, and ends no lower")
    elif high > MOST_SAMPLES:
        yield Problem(path, f"[{low}, {high:,}]: at most {MOST_SAMPLES:,}")
    yield from _shared_problems(strategy)
    if strategy.schedule is ScheduleKind.AUTO:
        yield Problem(
            "schedule", "auto: with sizes each step has other micro-batches; name a schedule instead"
        )
    for index, pipeline in enumerate(strategy.pipelines):
        if pipeline.schedule is not None:
            rule = "with sizes each step chooses its number of micro-batches; name a schedule instead"
            yield Problem(f"pipelines[{index}].schedule", f"written out: {rule}")


def _shared_problems(strategy: Strategy) -> Iterator[Problem]:
    """Pipelines share rows of packed tokens, which are never padded."""
    if strategy.context and strategy.sizes is not None and strategy.sizes.tokens is None:
        yield Problem(
            "sizes.samples", "with context: rows that pipelines share have tokens; give sizes.tokens"
        )
    for number, spec in enumerate(strategy.context):
        if spec.padding:
            yield Problem(
                f"context[{number}].padding", "with sizes: a row has the tokens that a step gives it"
            )
