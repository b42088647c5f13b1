"""The memory of a rank over its instructions: stored, kept alive by its schedule, held for a moment."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod

from ...base.comm_plan import CommStep, GatherForm, GradBucket, GradPiece
from ...base.dtypes import BYTES
from ...cluster.calibration import HeldMemory
from ...options import OptimizerConfig
from ...program.boxes import full_box, in_one_run, received_volumes, volume
from ...program.exchange_plan import ExchangePlan, Shortcut, gathered_sizes, scattered_sizes
from ...program.gradients.homes import homes_of
from ...program.lifetimes import last_pieces
from ...program.messages.early_receives import early_receives
from ...program.program import ZERO_GRADS, ZERO_PARAMS, Instruction, Op, Program, Shard
from .rank_shapes import MicroStep, RankShape
from .stored_bytes import gradient_bytes, moments_of, parameter_bytes


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes by what they are for. kept: from forward to backward. buffers: of communication. allocator: what
    it keeps of freed blocks, and other bytes beyond tensors, as they were measured.
    """

    parameters: int = 0
    optimizer: int = 0
    gradients: int = 0
    kept: int = 0
    transient: int = 0
    buffers: int = 0
    batch: int = 0
    platform: int = 0
    allocator: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        stored = self.parameters + self.optimizer + self.gradients
        beside = self.batch + self.platform + self.allocator
        return stored + self.kept + self.transient + self.buffers + beside


PARTS = tuple(part.name for part in fields(MemoryParts))


@dataclass(frozen=True, slots=True)
class RankMemory:
    """peaks, held: bytes within, and after, each instruction. peak: the parts of the most, at `position`."""

    peaks: tuple[int, ...]
    held: tuple[int, ...]
    start: int
    peak: MemoryParts
    position: int

    def beside(self, platform_bytes: int, held: HeldMemory) -> RankMemory:
        """The same tensors on a platform, with an allocator of which it is known what it keeps."""

        def grown(tensors: int) -> int:
            return tensors + platform_bytes + held.extra(tensors)

        return RankMemory(
            tuple(map(grown, self.peaks)),
            tuple(map(grown, self.held)),
            grown(self.start),
            replace(self.peak, platform=platform_bytes, allocator=held.extra(self.peak.total)),
            self.position,
        )


def rank_memory(program: Program, shape: RankShape, optimizer: OptimizerConfig) -> RankMemory:
    """Tensors of one step of one rank, the optimizer's state being there already."""
    return _Ledger(program, shape, optimizer).run()


