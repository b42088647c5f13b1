"""Is every gradient that a rank makes used, and every synchronised gradient whole?"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...base.by_key import by_key
from ...base.comm_plan import Box
from ...errors import VerifyError
from ...program.boxes import volume
from ...program.execute import RankPlan
from ...program.lifetimes import COMPUTE_OPS
from ...program.program import ZERO_GRADS, OutputKind


def check_gradients(plan: RankPlan) -> None:
    """Raise for gradients of one rank that nobody reads, and for elements without exactly one source."""
    problems = [*_unread(plan), *_unmade(plan), *_uncovered(plan)]
    if problems:
        raise VerifyError(
            f"rank {plan.program.rank}: gradients are lost",
            details=problems,
            rule="each gradient is in a bucket, each element of a shard is received exactly once",
            fix="report it with the strategy: the compiler made a wrong program",
        )


def _unread(plan: RankPlan) -> Iterator[tuple[str, str]]:
    """Gradients that nobody reads; where each sum is kept by one rank only, a copy may be one of them."""
    read = {piece.param for bucket in plan.program.grad_buckets for piece in bucket.pieces}
    for name, segment in _made(plan).items():
        if name not in read and not _is_empty(plan, name) and not _is_kept_once(plan, name):
            yield name, f"made by {segment} of rank {plan.program.rank}, in no bucket"


def _unmade(plan: RankPlan) -> Iterator[tuple[str, str]]:
    """Contributions that would silently be zero; a rank without micro-batches has nothing to give."""
    made = _made(plan)
    for bucket in plan.program.grad_buckets if plan.program.rows else ():
        for piece in bucket.pieces:
            if piece.src_boxes and piece.length and piece.param not in made:
                yield piece.param, f"contributed to bucket {bucket.id}, made by no segment"


def _made(plan: RankPlan) -> dict[str, str]:
    """Gradients that the rank's instructions make, and the segment that does."""
    ran = {i.segment for i in plan.program.instructions if i.op in COMPUTE_OPS}
    segments = [plan.shared.segments[index] for index in sorted(ran)]
    return {
        output.name: segment.name
        for segment in segments
        for output in segment.outputs
        if output.kind is OutputKind.GRAD
    }


def _is_kept_once(plan: RankPlan, name: str) -> bool:
    return name in plan.shards and plan.shards[name].zero >= ZERO_GRADS


def _is_empty(plan: RankPlan, name: str) -> bool:
    """Whether the rank holds no element of a parameter (an empty share)."""
    return name in plan.shards and prod(plan.shards[name].shape) == 0


def _uncovered(plan: RankPlan) -> Iterator[tuple[str, str]]:
    held = [piece for bucket in plan.program.grad_buckets for piece in bucket.pieces]
    for name, pieces in by_key((piece.param, piece) for piece in held if piece.dst_boxes is not None).items():
        if name not in plan.shards:
            yield name, "received without a shard"
            continue
        shard = plan.shards[name]
        size = volume(shard.kept) if shard.zero >= ZERO_GRADS else prod(shard.shape)
        found = sum(volume(piece.dst_boxes or ()) for piece in pieces)
        if found != size:
            yield name, f"{found} of {size} elements are received by rank {plan.program.rank}"
        viewed = [piece for piece in pieces if piece.dst_view is not None]
        views = by_key((piece.dst_view, box) for piece in viewed for box in piece.dst_boxes or ())
        for view, boxes in views.items():
            pair = overlapping(boxes)
            if pair is not None:
                yield name, f"boxes {pair[0]} and {pair[1]} of {view} overlap"


def overlapping(boxes: list[Box]) -> tuple[Box, Box] | None:
    """Two boxes of one view that share an element, found by a sweep along the first dim."""
    active: list[Box] = []
    for box in sorted(box for box in boxes if volume([box])):
        active = [other for other in active if not other or other[0][1] > box[0][0]]
        for other in active:
            if all(a < d and c < b for (a, b), (c, d) in zip(box, other, strict=True)):
                return other, box
        active.append(box)
    return None
