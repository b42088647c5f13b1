"""What a rank's program asks of its driver; the driver sends the answer back into the generator.

V is the kind of value that flows: a tensor, a shape, or a node of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from ..base.comm_plan import CommKind, CommStep, GradBucket
from ..errors import InternalError

V = TypeVar("V")


@dataclass(slots=True)
class AllReduce(Generic[V]):
    """Answer: the reduced value. may_overwrite: nobody reads `value` again, reduce it in place."""

    step: CommStep
    value: V
    may_overwrite: bool = False


@dataclass(slots=True)
class Exchange(Generic[V]):
    """Answer: the destination value, or None where the step has none."""

    step: CommStep
    value: V | None


@dataclass(slots=True)
class ExchangeStart(Generic[V]):
    """Answer: the value. It may leave from now on; the Exchange of the step that follows ends it. Must not
    wait for others."""

    step: CommStep
    value: V | None


@dataclass(slots=True)
class Send(Generic[V]):
    """No answer; must not wait for the receiver."""

    step: CommStep
    value: V
    tag: int


@dataclass(slots=True)
class Recv:
    """Answer: the destination value. over: then so many of the step's first sends may be let go of. ahead:
    steps and tags of receives that come later, to be posted before this one is waited for."""

    step: CommStep
    tag: int
    over: int = -1
    ahead: tuple[tuple[CommStep, int], ...] = ()


@dataclass(slots=True)
class GradReduce(Generic[V]):
    """Answer: the flat bucket summed over its group. value: this rank's; it may be overwritten."""

    bucket: GradBucket
    value: V


@dataclass(slots=True)
class ReduceStart(Generic[V]):
    """No answer; the sum of a flat bucket over its group may be under way from now on, in the memory of
    `value`. Must not wait for others. on_end: called by any thread when it is there."""

    bucket: GradBucket
    value: V
    on_end: Callable[[], None] | None = None


@dataclass(slots=True)
class ReduceWait:
    """Answer: the flat bucket that a ReduceStart gave, summed over its group."""

    bucket: GradBucket


@dataclass(slots=True)
class LossReduce(Generic[V]):
    """Answer: the loss shares summed over all ranks; every rank asks. value: this rank's share."""

    value: V


@dataclass(slots=True)
class OptimizerStep:
    """No answer; the driver updates the parameters in the rank's state from its synced gradients."""


Request: TypeAlias = (
    AllReduce[V]
    | Exchange[V]
    | ExchangeStart[V]
    | Send[V]
    | Recv
    | GradReduce[V]
    | ReduceStart[V]
    | ReduceWait
    | LossReduce[V]
    | OptimizerStep
)
CommCall: TypeAlias = tuple[int, V | tuple[V, V] | None, bool | None]
"""What a segment yields at a `comm` row: slot, value (and counts, if the step is counted), may_overwrite;
None at a `comm_start`, where its driver can begin. Answer: the row's value."""

SegmentRun: TypeAlias = Generator[CommCall[V], V, tuple[V, ...]]
StepRun: TypeAlias = Generator[Request[V], V | None, V]
"""One training step of one rank; returns the loss."""


def comm_request(step: CommStep, value: V | None, may_overwrite: bool | None) -> Request[V]:
    """The request of one communication step inside a segment."""
    if may_overwrite is None:
        return ExchangeStart(step, value)
    if step.kind is not CommKind.ALL_REDUCE:
        return Exchange(step, value)
    if value is None:
        raise InternalError(f"all-reduce {step.id} has no value to reduce")
    return AllReduce(step, value, may_overwrite)
