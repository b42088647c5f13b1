"""The one executor: walks a rank's instructions and asks its driver for everything that moves."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias

from ..base.comm_plan import CommStep, GradBucket
from ..errors import InternalError
from .arrays import Arrays
from .buckets import pack_params, unpack_params
from .gradients.homes import Home, homes_of
from .gradients.reduce import grad_scatter, grad_sync, reduce_start, reduce_wait, refuse_started
from .lifetimes import MicroKey, fresh_by_segment, kept_values, last_pieces, last_reads
from .messages.early_receives import EarlyReceives, early_receives
from .program import (
    ClassProgram,
    InputKind,
    Instruction,
    Op,
    OutputKind,
    Program,
    RankProgram,
    SegmentInput,
    SegmentOutput,
    Shard,
)
from .requests import (
    Exchange,
    LossReduce,
    OptimizerStep,
    Recv,
    Request,
    SegmentRun,
    Send,
    StepRun,
    V,
    comm_request,
)
from .sized.documents import documents_key
from .sized.step_tables import StepTables

InstructionRun: TypeAlias = Generator[Request[V], V | None, None]


class SegmentRunner(Protocol[V]):
    """How the segments of one rank are run."""

    def start(self, segment: int, mb: int, inputs: list[V], owned: list[bool]) -> SegmentRun[V]:
        """Start a segment. owned: inputs that nobody else keeps. Must not hold `inputs` for long."""


@dataclass(slots=True)
class RankState(Generic[V]):
    """What a rank holds. params: local shards of parameters and buffers, by name; of a parameter that is
    stored in part only while it is used. stored: flat rows of the elements that the rank trains, for
    shards with `is_flat`.

    keys: of random masks, one per micro-batch, set before each step. micro: values kept for later
    instructions of a micro-batch. steps: values of this step. grads: accumulated here. flats: memory of
    buckets that gradients are summed in, by their ids, kept between steps. started: gradients whose sums may
    be under way. synced: summed over all ranks, in the shape of the shard or of its row, kept until the next
    step. buffers: their new values, which the step itself does not read yet. position: index of the
    current instruction. slot: of its communication inside a segment.
    """

    params: dict[str, V]
    keys: list[V] = field(default_factory=list)
    stored: dict[str, V] = field(default_factory=dict)
    micro: dict[MicroKey, V] = field(default_factory=dict)
    steps: dict[int, V] = field(default_factory=dict)
    grads: dict[str, V] = field(default_factory=dict)
    owned_grads: set[str] = field(default_factory=set)
    synced: dict[str, V] = field(default_factory=dict)
    flats: dict[int, V] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    buffers: dict[str, V] = field(default_factory=dict)
    loss: V | None = None
    position: int = -1
    slot: int = -1


@dataclass(slots=True)
class RankPlan:
    """A rank's program, ready to walk.

    releases: per instruction, the values of its micro-batch that it is the last to read. kept: values that a
    later instruction reads. grad_releases: per bucket, the gradients that no later bucket reads.
    fresh_grads: per segment, the gradients that it makes in memory of their own. scattered: parameters
    of whose summed gradient the rank keeps a share. tables: steps of communication that are not the
    program's own, as they depend on the micro-batch. early: receives that are posted before their turn.
    homes: of gradients that are summed in their buckets.
    """

    program: RankProgram
    shared: ClassProgram
    releases: list[frozenset[int]]
    kept: Container[MicroKey]
    grad_releases: list[frozenset[str]]
    fresh_grads: list[frozenset[str]]
    shards: dict[str, Shard]
    scattered: frozenset[str] = frozenset()
    tables: StepTables | None = None
    early: EarlyReceives = field(default_factory=dict)
    homes: Mapping[str, Home] = field(default_factory=dict)

    def comm(self, slot: int, mb: int) -> CommStep:
        """What a slot of a `comm` row, or of a STEP_REDUCE (mb -1), stands for."""
        return self.program.comms[slot] if self.tables is None else self.tables.comm(slot, mb)

    def transfer(self, slot: int, mb: int) -> CommStep:
        """What a slot of a SEND or RECV stands for."""
        return self.program.transfers[slot] if self.tables is None else self.tables.transfer(slot, mb)

    def is_scattered(self, bucket: GradBucket) -> bool:
        """Whether a bucket leaves each sum with one rank."""
        return bool(bucket.pieces) and bucket.pieces[0].param in self.scattered


def plan_rank(program: Program, rank: int) -> RankPlan:
    """Find last uses once, before the first step. Only this rank's program needs to be there."""
    mine = next(own for own in program.ranks if own.rank == rank)
    shared = program.classes[mine.class_name]
    return _plan(mine, shared, fresh_by_segment(shared))


def plan_ranks(program: Program) -> list[RankPlan]:
    """`plan_rank` for all ranks; what a class shares is found once."""
    fresh = {name: fresh_by_segment(shared) for name, shared in program.classes.items()}
    return [_plan(mine, program.classes[mine.class_name], fresh[mine.class_name]) for mine in program.ranks]


