"""What a rank's fx graph calls where the executor asks its driver: one function for each kind of request."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.fx.node import has_side_effect

from ...base.comm_plan import CommStep, GradBucket
from ...errors import InternalError
from ..arrays import TorchArrays
from ..requests import (
    AllReduce,
    Exchange,
    GradReduce,
    LossReduce,
    Recv,
    ReduceStart,
    ReduceWait,
    Request,
    Send,
)

# All have side effects in the eyes of fx: they stay where nobody reads the result, for others wait.


class Answers(Protocol):
    """A transport between ranks, as the runtime's."""

    def answer(self, request: Request[Tensor]) -> Tensor | None:
        """The answer to a communication request of a rank program."""

    def finish_sends(self) -> None:
        """Wait until all sends have left, and let go of their buffers."""


class Alone:
    """What a world of one rank answers."""

    def __init__(self, device: str) -> None:
        self._arrays = TorchArrays(device)

    def answer(self, request: Request[Tensor]) -> Tensor | None:
        """See Answers."""
        match request:
            case AllReduce(_, value) | GradReduce(_, value) | LossReduce(value):
                return value
            case Exchange(step, value):
                cut = {} if value is None else self._arrays.cut(step, value)
                return None if step.dst_view is None else self._arrays.paste(step, cut)
        raise InternalError(f"a rank that is alone can't answer {type(request).__name__}")

    def finish_sends(self) -> None:
        """See Answers."""


def alone(world_size: int, groups: tuple[tuple[int, ...], ...], device: str) -> Answers:
    """The transport of a world of one rank."""
    return Alone(device)


@has_side_effect
def all_reduce(transport: Answers, step: CommStep, value: Tensor) -> Tensor | None:
    """The sum or maximum over the step's group."""
    return transport.answer(AllReduce(step, value))


@has_side_effect
def exchange(transport: Answers, step: CommStep, value: Tensor | None) -> Tensor | None:
    """Boxes of `value` to other ranks, and a tensor made of theirs."""
    return transport.answer(Exchange(step, value))


@has_side_effect
def send(transport: Answers, step: CommStep, value: Tensor, tag: int) -> None:
    """Start to send boxes; `finish_sends` waits for it."""
    transport.answer(Send(step, value, tag))


@has_side_effect
def receive(transport: Answers, step: CommStep, tag: int) -> Tensor | None:
    """A tensor made of the boxes that others send."""
    return transport.answer(Recv(step, tag))


@has_side_effect
def reduce_bucket(transport: Answers, bucket: GradBucket, flat: Tensor) -> Tensor | None:
    """A flat bucket of gradients summed over its group; it may be overwritten."""
    return transport.answer(GradReduce(bucket, flat))


@has_side_effect
def start_bucket(transport: Answers, bucket: GradBucket, flat: Tensor) -> None:
    """The sum of a flat bucket over its group may be under way, in its memory."""
    transport.answer(ReduceStart(bucket, flat))


@has_side_effect
def started_bucket(transport: Answers, bucket: GradBucket) -> Tensor | None:
    """The sum that `start_bucket` started."""
    return transport.answer(ReduceWait(bucket))


@has_side_effect
def reduce_loss(transport: Answers, share: Tensor) -> Tensor | None:
    """The shares of the loss summed over all ranks."""
    return transport.answer(LossReduce(share))


@has_side_effect
def finish_sends(transport: Answers) -> None:
    """Wait until everything has left."""
    transport.finish_sends()
