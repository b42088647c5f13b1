"""What passes decide of ranks, as stable text: who holds and sums what, segments, steps, memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...base.comm_plan import CommKind, CommStep, GradBucket
from ..param_places import ParamPlaces
from ..reductions import Reductions
from ..segments import SegmentPlan, StagePlan
from ..stage_comm import StageComm
from ..zero.zero import Ownership
from .live_text import Line, joined, value_cells
from .states_text import states_text

MOST_RANKS = 4
"""Of those that do not follow each other, shown one by one."""


def ranks_text(ranks: Sequence[int]) -> str:
    """`0-7`, `0,2`, `0,32,..,992`: ranks that follow each other, or at even distances, in short."""
    steps = {high - low for low, high in pairwise(ranks)}
    if len(ranks) > MOST_RANKS and len(steps) == 1 and steps != {1}:
        return f"{ranks[0]},{ranks[1]},..,{ranks[-1]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in runs)


def places_text(places: ParamPlaces, inside: frozenset[str]) -> str:
    """Per parameter how the ranks of each stage hold it, which addends its gradient has, and of what kind."""
    lines: list[Line] = []
    for name, held in places.places.items():
        cells = [f"{states_text(layout, len(ranks))} on {ranks_text(ranks)}" for layout, ranks in held]
        lines.append((name, " | ".join(cells), "gathered where it is used" if name in inside else ""))
        if name in places.gradients:
            terms = places.gradients[name].terms
            texts = [
                f"{'a sum of' if term.addends else 'alike on'} {ranks_text([h.rank for h in term.holders])}"
                for term in terms
            ]
            lines.append(("  gradient", " + ".join(texts)))
    return joined(lines)


def ownership_text(ownership: Ownership | None, scatters: Sequence[frozenset[int]]) -> str:
    """Per run of parameters that are shared out together, how many elements each holder stores."""
    if ownership is None:
        return "without ZeRO every holder stores what it holds\n"
    lines: list[Line] = []
    for run in ownership.runs:
        sizes = [
            sum(ownership.cuts[member][rank].size for member in run.members if rank in ownership.cuts[member])
            for rank in run.holders
        ]
        names = ", ".join(dict.fromkeys(name for name, _ in run.members))
        lines.append((f"ranks {ranks_text(run.holders)}", run.dtype, f"{sizes} elements", names))
    lines += [
        (f"pipeline {number}", f"hands gradients over behind micro-batches {sorted(points)}")
        for number, points in enumerate(scatters)
        if points
    ]
    return joined(lines)


def reductions_text(made: Reductions) -> str:
    """Per bucket its ranks, what it sums, and how."""
    buckets: dict[int, GradBucket] = {}
    for _, held in sorted(made.grads.items()):
        for bucket in held:
            if bucket.id not in buckets or not buckets[bucket.id].given:
                buckets[bucket.id] = bucket
    lines: list[Line] = []
    for number, bucket in sorted(buckets.items()):
        names = ", ".join(dict.fromkeys(piece.param for piece in bucket.given))
        how = "kept" if len(bucket.group) == 1 else "all_reduce" if bucket.slot < 0 else "reduce_scatter"
        size = sum(piece.length for piece in bucket.given)
        lines.append(
            (f"bucket {number}", how, f"ranks {ranks_text(bucket.group)}", bucket.dtype, f"{size}", names)
        )
    gathers = {bucket.id: bucket for _, held in sorted(made.gathers.items()) for bucket in held}
    for number, gather in sorted(gathers.items()):
        names = ", ".join(dict.fromkeys(piece.param for piece in gather.pieces))
        lines.append((f"gather {number}", "", f"ranks {ranks_text(gather.group)}", gather.dtype, "", names))
    return joined(lines)


def segments_text(stages: Sequence[StagePlan]) -> str:
    """Per stage the variants of its micro-batches; per segment its rows, what it keeps and what it gives."""
    lines: list[Line] = []
    shown: dict[int, str] = {}
    for plan in stages:
        title = f"pipeline {plan.pipeline}, stage {plan.stage}"
        same = shown.setdefault(id(plan.segments), title)
        lines.append((title, f"variants {plan.variants}", "" if same == title else f"as {same}"))
        if same == title:
            for segment in plan.segments:
                lines += _segment_lines(segment)
    return joined(lines)


def _segment_lines(segment: SegmentPlan) -> list[Line]:
    outputs = segment.outputs
    lines: list[Line] = [(f"  {segment.name}", f"{len(segment.rows)} rows")]
    lines += [("    keeps", *value_cells(value)) for value in outputs.micro]
    lines += [(f"    gives {kind.value}", *value_cells(value), name) for kind, value, name in outputs.special]
    return lines


def stage_comm_text(stages: Sequence[StagePlan], comms: Sequence[StageComm]) -> str:
    """Per stage the steps of its first rank, by slot."""
    lines: list[Line] = []
    for plan, comm in zip(stages, comms, strict=True):
        rank = plan.ranks[0]
        lines.append((f"pipeline {plan.pipeline}, stage {plan.stage}", f"ranks {ranks_text(plan.ranks)}"))
        lines += [(f"  comm {slot}", *step_cells(step[rank])) for slot, step in enumerate(comm.steps)]
        transfers = [step[rank] for step in comm.transfers if rank in step]
        lines += [(f"  transfer {slot}", *step_cells(step)) for slot, step in enumerate(transfers)]
    return joined(lines)


def step_cells(step: CommStep) -> Line:
    """A step's number, kind, type, ranks, and the shapes that it takes and gives."""
    kind = step.combine.value if step.kind is CommKind.ALL_REDUCE else step.note
    views = [str(list(view)) for view in (step.src_view, step.dst_view) if view is not None]
    return (
        f"#{step.id}",
        step.kind.value,
        step.dtype,
        f"ranks {ranks_text(step.group)}",
        kind,
        " -> ".join(views),
    )


def saved_text(stages: Sequence[StagePlan], saved: Sequence[Sequence[Sequence[int]]]) -> str:
    """Per stage the bytes of each rank and micro-batch; ranks that keep the same stand together."""
    lines: list[Line] = []
    for plan, own in zip(stages, saved, strict=True):
        same: dict[tuple[int, ...], list[int]] = {}
        for rank, sizes in zip(plan.ranks, own, strict=True):
            same.setdefault(tuple(sizes), []).append(rank)
        for sizes, ranks in same.items():
            text = ", ".join(f"{size:,}" for size in sizes)
            lines.append(
                (f"pipeline {plan.pipeline}, stage {plan.stage}", f"ranks {ranks_text(ranks)}", text)
            )
    return joined(lines)
