"""What passes make of a pipeline's rows, as stable text: what is needed, made again, counted, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from ...ir.annotated import AnnotatedRow, AnnotatedValue, PipelineGraph
from ...ir.printer import aligned
from ..batch_levels import BatchLevels
from ..liveness import Crossing, LivePipeline, StageRows
from ..recompute import made_again
from ..row_checks import value_name
from ..step_counts import CountKey
from .annotated_text import type_text

T = TypeVar("T")
Line = tuple[str, ...]
NOTHING = "nothing"


def alike(items: Sequence[T]) -> list[tuple[str, T]]:
    """Each distinct object once, with the pipelines that have it: `pipelines 0, 2`."""
    found: dict[int, tuple[list[int], T]] = {}
    for number, item in enumerate(items):
        found.setdefault(id(item), ([], item))[0].append(number)
    return [(_numbered("pipeline", numbers), item) for numbers, item in found.values()]


def _numbered(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def joined(lines: Sequence[Line]) -> str:
    """Columns side by side."""
    return "\n".join(aligned(lines)) + "\n"


def live_text(pipelines: Sequence[PipelineGraph], live: Sequence[LivePipeline]) -> str:
    """Per pipeline what is dropped; per stage how much it has to do, and what it gets from others."""
    graphs = {id(held): graph for graph, held in zip(pipelines, live, strict=True)}
    lines: list[Line] = []
    for title, held in alike(live):
        lines.append((title,))
        kept = {row.out.id for rows in held.stages for row in _every(rows)}
        dropped = [row for row in graphs[id(held)].rows if row.out.id not in kept]
        lines += [("  not needed", *row_cells(row)) for row in dropped]
        for number, rows in enumerate(held.stages):
            count = f"{len(rows.forward)} rows forward, {len(rows.backward)} backward"
            lines.append((f"  stage {number}", count))
            lines += [("    receives", *_crossing_cells(each, True)) for each in rows.arrivals]
            lines += [("    sends", *_crossing_cells(each, False)) for each in rows.departures]
    return joined(lines)


def _every(rows: StageRows) -> Iterator[AnnotatedRow]:
    yield from rows.forward
    yield from rows.backward
    for step in (*rows.steps, *rows.sums):
        yield step.row
        yield from step.rows
    yield from (crossing.row for crossing in rows.arrivals)


def row_cells(row: AnnotatedRow) -> Line:
    """A row's value, its operator, and the user's line."""
    return (*value_cells(row.out), row.op, f"# {row.where.split('  ')[0]}" if row.where else "")


def value_cells(value: AnnotatedValue) -> Line:
    """A value's name and type."""
    return value_name(value), type_text(value)


def _crossing_cells(crossing: Crossing, arrives: bool) -> Line:
    other = f"from stage {crossing.source_stage}" if arrives else f"to stage {crossing.target_stage}"
    return (*value_cells(crossing.source), other, crossing.row.phase.name.lower())


def changes_text(before: Sequence[LivePipeline], after: Sequence[LivePipeline]) -> str:
    """Per stage what forward keeps no longer, and the rows that make it again, before what needs it first."""
    old = {id(now): was for was, now in zip(before, after, strict=True)}
    lines: list[Line] = []
    for title, held in alike(after):
        for number, (was, now) in enumerate(zip(old[id(held)].stages, held.stages, strict=True)):
            lines.append(
                (f"{title}, stage {number}", *([] if _again(was, now) else [f"{NOTHING} made again"]))
            )
            lines += [("  made again", *row_cells(row), f"for {reader}") for row, reader in _again(was, now)]
            gone = made_again(was, now)
            lines += [("  not kept", *row_cells(row)) for row in was.forward if row.out.id in gone]
    return joined(lines)


def _again(before: StageRows, after: StageRows) -> list[tuple[AnnotatedRow, str]]:
    """Backward rows that a stage did not have, and the value of the next one that it had."""
    known = {row.out.id for row in before.backward}
    found: list[tuple[AnnotatedRow, str]] = []
    reader = ""
    for row in reversed(after.backward):
        if row.out.id in known:
            reader = value_name(row.out)
        else:
            found.append((row, reader))
    return found[::-1]


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


def levels_text(
    live: Sequence[LivePipeline], levels: BatchLevels, groups: Mapping[CountKey, tuple[int, ...]]
) -> str:
    """The levels of passes, and of each sum over the batch when and by whom it is added up."""
    lines: list[Line] = [("levels", f"{levels.last + 1}"), ("backward from level", f"{levels.turn}")]
    for key, group in groups.items():
        at = f"at level {levels.sums[key]}" if key in levels.sums else f"before, round {levels.rounds[key]}"
        lines.append((f"sum {key}", at, f"ranks {list(group)}"))
    if levels.last:
        for title, held in alike(live):
            for number, rows in enumerate(held.stages):
                for row in (*rows.forward, *rows.backward):
                    phase, level = levels.part(rows, row)
                    lines.append((f"{title}, stage {number}", f"{phase.value} {level}", *row_cells(row)))
    return joined(lines)