class _Ledger:
    """What is held now, instruction by instruction."""

    def __init__(self, program: Program, shape: RankShape, optimizer: OptimizerConfig) -> None:
        own = shape.own
        self.shape, self.own, self.optimizer = shape, own, optimizer
        self.homes = homes_of(own)
        self.shards: dict[str, Shard] = {shard.name: shard for shard in own.shards}
        updated = {piece.param for bucket in own.grad_buckets for piece in bucket.kept}
        self.trained = [shard for shard in own.shards if shard.name in updated]
        moments = moments_of(optimizer)
        rows = sum(high - low for low, high in own.rows)
        self.now = MemoryParts(
            parameters=sum(map(parameter_bytes, own.shards)),
            optimizer=sum(moments * volume(shard.kept) * BYTES[shard.dtype] for shard in self.trained),
            batch=sum(
                rows * prod(dims[: own.row_dim] + dims[own.row_dim + 1 :]) * BYTES[dtype]
                for dims, dtype in program.inputs.values()
            ),
            gradients=self._kept_flats(),
        )
        self.grads: dict[str, int] = {}
        self.filled: set[str] = set()
        self.answer = 0
        self.is_synced = False
        self.until_sent = 0
        self.sent: list[int] = []
        self.over = 0
        self.early = early_receives(own.instructions, own.receives_ahead)
        self.posted: dict[int, int] = {}
        self.peaks: list[int] = []
        self.held: list[int] = []
        self.start = self.now.total
        self.most = self.now
        self.position = -1

    def run(self) -> RankMemory:
        """All instructions in order."""
        for position, instruction in enumerate(self.own.instructions):
            step = self.shape.steps[position]
            self._post(position, instruction)
            peak = self._micro(step) if step is not None else self._other(instruction)
            self._let_go(instruction, step)
            if peak.total > self.most.total:
                self.most, self.position = peak, position
            self.peaks.append(peak.total)
            self.held.append(self.now.total)
        return RankMemory(tuple(self.peaks), tuple(self.held), self.start, self.most, self.position)

    def _micro(self, step: MicroStep) -> MemoryParts:
        """A segment or a message; then gradients are added to their sums, while all that it gave is there."""
        now = self.now
        inside = replace(now, transient=now.transient + step.extra)
        fresh = {name: size for name, (size, _) in step.grads.items() if name not in self.grads}
        apart = sum(size for name, size in fresh.items() if step.grads[name][1] and name not in self.homes)
        fresh |= dict.fromkeys(fresh.keys() & self.homes.keys(), 0)
        widened = [size for name, (size, wide) in step.grads.items() if wide and name not in fresh]
        after = replace(
            now,
            kept=now.kept + step.delta - step.until_sent,
            buffers=now.buffers + step.until_sent,
        )
        adding = replace(after, transient=step.new - step.kept + max(widened, default=0) + apart)
        self.until_sent += step.until_sent
        self.grads |= fresh
        self.now = replace(after, gradients=now.gradients + sum(fresh.values()))
        return max(inside, adding, self.now, key=lambda parts: parts.total)

    def _post(self, position: int, instruction: Instruction) -> None:
        """Receives that are posted early hold their memory until their turn."""
        if instruction.op is not Op.RECV:
            return
        before = sum(self.posted.values())
        self.posted.pop(instruction.tag, None)
        for each in self.early.get(position, ()):
            step = self.own.transfers[each.slot]
            self.posted[each.tag] = sum(received_volumes(step).values()) * BYTES[step.dtype]
        more = sum(self.posted.values()) - before
        self.now = replace(self.now, buffers=self.now.buffers + more)

    def _let_go(self, instruction: Instruction, step: MicroStep | None) -> None:
        """What a program knows to be received goes where its RECV says so; the rest when sends are over."""
        if instruction.op is Op.SEND:
            self.sent.append(0 if step is None else step.until_sent)
        elif instruction.over > self.over:
            gone = sum(self.sent[self.over : instruction.over])
            self.over = instruction.over
            self.until_sent -= gone
            self.now = replace(self.now, buffers=self.now.buffers - gone)

    def _other(self, instruction: Instruction) -> MemoryParts:
        if instruction.op in (Op.GRAD_SYNC, Op.GRAD_SCATTER):
            return self._reduce(instruction)
        if instruction.op is Op.REDUCE_START:
            return self._start(instruction)
        if instruction.op is Op.REDUCE_WAIT:
            return self._wait(instruction)
        if instruction.op is Op.OPTIMIZER:
            return self._update()
        if instruction.op is Op.PARAM_GATHER:
            return self._gather()
        if instruction.op is Op.PARAM_DROP:
            self.now = replace(self.now, parameters=self.now.parameters - self._gathered)
        return self.now

    def _reduce(self, instruction: Instruction) -> MemoryParts:
        """Bucket after bucket: its flat form beside the sums, which go when no later bucket reads them."""
        most, before = self.now, self.now.gradients
        scattered = self.own.scattered
        gone, self.answer, self.filled = 0, 0, set()
        for bucket, done in zip(self.own.grad_buckets, last_pieces(self.own.grad_buckets), strict=True):
            is_scattered = bool(bucket.pieces) and bucket.pieces[0].param in scattered
            if bucket.wave >= 0 or (instruction.op is Op.GRAD_SCATTER and not is_scattered):
                continue
            peak = self._reduce_bucket(bucket)
            most = max(most, peak, key=lambda parts: parts.total)
            ended = sum(self.grads.pop(name, 0) for name in done)
            gone += ended
            self.now = replace(self.now, gradients=self.now.gradients - ended)
        if self.is_synced:  # added to what was handed over before
            self.now = replace(self.now, gradients=before - gone)
        self.is_synced = True
        if instruction.op is Op.GRAD_SYNC:
            left = sum(self.grads.values())
            self.grads.clear()
            self.now = replace(self.now, gradients=self.now.gradients - left)
        return most

    def _kept_flats(self) -> int:
        """Bytes of the buckets in whose memory gradients are summed; it is kept between steps."""
        return sum(home.length * BYTES[home.bucket.dtype] for home in self.homes.values())

    def _start(self, instruction: Instruction) -> MemoryParts:
        """The flat buckets of a wave beside the gradients that they are made of, which go then."""
        most = self.now
        for bucket, done in zip(self.own.grad_buckets, last_pieces(self.own.grad_buckets), strict=True):
            if bucket.wave != instruction.wave or bucket.pieces[0].param in self.homes:
                continue
            size = BYTES[bucket.dtype]
            given = sum(piece.length for piece in bucket.given) * size
            copied = sum(piece.length for piece in bucket.given if not _is_given_whole(piece)) * size
            peak = replace(self.now, buffers=self.now.buffers + given + copied)
            most = max(most, peak, key=lambda parts: parts.total)
            ended = sum(self.grads.pop(name, 0) for name in done)
            self.now = replace(
                self.now, gradients=self.now.gradients - ended, buffers=self.now.buffers + given
            )
        return most

    def _wait(self, instruction: Instruction) -> MemoryParts:
        """Sums are there; those of whole gradients stay in the memory of their buckets."""
        most = self.now
        for bucket in self.own.grad_buckets:
            if bucket.wave != instruction.wave:
                continue
            size = BYTES[bucket.dtype]
            given = sum(piece.length for piece in bucket.given) * size
            filled = self._filled(bucket) * size
            if bucket.pieces[0].param in self.homes:
                given = 0  # in memory that is always there
            kept = filled + (given if any(map(_is_whole, bucket.kept)) else 0)
            peak = replace(self.now, gradients=self.now.gradients + filled)
            most = max(most, peak, key=lambda parts: parts.total)
            buffers = self.now.buffers - given
            self.now = replace(self.now, gradients=self.now.gradients + kept, buffers=buffers)
        return most

    def _reduce_bucket(self, bucket: GradBucket) -> MemoryParts:
        """What it holds at most; the sums that it leaves are gradients from then on.

        The answer of the bucket before stays until the rank asks again: while this one is packed.
        """
        size = BYTES[bucket.dtype]
        given = sum(piece.length for piece in bucket.given) * size
        kept = sum(piece.length for piece in bucket.kept) * size
        filled = self._filled(bucket) * size
        whole = sum(piece.length for piece in bucket.kept if _is_whole(piece)) * size
        copied = sum(piece.length for piece in bucket.given if not _is_given_whole(piece)) * size
        if len(bucket.group) == 1:
            peak = replace(self.now, buffers=self.now.buffers + self.answer + copied + filled)
            held = filled + whole
        elif bucket.slot >= 0:  # the flat bucket, what arrives, and what is pasted of it
            step = self.own.comms[bucket.slot]
            longest = _longest_sum(step) * size
            arrived = kept * len(step.recvs)
            beside = kept if ExchangePlan.of(step).shortcut is Shortcut.REDUCE_SCATTER else max(given, kept)
            if longest:  # addends that are padded, then the sum, of which this rank's is the first part
                arrived, beside, kept = longest * len(step.group), longest, longest
            beside = max(copied + self.answer, arrived + beside, kept + filled)
            peak = replace(self.now, buffers=self.now.buffers + given + beside)
            held, self.answer = (filled + kept, 0) if whole else (filled, kept)
        else:
            twice = given if len(bucket.pieces) == 1 else 0
            beside = max(copied + self.answer, twice, filled)
            peak = replace(self.now, buffers=self.now.buffers + given + beside)
            held, self.answer = (filled + given, 0) if whole else (filled, given)
        self.now = replace(self.now, gradients=self.now.gradients + held)
        return peak

    def _filled(self, bucket: GradBucket) -> int:
        """Elements of summed gradients that are put together of pieces, and begin with this bucket."""
        begun = {piece.param for piece in bucket.kept if not _is_whole(piece)} - self.filled
        self.filled |= begun
        views = {piece.param: piece.dst_view for piece in bucket.kept}
        return sum(prod(self.shards[name].synced_shape(views[name] or ())) for name in begun)

    def _update(self) -> MemoryParts:
        """Sends are over; then what an update in place needs packed: pieces of several boxes."""
        self.now = replace(self.now, buffers=self.now.buffers - self.until_sent)
        self.until_sent = 0
        apart = 0
        for shard in self.trained:
            if in_one_run(shard.view, shard.kept):
                continue
            apart += volume(shard.kept) * BYTES[shard.dtype] if shard.zero and not shard.is_flat else 0
            cut = (shard.is_flat or shard.zero) and shard.zero < ZERO_GRADS
            apart += gradient_bytes(shard) if cut else 0
        return replace(self.now, transient=self.now.transient + apart)

    @cached_property
    def _gathered(self) -> int:
        """Bytes of the local tensors that are there only while they are used."""
        names = {piece.param for bucket in self.own.param_buckets for piece in bucket.pieces}
        shards = [self.shards[name] for name in names]
        return sum(
            prod(shard.shape) * BYTES[shard.local_dtype] for shard in shards if shard.zero >= ZERO_PARAMS
        )

    def _gather(self) -> MemoryParts:
        flat = 0
        for bucket in self.own.param_buckets:  # rows and their join; then what arrives, and what is pasted
            stored = sum(piece.row[1] - piece.row[0] for piece in bucket.pieces)
            whole = sum(piece.length for piece in bucket.pieces)
            arrived = gather_elements(self.own.comms[bucket.slot], stored, whole) if bucket.slot >= 0 else 0
            flat = max(flat, (stored + max(stored, arrived)) * BYTES[bucket.dtype])
        drops = any(i.op is Op.PARAM_DROP for i in self.own.instructions)
        self.now = replace(self.now, parameters=self.now.parameters + (self._gathered if drops else 0))
        return replace(self.now, buffers=self.now.buffers + flat)


def _longest_sum(step: CommStep) -> int:
    """Elements that sums are padded to; 0 where they aren't."""
    return max(scattered_sizes(step) or (0,)) if step.form is GatherForm.PADDED else 0


def gather_elements(step: CommStep, stored: int, whole: int) -> int:
    """Held beside a rank's own flat piece: what the form sends and what arrives, then that and its result."""
    members = len(step.group)
    if step.form is GatherForm.ALL_TO_ALL:  # a copy for each; of equal pieces as much as all of it
        return whole + max(whole, stored * members)
    if step.form is GatherForm.BROADCASTS:
        return 2 * whole
    longest = max(gathered_sizes(step) or (stored,))
    return longest * members + max(longest, whole)


def _is_whole(piece: GradPiece) -> bool:
    """Whether a synchronised gradient is a view of the bucket."""
    return piece.dst_view is not None and piece.dst_boxes == (full_box(piece.dst_view),)


def _is_given_whole(piece: GradPiece) -> bool:
    """Whether it goes into the bucket without a copy of its own."""
    return piece.src_view is not None and piece.src_boxes == (full_box(piece.src_view),)
