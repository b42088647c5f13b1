"""What an instruction does that sums gradients over ranks: all at once, or a start and a wait per wave."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, TypeAlias

from ...base.comm_plan import GradBucket
from ...errors import InternalError
from ..buckets import keep_bucket, pack_bucket, unpack_bucket
from ..program import Instruction
from ..requests import Exchange, GradReduce, ReduceStart, ReduceWait, Request, V
from .homes import filled_flat

if TYPE_CHECKING:
    from ..execute import Walk

Run: TypeAlias = Generator[Request[V], V | None, None]
Buckets: TypeAlias = Iterable[tuple[GradBucket, frozenset[str]]]
"""Buckets, each with the gradients that no later one reads."""


def reduce_start(walk: Walk[V], instruction: Instruction) -> Run[V]:
    """Let the sums of a wave's buckets be under way. Nothing may be added to their gradients any more."""
    state = walk.state
    for bucket, done in _buckets(walk):
        if bucket.wave != instruction.wave:
            continue
        flat = filled_flat(state.flats, bucket, state.grads, walk.plan.homes)
        if flat is None:
            flat = pack_bucket(walk.arrays, bucket, state.grads)
        request: Request[V] = ReduceStart(bucket, flat)
        del flat
        for name in done:
            state.grads.pop(name, None)
        state.started.update(piece.param for piece in bucket.given)
        yield request
        del request


def reduce_wait(walk: Walk[V], instruction: Instruction) -> Run[V]:
    """The sums of a wave's buckets are synchronised gradients."""
    for bucket, _ in _buckets(walk):
        if bucket.wave == instruction.wave:
            reduced = walk.received((yield ReduceWait(bucket)))
            unpack_bucket(walk.arrays, bucket, reduced, walk.plan.shards, walk.state.synced)
            del reduced


def grad_scatter(walk: Walk[V], instruction: Instruction) -> Run[V]:
    """Hand over the gradients of which this rank keeps a share; the others go on being summed here."""
    state, shared = walk.state, walk.plan.scattered
    yield from _reduce(walk, [each for each in _buckets(walk) if walk.plan.is_scattered(each[0])])
    for name in shared & state.grads.keys():
        del state.grads[name]
    state.owned_grads -= shared


def grad_sync(walk: Walk[V], instruction: Instruction) -> Run[V]:
    """All that no wave has."""
    yield from _reduce(walk, [each for each in _buckets(walk) if each[0].wave < 0])
    walk.state.grads.clear()
    walk.state.owned_grads.clear()
    walk.state.started.clear()


def refuse_started(name: str, at: str) -> InternalError:
    """The error of a gradient that is added to what others may be summing."""
    return InternalError(
        f"the sum of the gradient of {name} has started before the gradient was whole",
        at=at,
        rule="a bucket starts behind the last micro-batch's rows that make its gradients",
    )


def _buckets(walk: Walk[V]) -> Buckets:
    return zip(walk.plan.program.grad_buckets, walk.plan.grad_releases, strict=True)


def _reduce(walk: Walk[V], buckets: Buckets) -> Run[V]:
    """Add what this rank gets of buckets to its synchronised gradients."""
    state, arrays = walk.state, walk.arrays
    found: dict[str, V] = {}
    for bucket, done in buckets:
        if len(bucket.group) == 1:
            keep_bucket(arrays, bucket, state.grads, state.owned_grads, walk.plan.shards, found)
        else:
            yield from _reduce_bucket(walk, bucket, found)
        for name in done:
            state.grads.pop(name, None)
    for name in [*found]:
        state.synced[name] = arrays.accumulate(state.synced.get(name), found.pop(name), True)


def _reduce_bucket(walk: Walk[V], bucket: GradBucket, found: dict[str, V]) -> Run[V]:
    if bucket.slot >= 0:
        yield from _scatter_bucket(walk, bucket, found)
        return
    flat = pack_bucket(walk.arrays, bucket, walk.state.grads)
    request = GradReduce(bucket, flat)
    del flat
    reduced = walk.received((yield request))
    unpack_bucket(walk.arrays, bucket, reduced, walk.plan.shards, found)


def _scatter_bucket(walk: Walk[V], bucket: GradBucket, found: dict[str, V]) -> Run[V]:
    """Give what others keep, receive the sum of what this rank keeps."""
    step = walk.plan.program.comms[bucket.slot]
    flat = None if step.src_view is None else pack_bucket(walk.arrays, bucket, walk.state.grads)
    request: Request[V] = Exchange(step, flat)
    del flat
    reduced = yield request
    if step.dst_view is not None:
        unpack_bucket(walk.arrays, bucket, walk.received(reduced), walk.plan.shards, found)
