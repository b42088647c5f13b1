"""Whether the sums that start while backward goes on may: their gradients are whole, and all are awaited."""

from __future__ import annotations

from collections.abc import Iterator

from ..program import ClassProgram, Op, OutputKind, RankProgram

AWAIT = (Op.REDUCE_START, Op.REDUCE_WAIT)


def wave_problems(own: RankProgram, shared: ClassProgram) -> Iterator[str]:
    """Each wave starts once, behind all that makes its gradients, and is awaited in the order of starts."""
    waves = {bucket.wave for bucket in own.grad_buckets} - {-1}
    told = [(at, each) for at, each in enumerate(own.instructions) if each.op in AWAIT]
    if not waves and not told:
        return
    starts, waits = ([each.wave for _, each in told if each.op is op] for op in AWAIT)
    if len({*starts}) != len(starts) or starts != waits:
        yield f"waves {starts} start, {waits} are awaited"
    if not waves <= {*starts}:
        yield f"waves {sorted(waves - {*starts})} of gradient buckets are never started"
    yield from _bucket_problems(own)
    if told and any(each.op is Op.LOSS for each in own.instructions[: told[-1][0]]):
        yield "a sum of gradients is awaited behind LOSS, which tells that all are there"
    yield from _early(own, shared)


def _bucket_problems(own: RankProgram) -> Iterator[str]:
    for bucket in own.grad_buckets:
        if bucket.wave >= 0 and (bucket.slot >= 0 or len(bucket.group) == 1):
            yield f"bucket {bucket.id} is of wave {bucket.wave}, and not summed over all of its ranks"


def _early(own: RankProgram, shared: ClassProgram) -> Iterator[str]:
    """Waves that start before some part of a backward pass has added to their gradients."""
    given: dict[int, set[str]] = {}
    for bucket in own.grad_buckets:
        if bucket.wave >= 0:
            given.setdefault(bucket.wave, set()).update(piece.param for piece in bucket.given)
    started: dict[str, int] = {}
    for at, each in enumerate(own.instructions):
        if each.op is Op.REDUCE_START:
            started |= dict.fromkeys(given.get(each.wave, ()), each.wave)
        elif started and 0 <= each.segment < len(shared.segments):
            made = [it.name for it in shared.segments[each.segment].outputs if it.kind is OutputKind.GRAD]
            for name in started.keys() & made:
                yield f"wave {started[name]} starts before instruction {at} adds to the gradient of {name}"