def _plan(mine: RankProgram, shared: ClassProgram, fresh: list[frozenset[str]]) -> RankPlan:
    releases = last_reads(mine.instructions, shared)
    return RankPlan(
        mine,
        shared,
        releases,
        kept_values(mine.instructions, releases),
        last_pieces(mine.grad_buckets),
        fresh,
        {shard.name: shard for shard in mine.shards},
        mine.scattered,
        early=early_receives(mine.instructions, mine.receives_ahead),
        homes=homes_of(mine),
    )


def run_step(
    plan: RankPlan,
    state: RankState[V],
    batches: Sequence[Mapping[str, V]],
    segments: SegmentRunner[V],
    arrays: Arrays[V],
    finished: Callable[[int], None] = lambda position: None,
) -> StepRun[V]:
    """One training step; `batches` holds one dict per local micro-batch. Returns the loss.

    finished: called when the instruction at a position is done.
    """
    walk = Walk(plan, state, batches, segments, arrays, finished)
    yield from walk.gradients()
    yield from walk.update()
    return arrays.add_loss(state.loss, None)


@dataclass(slots=True)
class Walk(Generic[V]):
    """One step of one rank."""

    plan: RankPlan
    state: RankState[V]
    batches: Sequence[Mapping[str, V]]
    segments: SegmentRunner[V]
    arrays: Arrays[V]
    finished: Callable[[int], None] = lambda position: None

    def gradients(self) -> InstructionRun[V]:
        """What stands before the update: it leaves the loss and the synchronised gradients."""
        self.state.loss = None
        self.state.steps.clear()
        self.state.synced.clear()
        self.state.started.clear()
        yield from self._instructions(0, self.plan.program.update_at)

    def update(self) -> InstructionRun[V]:
        """The update and what stands behind it."""
        end = len(self.plan.program.instructions)
        yield from self._instructions(self.plan.program.update_at, end)
        self.state.params.update(self.state.buffers)
        self.state.buffers.clear()
        self.state.position = end

    def _instructions(self, first: int, end: int) -> InstructionRun[V]:
        for position in range(first, end):
            self.state.position = position
            instruction = self.plan.program.instructions[position]
            if instruction.op not in ACTIONS:
                raise InternalError(
                    f"instruction {instruction.op.value} is not one that the executor knows",
                    at=f"instruction {position}",
                    rule="what an instruction does stands once, in ACTIONS of program/execute.py",
                )
            yield from ACTIONS[instruction.op](self, instruction)
            self.finished(position)

    def _compute(self, instruction: Instruction) -> InstructionRun[V]:
        segment = self.plan.shared.segments[instruction.segment]
        last = self.plan.releases[self.state.position]
        owned = [item.kind is InputKind.MICRO and item.value.id in last for item in segment.inputs]
        inputs = [
            self._read(item, instruction.mb, own) for item, own in zip(segment.inputs, owned, strict=True)
        ]
        run = self.segments.start(instruction.segment, instruction.mb, inputs, owned)
        del inputs
        outputs = yield from self._answered(run, instruction.mb)
        for output, value in zip(segment.outputs, outputs, strict=True):
            self._write(output, instruction, value)

    def _answered(self, run: SegmentRun[V], mb: int) -> Generator[Request[V], V | None, tuple[V, ...]]:
        """Run a segment, its `comm` rows turned into requests."""
        try:
            slot, value, may_overwrite = next(run)
            while True:
                self.state.slot = slot
                step = self.plan.comm(slot, mb)
                if not isinstance(value, tuple):
                    request = comm_request(step, value, may_overwrite)
                else:  # and counts
                    request = Exchange(self.arrays.counted(step, self.plan.program.rank, value[1]), value[0])
                del value
                slot, value, may_overwrite = run.send(self.received((yield request)))
        except StopIteration as end:
            outputs: tuple[V, ...] = end.value
            return outputs

    def _read(self, item: SegmentInput, mb: int, last: bool) -> V:
        if item.kind is InputKind.PARAM:
            return self.state.params[item.name]
        if item.kind is InputKind.STORED:
            return self.state.stored[item.name]
        if item.kind is InputKind.DATA:
            return self.batches[mb][item.name]
        if item.kind is InputKind.DOCUMENTS:
            return self.batches[mb][documents_key(item.name)]
        if item.kind is InputKind.STEP:
            if item.value.id not in self.state.steps:
                raise self._missing(f"step value {item.value.id}")
            return self.state.steps[item.value.id]
        if item.kind is InputKind.KEY:
            return self.state.keys[mb]
        key = (mb, item.value.id)
        if key not in self.state.micro:
            raise self._missing(f"value {item.value.id} of micro-batch {mb}")
        return self.state.micro.pop(key) if last else self.state.micro[key]

    def _write(self, output: SegmentOutput, instruction: Instruction, value: V) -> None:
        state, number = self.state, output.value.id
        if output.kind is OutputKind.MICRO:
            self._keep((instruction.mb, number), value)
        elif output.kind is OutputKind.GRAD:
            self._add_grad(output.name, value, output.name in self.plan.fresh_grads[instruction.segment])
        elif output.kind is OutputKind.LOSS:
            state.loss = self.arrays.add_loss(state.loss, value)
        elif output.kind is OutputKind.STEP:
            state.steps[number] = self.arrays.accumulate(state.steps.get(number), value, False)
        else:
            state.buffers[output.name] = value

    def _keep(self, key: MicroKey, value: V) -> None:
        if key in self.plan.kept:
            self.state.micro[key] = value

    def _add_grad(self, name: str, value: V, fresh: bool) -> None:
        grads, owned = self.state.grads, self.state.owned_grads
        if name in self.state.started:
            raise refuse_started(name, self._at())
        total, home = grads.get(name), self.plan.homes.get(name)
        if home is not None and total is None:
            into = home.of(self.arrays, self.state.flats, name, self.plan.shards[name].shape)
            grads[name] = self.arrays.own(value, into)
            owned.add(name)
            return
        grads[name] = self.arrays.accumulate(total, value, name in owned)
        if total is not None or fresh:
            owned.add(name)

    def _step_reduce(self, instruction: Instruction) -> InstructionRun[V]:
        steps, number = self.state.steps, instruction.value
        if number not in steps:
            raise self._missing(f"step value {number}")
        step = self.plan.comm(instruction.slot, instruction.mb)
        steps[number] = self.received((yield comm_request(step, steps[number], False)))

    def _send(self, instruction: Instruction) -> InstructionRun[V]:
        key = (instruction.mb, instruction.value)
        if key not in self.state.micro:
            raise self._missing(f"value {instruction.value} of micro-batch {instruction.mb}")
        step = self.plan.transfer(instruction.slot, instruction.mb)
        yield Send(step, self.state.micro[key], instruction.tag)
        if instruction.value in self.plan.releases[self.state.position]:
            del self.state.micro[key]

    def _recv(self, instruction: Instruction) -> InstructionRun[V]:
        step = self.plan.transfer(instruction.slot, instruction.mb)
        early = self.plan.early.get(self.state.position, ())
        ahead = tuple((self.plan.transfer(each.slot, each.mb), each.tag) for each in early)
        value = self.received((yield Recv(step, instruction.tag, instruction.over, ahead)))
        self._keep((instruction.mb, instruction.value), value)

    def _param_gather(self, instruction: Instruction) -> InstructionRun[V]:
        state = self.state
        for bucket in self.plan.program.param_buckets:
            flat = pack_params(self.arrays, bucket, state.params, state.stored, self.plan.shards)
            if bucket.slot >= 0:
                request: Request[V] = Exchange(self.plan.program.comms[bucket.slot], flat)
                del flat
                flat = self.received((yield request))
            unpack_params(self.arrays, bucket, flat, self.plan.shards, state.params)

    def _param_drop(self, instruction: Instruction) -> InstructionRun[V]:
        for bucket in self.plan.program.param_buckets:
            for piece in bucket.pieces:
                self.state.params.pop(piece.param, None)
        yield from ()

    def _loss(self, instruction: Instruction) -> InstructionRun[V]:
        share = self.arrays.add_loss(self.state.loss, None)
        self.state.loss = self.received((yield LossReduce(share)))

    def _optimizer(self, instruction: Instruction) -> InstructionRun[V]:
        yield OptimizerStep()

    def received(self, answer: V | None) -> V:
        """The answer of a communication, which must be there."""
        if answer is None:
            raise self._missing("the answer of a communication")
        return answer

    def _missing(self, what: str) -> InternalError:
        return InternalError(
            f"rank {self.plan.program.rank} has no {what}",
            at=self._at(),
            rule="a value is made or received before it is read",
        )

    def _at(self) -> str:
        at = self.state.position
        return f"instruction {at}: {self.plan.program.instructions[at].op.value}"


ACTIONS: dict[Op, Callable[[Walk[Any], Instruction], InstructionRun[Any]]] = {
    Op.STEP_COMPUTE: Walk._compute,
    Op.STEP_REDUCE: Walk._step_reduce,
    Op.FORWARD: Walk._compute,
    Op.BACKWARD: Walk._compute,
    Op.WEIGHTS: Walk._compute,
    Op.SEND: Walk._send,
    Op.RECV: Walk._recv,
    Op.GRAD_SCATTER: grad_scatter,
    Op.REDUCE_START: reduce_start,
    Op.REDUCE_WAIT: reduce_wait,
    Op.GRAD_SYNC: grad_sync,
    Op.LOSS: Walk._loss,
    Op.OPTIMIZER: Walk._optimizer,
    Op.PARAM_GATHER: Walk._param_gather,
    Op.PARAM_DROP: Walk._param_drop,
}
"""What each instruction does, for tensors, shapes and nodes of a graph alike."""
