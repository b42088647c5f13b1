"""What one rank of a lockstep run is doing, and how that reads in an error."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from ...base.comm_plan import Combine, CommStep
from ...program.execute import RankPlan, RankState
from ...program.lifetimes import COMPUTE_OPS
from ...program.program import COMM, Instruction, Value
from ...program.requests import (
    AllReduce,
    Exchange,
    ExchangeStart,
    GradReduce,
    LossReduce,
    OptimizerStep,
    Recv,
    ReduceStart,
    ReduceWait,
    Request,
    Send,
)
from .tensors import TensorNames


class ArrayLike(Protocol):
    """What a driver may ask of any value."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""

    def numel(self) -> int:
        """Elements."""


V = TypeVar("V", bound=ArrayLike)
Channel = tuple[str | int, ...]
"""What a collective is matched on: the ranks of its group, in the one order of their process group."""


class BlockedArrays(Protocol[V]):
    """What moves values between ranks that meet."""

    def cut(self, step: CommStep, source: V) -> Mapping[int, V]:
        """What `step` sends, flat, by peer."""

    def paste(self, step: CommStep, arrived: Mapping[int, V]) -> V:
        """The destination of `step` from what each peer sent."""

    def reduce(self, values: Sequence[V], combine: Combine) -> V:
        """All values joined elementwise, in order; none of them is changed."""

    def own(self, value: V, into: V | None) -> V:
        """A copy that the rank may change, in the memory of `into` where one is given."""


BUCKETS = (GradReduce, ReduceStart, ReduceWait)
"""Requests that are about a bucket of gradients."""
OPTIMIZER_CHANNEL: Channel = ("optimizer",)


@dataclass(slots=True)
class RankRun(Generic[V]):
    """One rank in lockstep. request: what it waits for, None while it can go on. names: of tensors."""

    plan: RankPlan
    state: RankState[V]
    arrays: BlockedArrays[V]
    steps: Generator[Request[V], V | None, V | None]
    request: Request[V] | None = None
    loss: V | None = None
    finished: bool = False
    names: TensorNames | None = None

    @property
    def rank(self) -> int:
        """Its rank."""
        return self.plan.program.rank

    @property
    def instruction(self) -> Instruction | None:
        """The instruction it is at; None at the end."""
        instructions = self.plan.program.instructions
        position = self.state.position
        return instructions[position] if 0 <= position < len(instructions) else None

    @property
    def segment(self) -> str:
        """Name of the segment it is in, or nothing."""
        instruction = self.instruction
        if instruction is None or instruction.op not in COMPUTE_OPS:
            return ""
        return self.plan.shared.segments[instruction.segment].name

    def where(self) -> str:
        """The instruction it is at, for an error."""
        instruction = self.instruction
        if instruction is None:
            return "finished" if self.finished else "not started"
        fields = {
            "mb": instruction.mb,
            "wave": instruction.wave,
            "value": instruction.value,
            "tag": instruction.tag,
        }
        shown = "".join(f" {name}={value}" for name, value in fields.items() if value >= 0)
        segment = f" {self.segment}" if self.segment else ""
        return f"#{self.state.position} {instruction.op.value}{segment}{shown}"

    def tensor(self) -> str:
        """The tensor that it waits to hand over or to receive, for an error."""
        request, instruction = self.request, self.instruction
        if isinstance(request, BUCKETS):
            names = [piece.param for piece in request.bucket.pieces]
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            return f"gradient of {names[0]}{more}" if names else "an empty bucket"
        if instruction is None or isinstance(request, (LossReduce, OptimizerStep)):
            return "the loss" if isinstance(request, LossReduce) else ""
        sent = self.names.of_tag(request.tag) if self.names and isinstance(request, Recv) else ""
        return sent or self.named(self.moved())

    def named(self, value: int) -> str:
        """The name of a value of this rank."""
        stage = (self.plan.program.pipeline, self.plan.program.stage)
        return f"value {value}" if self.names is None else self.names.of_value(stage, value)

    def moved(self) -> int:
        """The value of the instruction, or of the communication inside its segment."""
        instruction = self.instruction
        assert instruction is not None, "asked of a rank at an instruction"
        if instruction.op not in COMPUTE_OPS:
            return instruction.value
        for row in self.plan.shared.segments[instruction.segment].rows:
            if row.op == COMM and row.args[1] == self.state.slot and isinstance(row.args[0], Value):
                return row.args[0].id
        return -1

    def doing(self) -> str:
        """The instruction and the request it waits for, for an error."""
        waits = "" if self.request is None else f": {described(self.request)}"
        return self.where() + waits


def described(request: Request[V]) -> str:
    """One request in words."""
    if isinstance(request, AllReduce):
        step = request.step
        return f"{step.kind.value} {step.id} {step.combine.value} {list(step.group)} {typed(request.value)}"
    if isinstance(request, (Exchange, ExchangeStart)):
        step = request.step
        source = "no source" if request.value is None else typed(request.value)
        start = "start of " if isinstance(request, ExchangeStart) else ""
        return f"{start}{step.kind.value} {step.id} {step.combine.value} {list(step.group)} {source}"
    if isinstance(request, Send):
        peers = sorted({piece.peer for piece in request.step.sends})
        return f"send {request.step.id} to {peers} tag {request.tag}"
    if isinstance(request, Recv):
        peers = sorted({piece.peer for piece in request.step.recvs})
        return f"receive {request.step.id} from {peers} tag {request.tag}"
    if isinstance(request, (GradReduce, ReduceStart)):
        bucket = request.bucket
        return f"gradient bucket {bucket.id} {list(bucket.group)} {typed(request.value)}"
    if isinstance(request, ReduceWait):
        return f"wait for gradient bucket {request.bucket.id} {list(request.bucket.group)}"
    return "loss over all ranks" if isinstance(request, LossReduce) else "optimizer"


def typed(value: ArrayLike) -> str:
    """Element type and shape."""
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def channel_of(request: Request[V], world: Channel) -> Channel | None:
    """What a collective is matched on; None for a transfer."""
    if isinstance(request, (AllReduce, Exchange, ExchangeStart)):
        return request.step.group
    if isinstance(request, (GradReduce, ReduceStart)):
        return request.bucket.group
    if isinstance(request, LossReduce):
        return world
    return OPTIMIZER_CHANNEL if isinstance(request, OptimizerStep) else None
