"""A rank's instructions as they run: what is computed and what is exchanged, with a pace and a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import TypeVar

import torch
from torch import Tensor

from ...base.comm_plan import CommStep
from ...base.dtypes import BYTES
from ...base.pace import Stretches
from ...program.requests import (
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
from .resident import peak_bytes

T = TypeVar("T")
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of one instruction: computing, where it has no `key`, or one exchange.

    key: the same on every rank that has part in the exchange. peers: these ranks. step: what moves.
    size_bytes: of a value that is reduced. beside: it went on while the rank did something else.
    """

    position: int
    start_s: float
    end_s: float
    key: Key = ()
    peers: tuple[int, ...] = ()
    step: CommStep | None = None
    size_bytes: int = 0
    beside: bool = False


class Untimed:
    """Nothing is timed."""

    def begins(self) -> None:
        """A step begins."""

    def exchanges(self, request: Request[Tensor] | None, call: Callable[[], T]) -> T:
        """Do what a request asks; None: wait for sends to leave, or for what no request is made for."""
        return call()

    def starts(self, request: ReduceStart[Tensor]) -> None:
        """A sum is about to start, which goes on beside what follows."""

    def finished(self, position: int) -> None:
        """The instruction at this position is done."""


class StepTimer(Untimed):
    """Times the steps of one rank. least_s: see Pace. parts, memory: of the last step, where it is recorded.

    A device that works on by itself is waited for at each end, so that its time is that of the instruction
    that gave it the work.
    """

    def __init__(
        self,
        device: torch.device,
        least_s: Mapping[int, Stretches],
        records: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.records = records
        self.parts: list[Part] = []
        self.memory: list[tuple[float, int]] = []
        self._device = device
        self._least_s = least_s
        self._clock = clock
        self._position = 0
        self._exchanged = 0
        self._computed_s = 0.0
        self._since = 0.0
        self._met: dict[Key, int] = {}

    def begins(self) -> None:
        """See Untimed."""
        self.parts, self.memory, self._met = [], [], {}
        self._position, self._exchanged, self._computed_s = 0, 0, 0.0
        if self.records:
            peak_bytes(self._device)  # what was before doesn't count
        self._since = self.now()

    def exchanges(self, request: Request[Tensor] | None, call: Callable[[], T]) -> T:
        """See Untimed. What comes before an exchange ends no earlier than its pace says."""
        if request is not None:
            self._exchanged += 1
            self._keep_pace(self._exchanged)
        start = self._compute_until_now()
        result = call()
        self._since = self.now()
        if self.records:
            self.parts.append(self._exchange(request, start, self._since))
        return result

    def starts(self, request: ReduceStart[Tensor]) -> None:
        """See Untimed."""
        if not self.records:
            return
        bucket, start, position = request.bucket, self.now(), self._position
        key = ("bucket", bucket.id, bucket.group, self._met.get(("bucket", bucket.id, bucket.group), -1) + 1)

        parts, size = self.parts, request.value.nbytes

        def ended() -> None:
            parts.append(Part(position, start, self._clock(), key, bucket.group, None, size, beside=True))

        request.on_end = ended

    def finished(self, position: int) -> None:
        """See Untimed. An instruction that was faster than its pace ends later."""
        self._keep_pace(None)
        end = self._compute_until_now()
        if self.records:
            self.memory.append((end, peak_bytes(self._device)))
        self._position, self._exchanged, self._computed_s, self._since = position + 1, 0, 0.0, end

    def _keep_pace(self, stretches: int | None) -> None:
        """Sleep for what so many stretches lack, or all; the last ends with the instruction."""
        least_s = self._least_s.get(self._position, ())
        if stretches is not None and stretches >= len(least_s):
            return
        late_s = sum(least_s[:stretches]) - self._computed_s - (self.now() - self._since)
        if late_s > 0:
            sleep(late_s)

    def _compute_until_now(self) -> float:
        now = self.now()
        self._computed_s += now - self._since
        if self.records:
            self.parts.append(Part(self._position, self._since, now))
        return now

    def _exchange(self, request: Request[Tensor] | None, start: float, end: float) -> Part:
        match request:
            case Send(step, _, tag) | Recv(step, tag):
                return Part(self._position, start, end, ("transfer", tag), step.group, step)
            case AllReduce(step, value, _):
                key = self._numbered("step", step.id, step.group)
                return Part(self._position, start, end, key, step.group, step, value.nbytes)
            case Exchange(step, _):
                return Part(
                    self._position, start, end, self._numbered("step", step.id, step.group), step.group, step
                )
            case GradReduce(bucket, flat):
                key = self._numbered("bucket", bucket.id, bucket.group)
                return Part(self._position, start, end, key, bucket.group, None, flat.nbytes)
            case ReduceWait(bucket):
                key = self._numbered("bucket", bucket.id, bucket.group)
                size = sum(piece.length for piece in bucket.pieces) * BYTES[bucket.dtype]
                return Part(self._position, start, end, key, bucket.group, None, size)
            case LossReduce(share):
                return Part(self._position, start, end, self._numbered("loss"), (), None, share.nbytes)
        return Part(self._position, start, end, ("left",))

    def _numbered(self, *key: object) -> Key:
        """Members of a group meet in the same order: the number of the meeting tells one from the next."""
        self._met[key] = self._met.get(key, -1) + 1
        return (*key, self._met[key])

    def now(self) -> float:
        """When the device has done all that it was given."""
        if self._device.type != "cpu":
            torch.cuda.synchronize(self._device)
        return self._clock()
