"""Faults to plant in programs that are right: each kind knows every place where it can be planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from hspmd_compiler.base.comm_plan import Box, CommStep, GradBucket, GradPiece, Piece
from hspmd_compiler.program.program import Op, OutputKind, Program, RankProgram, Segment

Plant = Callable[[], Program]


@dataclass(frozen=True)
class Kind:
    """places: a way to plant the fault at each place of a program. by_shape: seen without numbers."""

    name: str
    places: Callable[[Program], Iterator[Plant]]
    by_shape: bool


def with_rank(base: Program, own: RankProgram, **fields: object) -> Program:
    ranks = [replace(old, **fields) if old.rank == own.rank else old for old in base.ranks]  # type: ignore[arg-type]
    return replace(base, ranks=ranks)


def dropped_sends(base: Program) -> Iterator[Plant]:
    for own in base.ranks:
        for index, item in enumerate(own.instructions):
            if item.op is Op.SEND and own.transfers[item.slot].sends:
                rest = [*own.instructions[:index], *own.instructions[index + 1 :]]
                yield lambda own=own, rest=rest: with_rank(base, own, instructions=rest)


def swapped_tags(base: Program) -> Iterator[Plant]:
    """Two micro-batches of one transfer."""
    for own in base.ranks:
        sends = [
            (i, item)
            for i, item in enumerate(own.instructions)
            if item.op is Op.SEND and own.transfers[item.slot].sends
        ]
        for one, (i, first) in enumerate(sends):
            for j, second in sends[one + 1 :]:
                if first.value == second.value:
                    yield lambda own=own, i=i, j=j: _swapped(base, own, i, j)


def _swapped(base: Program, own: RankProgram, i: int, j: int) -> Program:
    changed = list(own.instructions)
    changed[i] = replace(changed[i], tag=own.instructions[j].tag)
    changed[j] = replace(changed[j], tag=own.instructions[i].tag)
    return with_rank(base, own, instructions=changed)


def groups_in_another_order(base: Program) -> Iterator[Plant]:
    for own in base.ranks:
        for slot, step in enumerate(own.comms):
            if len(step.group) > 1:
                yield lambda own=own, slot=slot, step=step: with_step(
                    base, own, "comms", slot, replace(step, group=step.group[::-1])
                )
        for number, bucket in enumerate(own.grad_buckets):
            if len(bucket.group) > 1:
                yield lambda own=own, number=number, bucket=bucket: with_bucket(
                    base, own, number, replace(bucket, group=bucket.group[::-1])
                )


def wrong_lengths(base: Program) -> Iterator[Plant]:
    """One row less is sent."""
    for own in base.ranks:
        for table, slot, step in steps_of(own):
            for number, piece in enumerate(step.sends):
                shorter = _shorter(piece.boxes[0]) if piece.boxes else None
                if shorter is not None:
                    sends = _put(step.sends, number, replace(piece, boxes=(shorter, *piece.boxes[1:])))
                    yield partial(with_step, base, own, table, slot, replace(step, sends=sends))


def cycles(base: Program) -> Iterator[Plant]:
    """A gradient is awaited before the activation that it comes from is sent."""
    for own in base.ranks:
        for i, item in enumerate(own.instructions):
            later = own.instructions[i + 1 :]
            back = next((other for other in later if other.op is Op.RECV and other.mb == item.mb), None)
            if item.op is Op.SEND and own.transfers[item.slot].sends and back is not None:
                rest = [other for other in own.instructions if other is not back]
                at = rest.index(item)
                yield lambda own=own, new=[*rest[:at], back, *rest[at:]]: with_rank(
                    base, own, instructions=new
                )


def wrong_offsets(base: Program) -> Iterator[Plant]:
    """A box of the same size beside the right one: of a shard that is loaded, or of a piece that is sent."""
    for own in base.ranks:
        for number, shard in enumerate(own.shards):
            if len(shard.boxes) == 1 and not shard.is_buffer and "norm" not in shard.name:
                moved = _moved(shard.boxes[0][0], shard.whole_view)
                if moved is not None:
                    new = replace(shard, boxes=((moved, shard.boxes[0][1]),))
                    yield lambda own=own, n=number, new=new: with_rank(
                        base, own, shards=[*own.shards[:n], new, *own.shards[n + 1 :]]
                    )
        for table, slot, step in steps_of(own):
            for number, piece in enumerate(step.sends):
                moved = _moved(piece.boxes[0], step.src_view or ()) if piece.boxes else None
                if moved is not None:
                    sends = _put(step.sends, number, replace(piece, boxes=(moved, *piece.boxes[1:])))
                    yield partial(with_step, base, own, table, slot, replace(step, sends=sends))


def missing_pieces(base: Program) -> Iterator[Plant]:
    """No rank reduces a gradient that all of them made."""
    for bucket in {bucket.id: bucket for own in base.ranks for bucket in own.grad_buckets}.values():
        for number in range(len(bucket.pieces)):
            if bucket.pieces[number].length:
                yield lambda b=bucket, n=number: _everywhere(
                    base, b, lambda old, n=n: replace(old, pieces=old.pieces[:n] + old.pieces[n + 1 :])
                )


def lone_reductions(base: Program) -> Iterator[Plant]:
    """Every rank keeps its own gradients instead of summing them with others."""
    for bucket in {bucket.id: bucket for own in base.ranks for bucket in own.grad_buckets}.values():
        if len(bucket.group) > 1:
            yield lambda b=bucket: _alone(base, b)


def double_counts(base: Program) -> Iterator[Plant]:
    """A rank adds its copy of a gradient that another rank has added already."""
    for own in base.ranks:
        for number, bucket in enumerate(own.grad_buckets):
            for at, piece in enumerate(bucket.pieces):
                if piece.src_boxes is None and piece.dst_boxes is not None and piece.length:
                    new = replace(piece, src_view=piece.dst_view, src_boxes=piece.dst_boxes)
                    changed = replace(bucket, pieces=_put(bucket.pieces, at, new))
                    yield lambda own=own, n=number, new=changed: with_bucket(base, own, n, new)


def gradients_given_twice(base: Program) -> Iterator[Plant]:
    """A backward segment gives a gradient two times."""
    for name, shared in base.classes.items():
        for index, segment in enumerate(shared.segments):
            for output in segment.outputs:
                if output.kind is OutputKind.GRAD:
                    twice = replace(segment, outputs=[*segment.outputs, output])
                    yield lambda name=name, i=index, new=twice: _with_segment(base, name, i, new)


KINDS = (
    Kind("dropped send", dropped_sends, True),
    Kind("swapped tags", swapped_tags, True),
    Kind("group in another order", groups_in_another_order, True),
    Kind("wrong length", wrong_lengths, True),
    Kind("cycle", cycles, True),
    Kind("wrong offset", wrong_offsets, False),
    Kind("missing gradient reduction", missing_pieces, True),
    Kind("gradients left alone", lone_reductions, False),
    Kind("double count", double_counts, False),
    Kind("gradient given twice", gradients_given_twice, False),
)


def steps_of(own: RankProgram) -> Iterator[tuple[str, int, CommStep]]:
    for table in ("comms", "transfers"):
        for slot, step in enumerate(getattr(own, table)):
            yield table, slot, step


def with_step(base: Program, own: RankProgram, table: str, slot: int, step: CommStep) -> Program:
    steps = list(getattr(own, table))
    steps[slot] = step
    return with_rank(base, own, **{table: steps})


def with_bucket(base: Program, own: RankProgram, number: int, bucket: GradBucket) -> Program:
    buckets = list(own.grad_buckets)
    buckets[number] = bucket
    return with_rank(base, own, grad_buckets=buckets)


def _everywhere(base: Program, bucket: GradBucket, change: Callable[[GradBucket], GradBucket]) -> Program:
    ranks = [
        replace(own, grad_buckets=[change(old) if old.id == bucket.id else old for old in own.grad_buckets])
        for own in base.ranks
    ]
    return replace(base, ranks=ranks)


def _alone(base: Program, bucket: GradBucket) -> Program:
    ranks = []
    for own in base.ranks:
        kept = [replace(old, group=(own.rank,)) if old.id == bucket.id else old for old in own.grad_buckets]
        ranks.append(replace(own, grad_buckets=kept))
    return replace(base, ranks=ranks)


def _with_segment(base: Program, name: str, index: int, segment: Segment) -> Program:
    segments = list(base.classes[name].segments)
    segments[index] = segment
    return replace(base, classes=base.classes | {name: replace(base.classes[name], segments=segments)})


def _put(items: tuple[Piece, ...] | tuple[GradPiece, ...], index: int, new: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:index], new, *items[index + 1 :])


def _shorter(box: Box) -> Box | None:
    for dim, (low, high) in enumerate(box):
        if high - low > 1:
            return (*box[:dim], (low, high - 1), *box[dim + 1 :])
    return None


def _moved(box: Box, view: tuple[int, ...]) -> Box | None:
    """The box, further along the first dim that it does not fill, or back where it is at the end."""
    for dim, ((low, high), size) in enumerate(zip(box, view, strict=True)):
        length = high - low
        if 0 < length < size:
            start = low + 1 if high < size else low - 1
            return (*box[:dim], (start, start + length), *box[dim + 1 :])
    return None
