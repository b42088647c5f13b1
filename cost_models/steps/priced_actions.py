"""The instruction lists of ranks as priced actions for the simulation."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...base.comm_plan import GradBucket, ParamBucket
from ...base.dtypes import BYTES
from ...base.pace import Stretches
from ...base.timeline import Span, SpanKind, Timeline
from ...cluster.calibration import GRADIENT
from ...options import OptimizerConfig
from ...program.boxes import volume
from ...program.gradients.homes import Home, homes_of
from ...program.lifetimes import COMPUTE_OPS
from ...program.messages.early_receives import early_receives
from ...program.program import Instruction, Op, Program, RankProgram, Shard
from ..actions import (
    AwaitSum,
    Compute,
    FinishSends,
    Meet,
    PostRecv,
    RecvFrom,
    SendTo,
    StartSum,
    TimedAction,
)
from ..compute import ACCUMULATE, PACK, UNPACK, DeviceRates, SegmentPrices
from ..links import ClusterCost
from .comm_prices import StepComm
from .rank_shapes import MicroStep, RankShape
from .segment_prices import COPIES, PricedRun, PricedSegment, SegmentPricer
from .segment_walk import CommPart

KINDS = {
    Op.FORWARD: SpanKind.FORWARD,
    Op.BACKWARD: SpanKind.BACKWARD,
    Op.WEIGHTS: SpanKind.BACKWARD,
    Op.STEP_COMPUTE: SpanKind.STEP_VALUE,
}
NUMBERS_BYTES = 16
"""Of the loss, of a norm and of a value of the step: few numbers."""


class StepPricer:
    """Prices of a program's instructions on a cluster.

    rates: of each rank's device. kept: ranks that are simulated; the prices are those of all. apart: see
    SegmentPricer.
    """

    def __init__(
        self,
        program: Program,
        shapes: Sequence[RankShape],
        rates: Sequence[DeviceRates],
        prices: SegmentPrices,
        cost: ClusterCost,
        optimizer: OptimizerConfig,
        kept: frozenset[int] | None = None,
        apart: bool = False,
    ) -> None:
        self.program, self.optimizer, self.cost, self.kept = program, optimizer, cost, kept
        self.owns: dict[int, RankProgram] = {own.rank: own for own in program.ranks}
        self.shapes = {own.rank: shape for own, shape in zip(program.ranks, shapes, strict=True)}
        self.rates = {own.rank: rate for own, rate in zip(program.ranks, rates, strict=True)}
        self.comm = StepComm(self.owns, cost)
        self.segments = SegmentPricer(self.owns, self.shapes, self.rates, prices, self.comm, apart)
        self._everyone = tuple(self.owns)
        self._counts: dict[tuple[int, Hashable], int] = {}
        self._adding: dict[tuple[int, int, int], float] = {}
        self._homes_of: dict[int, Mapping[str, Home]] = {}

    def actions(self) -> dict[int, list[TimedAction]]:
        """The actions of every rank that is simulated."""
        ranks = [rank for rank in self.owns if self.kept is None or rank in self.kept]
        return {rank: self._of_rank(rank) for rank in ranks}

    def split(self, timeline: Timeline) -> Timeline:
        """The timeline with what is computed inside a meeting as spans of their own, before it."""
        return replace(timeline, spans=tuple(one for span in timeline.spans for one in self._split(span)))

    def least_s(self) -> dict[int, dict[int, Stretches]]:
        """Seconds that each instruction computes at least, by rank and position: before, between and behind
        what it exchanges, or all of it."""
        return {rank: dict(self._least(rank)) for rank in self.owns}

    def _least(self, rank: int) -> Iterator[tuple[int, Stretches]]:
        own, rates = self.owns[rank], self.rates[rank]
        grads: set[str] = set()
        for position, (instruction, step) in enumerate(
            zip(own.instructions, self.shapes[rank].steps, strict=True)
        ):
            if instruction.op in COMPUTE_OPS and step is not None:
                first, *others = _between_waits(self._priced(rank, step).pieces, step)
                seconds = [rates.instruction_s + first, *others]
                seconds[-1] += self._adding_s(rates, step, grads)
                yield position, tuple(seconds)
            elif instruction.op is Op.OPTIMIZER:
                yield position, (self._update_s(rank),)

    def _priced(self, rank: int, step: MicroStep) -> PricedSegment:
        assert step.walked is not None, "a segment was walked"
        return self.segments.of(rank, step.walked)

    def _split(self, span: Span) -> Iterator[Span]:
        instruction = self.owns[span.rank].instructions[span.position]
        step = self.shapes[span.rank].steps[span.position]
        if span.kind is not SpanKind.COLLECTIVE or step is None or instruction.op not in COMPUTE_OPS:
            yield span
            return
        runs = self._priced(span.rank, step).runs
        inner = sum(run.inner_s for run in runs if _others(run.group, span.rank, span.peers, self.kept))
        middle = min(span.end_s, span.start_s + inner)
        if inner:
            yield replace(
                span, end_s=middle, kind=KINDS[instruction.op], group=(), size_bytes=0, label=span.label
            )
        yield replace(span, start_s=middle)

    def _of_rank(self, rank: int) -> list[TimedAction]:
        own, steps = self.owns[rank], self.shapes[rank].steps
        made: list[TimedAction] = []
        grads: set[str] = set()
        early = early_receives(own.instructions, own.receives_ahead)
        posted = {each.tag for together in early.values() for each in together}
        for position, instruction in enumerate(own.instructions):
            step = steps[position]
            if step is not None and instruction.op in COMPUTE_OPS:
                made += self._compute(rank, position, instruction, step, grads)
            elif instruction.op is Op.SEND:
                made += self._send(rank, position, instruction)
            elif instruction.op is Op.RECV:
                is_posted = instruction.tag in posted
                made += self._recv(rank, position, instruction, is_posted, early.get(position, ()))
            else:
                made += self._other(rank, position, instruction)
        made.append(FinishSends("sends end", len(own.instructions) - 1))
        return made

    def _compute(
        self, rank: int, position: int, instruction: Instruction, step: MicroStep, grads: set[str]
    ) -> list[TimedAction]:
        priced = self._priced(rank, step)
        kind, mb = KINDS[instruction.op], instruction.mb
        name = self.program.classes[self.owns[rank].class_name].segments[instruction.segment].name
        rates = self.rates[rank]
        seconds = [*priced.computed]
        seconds[0] += rates.instruction_s
        seconds[-1] += self._adding_s(rates, step, grads)
        made: list[TimedAction] = [Compute(seconds[0], kind, name, position, mb)]
        begun: dict[Hashable, Hashable] = {}
        for run, after in zip(priced.runs, seconds[1:], strict=True):
            made.append(self._run(rank, run, begun, (name, position, mb)))
            made.append(Compute(after, kind, name, position, mb))
        return made

    def _run(
        self, rank: int, run: PricedRun, begun: dict[Hashable, Hashable], place: tuple[str, int, int]
    ) -> TimedAction:
        """One meeting, or the start or the end of one that goes on beside. begun: keys of the latter."""
        group, kind = self._present(run.group), SpanKind.COLLECTIVE
        if run.part is CommPart.END:
            return AwaitSum(begun.pop(run.key), group, kind, *place)
        key = self._occurrence(rank, run.key)
        if run.part is CommPart.ALL:
            return Meet(key, group, run.seconds, kind, *place, run.size_bytes, run.busy_s)
        begun[run.key] = key
        return StartSum(key, group, run.seconds, kind, *place, run.size_bytes, run.busy_s)

    def _adding_s(self, rates: DeviceRates, step: MicroStep, grads: set[str]) -> float:
        """Gradients added to what is there of each, found once for none and for all being there."""
        if not step.grads:
            return 0.0
        new = len(step.grads.keys() - grads)
        key = (id(rates), id(step), new if new in (0, len(step.grads)) else -1)
        known = self._adding.get(key)
        if known is None:
            known = _adding_s(rates, step, grads)
            if key[2] >= 0:
                self._adding[key] = known
        if new:
            grads |= step.grads.keys()
        return known

    def _send(self, rank: int, position: int, instruction: Instruction) -> list[TimedAction]:
        step = self.owns[rank].transfers[instruction.slot]
        mb = instruction.mb
        made: list[TimedAction] = [Compute(self.rates[rank].instruction_s, SpanKind.SEND, "", position, mb)]
        for peer, size, seconds in self.comm.sends(step, rank):
            if self._is_there(peer):
                made.append(SendTo(peer, instruction.tag, size, seconds, f"mb {mb}", position, mb))
        return made

    def _recv(
        self,
        rank: int,
        position: int,
        instruction: Instruction,
        is_posted: bool,
        early: Sequence[Instruction],
    ) -> list[TimedAction]:
        """All pieces are posted, unless they are, then those of later receives; its own are waited for."""
        tag, mb = instruction.tag, instruction.mb
        peers = self._senders(rank, instruction)
        made: list[TimedAction] = [Compute(self.rates[rank].instruction_s, SpanKind.RECV, "", position, mb)]
        if not is_posted and (len(peers) > 1 or early):
            made += [PostRecv(peer, tag) for peer in peers]
        made += [PostRecv(peer, each.tag) for each in early for peer in self._senders(rank, each)]
        made += [RecvFrom(peer, tag, f"mb {mb}", position, mb) for peer in peers]
        return made

    def _senders(self, rank: int, instruction: Instruction) -> list[int]:
        step = self.owns[rank].transfers[instruction.slot]
        return [peer for peer in self.comm.senders(step, rank) if self._is_there(peer)]

    def _other(self, rank: int, position: int, instruction: Instruction) -> list[TimedAction]:
        own, op = self.owns[rank], instruction.op
        if op is Op.STEP_REDUCE:
            step = own.comms[instruction.slot]
            return self._few_numbers(rank, (step.id, step.group), step.group, SpanKind.STEP_VALUE, position)
        if op is Op.LOSS:
            return self._few_numbers(rank, "loss", self._everyone, SpanKind.LOSS, position)
        if op in (Op.GRAD_SYNC, Op.GRAD_SCATTER):
            return self._reduce(rank, position, op)
        if op in (Op.REDUCE_START, Op.REDUCE_WAIT):
            return self._wave(rank, position, instruction)
        if op is Op.PARAM_GATHER:
            return [one for bucket in own.param_buckets for one in self._gather(rank, position, bucket)]
        return self._update(rank, position) if op is Op.OPTIMIZER else []

    def _few_numbers(
        self, rank: int, key: Hashable, group: tuple[int, ...], kind: SpanKind, position: int
    ) -> list[TimedAction]:
        if len(group) < 2:
            return []
        seconds = self.cost.all_reduce_s(group, NUMBERS_BYTES)
        name = self._occurrence(rank, key)
        return [Meet(name, self._present(group), seconds, kind, kind.value, position, -1, NUMBERS_BYTES)]

    def _wave(self, rank: int, position: int, instruction: Instruction) -> list[TimedAction]:
        """Buckets are packed and started, or awaited."""
        own, rates = self.owns[rank], self.rates[rank]
        made: list[TimedAction] = [Compute(rates.instruction_s, SpanKind.GRADIENT, "", position)]
        for bucket in own.grad_buckets:
            if bucket.wave != instruction.wave:
                continue
            key, label, size = ("bucket", bucket.id), f"bucket {bucket.id}", self.comm.bucket_bytes(bucket)
            group = self._present(bucket.group)
            if instruction.op is Op.REDUCE_WAIT:
                made.append(AwaitSum(key, group, SpanKind.GRADIENT, label, position))
                continue
            if bucket.given and bucket.given[0].param not in self._homes(own):
                packing = rates.named_s(PACK, bucket.dtype, size, len(bucket.given), COPIES)
                made.append(Compute(packing, SpanKind.GRADIENT, label, position))
            met = self._bucket(rank, key, bucket, SpanKind.GRADIENT, label, position)
            made.append(StartSum(key, group, met.seconds, met.kind, label, position, -1, size, met.busy_s))
        return made

    def _homes(self, own: RankProgram) -> Mapping[str, Home]:
        if own.rank not in self._homes_of:
            self._homes_of[own.rank] = homes_of(own)
        return self._homes_of[own.rank]

    def _reduce(self, rank: int, position: int, op: Op) -> list[TimedAction]:
        own, rates = self.owns[rank], self.rates[rank]
        kind = SpanKind.GRADIENT
        made: list[TimedAction] = [Compute(rates.instruction_s, kind, "", position)]
        for bucket in own.grad_buckets:
            is_scattered = bool(bucket.pieces) and bucket.pieces[0].param in own.scattered
            size = self.comm.bucket_bytes(bucket)
            if len(bucket.group) < 2 or not size or bucket.wave >= 0:
                continue
            if op is Op.GRAD_SCATTER and not is_scattered:
                continue
            label = f"bucket {bucket.id}"
            packing = rates.named_s(PACK, bucket.dtype, size, len(bucket.given), COPIES)
            made.append(Compute(packing, kind, label, position))
            key = self._occurrence(rank, ("bucket", bucket.id))
            made.append(self._bucket(rank, key, bucket, kind, label, position))
        return made

    def _bucket(
        self,
        rank: int,
        key: Hashable,
        bucket: GradBucket | ParamBucket,
        kind: SpanKind,
        label: str,
        position: int,
    ) -> Meet:
        comms = self.owns[rank].comms
        seconds, size = self.comm.bucket_s(bucket, comms), self.comm.bucket_bytes(bucket)
        of = comms[bucket.slot].kind.value if bucket.slot >= 0 else GRADIENT
        busy_s = seconds * self.cost.busy_part(of, bucket.group)
        return Meet(key, self._present(bucket.group), seconds, kind, label, position, -1, size, busy_s)

    def _gather(self, rank: int, position: int, bucket: ParamBucket) -> list[TimedAction]:
        rates = self.rates[rank]
        kind, label = SpanKind.GATHER, f"parameters {bucket.id}"
        size = self.comm.bucket_bytes(bucket)
        copying = rates.named_s(UNPACK, bucket.dtype, size, len(bucket.pieces), COPIES)
        made: list[TimedAction] = [Compute(copying, kind, label, position)]
        if bucket.slot >= 0 and len(bucket.group) > 1:
            key = self._occurrence(rank, ("gather", bucket.id))
            made.append(self._bucket(rank, key, bucket, kind, label, position))
        return made

    def _update(self, rank: int, position: int) -> list[TimedAction]:
        """Sends are over, gradients clipped, parameters updated and handed to the segments."""
        kind = SpanKind.UPDATE
        made: list[TimedAction] = [FinishSends("sends end", position)]
        if self.optimizer.max_grad_norm is not None:
            sizes = [volume(shard.kept) * BYTES[shard.dtype] for shard in self._updated(rank)]
            made.append(Compute(self.rates[rank].moved_s(2.0 * sum(sizes)), kind, "norm", position))
            made += self._few_numbers(rank, "norm", self._everyone, kind, position)
        made.append(Compute(self._update_s(rank), kind, "update", position))
        return made

    def _updated(self, rank: int) -> list[Shard]:
        own = self.owns[rank]
        updated = {piece.param for bucket in own.grad_buckets for piece in bucket.kept}
        return [shard for shard in own.shards if shard.name in updated]

    def _update_s(self, rank: int) -> float:
        """What is trained, and handed to the segments where it is apart from what they read."""
        rates, shards = self.rates[rank], self._updated(rank)
        sizes = [volume(shard.kept) * BYTES[shard.dtype] for shard in shards]
        apart = sum(size for size, shard in zip(sizes, shards, strict=True) if shard.is_flat or shard.zero)
        return rates.update_s(sizes, self.optimizer) + rates.moved_s(COPIES * apart) + rates.instruction_s

    def _is_there(self, rank: int) -> bool:
        return self.kept is None or rank in self.kept

    def _present(self, group: tuple[int, ...]) -> tuple[int, ...]:
        return group if self.kept is None else tuple(rank for rank in group if rank in self.kept)

    def _occurrence(self, rank: int, key: Hashable) -> Hashable:
        """The n-th meeting of a step: ids come again with each micro-batch."""
        count = self._counts.get((rank, key), 0)
        self._counts[rank, key] = count + 1
        return key, count


def _adding_s(rates: DeviceRates, step: MicroStep, grads: set[str]) -> float:
    """Gradients are added to their sums, two reads and a write each; of narrow ones wider copies are made."""
    seconds = 0.0
    widened = sum(size for size, is_wide in step.grads.values() if is_wide)
    if widened:
        seconds += rates.moved_s(1.5 * widened, len(step.grads))
    again = [size for name, (size, _) in step.grads.items() if name in grads]
    if again:
        seconds += rates.named_s(ACCUMULATE, "float32", sum(again), len(again), 3)
    return seconds


def _others(group: tuple[int, ...], rank: int, peers: tuple[int, ...], kept: frozenset[int] | None) -> bool:
    """Whether a span's partners are those of a group."""
    if kept is None and len(group) != len(peers) + 1:
        return False
    return {one for one in group if one != rank and (kept is None or one in kept)} == set(peers)


def _between_waits(pieces: Sequence[float], step: MicroStep) -> list[float]:
    """What is computed before, between and behind rows that wait: a start waits for nobody."""
    assert step.walked is not None, "a segment was walked"
    found = [pieces[0]]
    for comm, piece in zip(step.walked.comms, pieces[1:], strict=True):
        if comm.part is CommPart.START:
            found[-1] += piece
        else:
            found.append(piece)
    return found
