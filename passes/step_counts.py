"""Sums over the whole batch: which ranks reduce them. Of what inputs alone make, one stage of each pipeline
makes its share, and every stage that needs it gets the sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import DeduceError
from ..ir.annotated import AnnotatedRow
from ..layout.layout import Layout
from ..rules.rules import local_shape
from .compile_state import Live
from .liveness import LivePipeline, StageRows, StepValue
from .pass_chain import Pass
from .row_checks import live_problems
from .texts.cells import NOTHING, Line, alike, joined, row_cells

CountKey = tuple[int, int]


def counted_once(live: LivePipeline) -> LivePipeline:
    """The pipeline with each count made by the first stage that uses it, and zero added by the others.

    Counts come in one order in all stages and pipelines, so that no ranks wait for each other.
    """
    seen: set[CountKey] = set()
    stages = [_of_stage(rows, seen) for rows in live.stages]
    return replace(live, stages=stages)


def _of_stage(rows: StageRows, seen: set[CountKey]) -> StageRows:
    if not rows.steps:
        return rows
    steps = sorted(rows.steps, key=lambda step: step.key)
    made = [_nothing(step) if step.key in seen else step for step in steps]
    seen.update(step.key for step in steps)
    return replace(rows, steps=made)


def _nothing(step: StepValue) -> StepValue:
    """A share of zero in the place of a count."""
    share = step.share
    args = (local_shape(Layout(share.layout.dims)), 0, share.dtype)
    row = AnnotatedRow(share, "hspmd.full", args, {}, share.stage, step.row.phase, step.row.where)
    return replace(step, rows=(row,), counts=False)


def ranks_of_counts(
    stages: Sequence[tuple[int, tuple[int, ...], StageRows]],
) -> Mapping[CountKey, tuple[int, ...]]:
    """The ranks that reduce each sum: of all stages that use it. stages: (pipeline, ranks, rows) of all."""
    ranks: dict[CountKey, set[int]] = {}
    pipelines: dict[CountKey, set[int]] = {}
    shapes: dict[CountKey, set[object]] = {}
    where: dict[CountKey, str] = {}
    for pipeline, own, rows in stages:
        for step in (*rows.steps, *rows.sums):
            ranks.setdefault(step.key, set()).update(own)
            pipelines.setdefault(step.key, set()).add(pipeline)
            shapes.setdefault(step.key, set()).add((step.share.layout.shape, step.share.dtype))
            where.setdefault(step.key, step.row.where)
    every = {pipeline for pipeline, _, _ in stages}
    missing = [key for key, found in pipelines.items() if found != every or len(shapes[key]) > 1]
    if missing:
        raise DeduceError(
            "a sum over the whole batch is not made alike in all pipelines",
            at=[where[key] for key in missing],
            rule="every pipeline adds its own samples to each value that is summed over the batch",
            fix="give the pipelines equal stages, and report this model and strategy",
        )
    return {key: tuple(sorted(found)) for key, found in ranks.items()}


def counts_text(live: Sequence[LivePipeline]) -> str:
    """Per count of the batch the stage that makes it, and those that add zero."""
    lines: list[Line] = []
    for title, held in alike(live):
        steps = [(number, step) for number, rows in enumerate(held.stages) for step in rows.steps]
        lines.append((title, *([] if steps else [f"{NOTHING} is counted"])))
        for number, step in steps:
            part = f"{len(step.rows)} rows" if step.counts else "adds zero"
            lines.append((f"  stage {number}", f"count {step.key}", part, *row_cells(step.row)))
    return joined(lines)


@dataclass(frozen=True, slots=True)
class StepCounts(Pass[Live, Live]):
    """All stages and pipelines come to their counts in one order."""

    def run(self, state: Live) -> Live:
        known = {id(live): counted_once(live) for live in {id(live): live for live in state.live}.values()}
        return replace(state, live=[known[id(live)] for live in state.live])

    def text(self, before: Live, after: Live) -> str:
        return counts_text(after.live)

    def problems(self, before: Live, after: Live) -> Iterator[str]:
        yield from live_problems(after.pipelines, before.live, after.live)
        for number, live in enumerate(after.live):
            counted = [step.key for rows in live.stages for step in rows.steps if step.counts]
            used = {step.key for rows in live.stages for step in rows.steps}
            if sorted(counted) != sorted(used):
                yield f"pipeline {number} uses the counts {sorted(used)} and makes {sorted(counted)}"
