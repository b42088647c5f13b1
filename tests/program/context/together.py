"""All ranks of a group in one process: their rows as segments, their steps by boxes, results put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

import torch
from torch import Tensor

from hspmd_compiler.base.comm_plan import CommStep, Interval
from hspmd_compiler.base.context import ContextCut, ContextForm, member_runs, row_pieces
from hspmd_compiler.program.boxes import cut, paste
from hspmd_compiler.program.codegen import compile_segment
from hspmd_compiler.program.context.forms import (
    AttentionKind,
    ContextGroup,
    ContextMember,
    Numbering,
    Operands,
)
from hspmd_compiler.program.context.rows import attention_rows, step_count
from hspmd_compiler.program.program import InputKind, OutputKind, Segment, SegmentInput, SegmentOutput, Value
from hspmd_compiler.program.requests import SegmentRun

FIRST_STEP, FIRST_SLOT, FIRST_HOLE = 40, 3, 2
FORWARD_NAMES, BACKWARD_NAMES = ("q", "k", "v", "documents"), ("grad", "out", "lse")


def heads_of(heads: int, ranks: int) -> tuple[Interval, ...]:
    """Heads over ranks, as even as they go; some have none where there are fewer."""
    ends = [heads * rank // ranks for rank in range(ranks + 1)]
    return tuple(pairwise(ends))


def group_of(
    degrees: Sequence[int],
    lengths: Sequence[int],
    heads: int,
    kv_heads: int,
    kind: AttentionKind,
    cut_kind: ContextCut = ContextCut.CONTIGUOUS,
    spread: tuple[Interval, ...] = (),
) -> ContextGroup:
    """Members of these TP degrees. A key-value head is on every rank whose queries read it."""
    runs = member_runs(row_pieces(lengths, cut_kind), len(lengths))
    numbers, members = count(), []
    for degree, own in zip(degrees, runs, strict=True):
        of_rank = heads_of(heads, degree)
        repeat = heads // kv_heads
        kv = tuple((low // repeat, -(-high // repeat)) for low, high in of_rank)
        ranks = tuple(next(numbers) for _ in range(degree))
        members.append(ContextMember(ranks, of_rank, kv, own))
    return ContextGroup(tuple(members), kind, spread)


@dataclass(frozen=True)
class RankPart:
    """What one rank runs in one pass: a segment, and what it fills it with."""

    segment: Segment
    literals: tuple[object, ...]
    comms: tuple[CommStep | None, ...]


def parts_of(form: ContextForm, group: ContextGroup, backward: bool) -> dict[int, RankPart]:
    """The rows of all members as segments of their ranks."""
    found: dict[int, RankPart] = {}
    for number, member in enumerate(group.members):
        names = [*FORWARD_NAMES, *(BACKWARD_NAMES if backward else ())]
        values = {name: Value(place) for place, name in enumerate(names)}
        fresh = count(len(names))
        numbers = Numbering(lambda fresh=fresh: Value(next(fresh)), FIRST_SLOT, FIRST_HOLE, FIRST_STEP)  # type: ignore[misc]
        rows = attention_rows(form, group, number, Operands(**values), numbers)
        ids = step_count(form, len(group.members), backward)
        assert all(FIRST_STEP <= step.id < FIRST_STEP + ids for own in rows.steps for step in own)
        inputs = [SegmentInput(InputKind.MICRO, value) for value in values.values()]
        outputs = [SegmentOutput(OutputKind.MICRO, value) for value in rows.outputs]
        segment = Segment("attention", inputs, rows.rows, outputs)
        for rank, steps, literals in zip(member.ranks, rows.steps, rows.literals, strict=True):
            comms = (*[None] * FIRST_SLOT, *steps)
            found[rank] = RankPart(segment, (*[None] * FIRST_HOLE, *literals), comms)
    return found


def run_together(
    parts: Mapping[int, RankPart], inputs: Mapping[int, Sequence[object]]
) -> dict[int, tuple[Tensor, ...]]:
    """Outputs of every rank; an error where ranks wait for each other in different steps."""
    runs: dict[int, SegmentRun[Tensor]] = {
        rank: compile_segment(part.segment, part.literals)(*inputs[rank]) for rank, part in parts.items()
    }
    results: dict[int, tuple[Tensor, ...]] = {}
    waiting: dict[int, tuple[CommStep, Tensor]] = {}
    for rank in runs:
        _advance(rank, runs, parts, None, waiting, results)
    while waiting:
        ready = next((step for step, _ in waiting.values() if _all_there(step, waiting)), None)
        assert ready is not None, {rank: (step.id, step.note) for rank, (step, _) in waiting.items()}
        steps = {rank: waiting.pop(rank) for rank in ready.group}
        sent = {rank: cut(step, value) for rank, (step, value) in steps.items()}
        for rank, (step, value) in steps.items():
            arrived = {peer: boxes[rank] for peer, boxes in sent.items() if rank in boxes}
            _advance(rank, runs, parts, paste(step, arrived, value), waiting, results)
    return results


def _all_there(step: CommStep, waiting: Mapping[int, tuple[CommStep, Tensor]]) -> bool:
    return all(
        rank in waiting and waiting[rank][0].id == step.id and waiting[rank][0].group == step.group
        for rank in step.group
    )


def _advance(
    rank: int,
    runs: Mapping[int, SegmentRun[Tensor]],
    parts: Mapping[int, RankPart],
    answer: Tensor | None,
    waiting: dict[int, tuple[CommStep, Tensor]],
    results: dict[int, tuple[Tensor, ...]],
) -> None:
    try:
        slot, value, _ = runs[rank].send(answer)  # type: ignore[arg-type]
    except StopIteration as end:
        results[rank] = end.value
        return
    step = parts[rank].comms[slot]
    assert step is not None and value is not None and rank in step.group
    assert list(value.shape) == list(step.src_view or ()), (step.note, value.shape, step.src_view)
    waiting[rank] = step, value


def local(whole: Tensor, heads: Interval, runs: Sequence[Interval]) -> Tensor:
    """A rank's part of a tensor by heads and tokens."""
    own = whole[:, slice(*heads)]
    return torch.cat([own[:, :, low:high] for low, high in runs], 2).clone()


def added_up(group: ContextGroup, found: Mapping[int, Tensor], whole: Tensor, kv: bool) -> Tensor:
    """Parts of all ranks as one tensor, summed where several have the same."""
    total = torch.zeros_like(whole)
    for member in group.members:
        for rank, heads in zip(member.ranks, member.kv_heads if kv else member.heads, strict=True):
            tokens = torch.cat([torch.arange(*run) for run in member.runs])
            total[:, torch.arange(*heads)[:, None], tokens] += found[rank]
    return total
