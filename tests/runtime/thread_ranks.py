"""Ranks as threads of this process: the runtime's own code over a transport in memory."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, Queue
from time import monotonic
from typing import TypeVar

import torch
from torch import Tensor

from hspmd_compiler.base.comm_plan import Combine, CommStep
from hspmd_compiler.errors import InternalError
from hspmd_compiler.program.arrays import TorchArrays
from hspmd_compiler.program.requests import (
    AllReduce,
    Exchange,
    ExchangeStart,
    GradReduce,
    LossReduce,
    Recv,
    ReduceStart,
    ReduceWait,
    Request,
    Send,
)
from hspmd_compiler.runtime.members import ProgramMembers
from hspmd_compiler.runtime.transport import PeerLost

PATIENCE = 60.0
"""Seconds that a message may take, where a test hangs."""
LOOK = 0.2
T = TypeVar("T")
Group = tuple[int, ...]


class Meeting:
    """Where threads hand over to each other. Groups meet in the order in which each member comes."""

    def __init__(self) -> None:
        self._mail: dict[object, Queue[object]] = defaultdict(Queue)
        self._lock = threading.Lock()
        self.is_broken = threading.Event()

    def put(self, key: object, value: object) -> None:
        self._queue(key).put(value)

    def take(self, key: object) -> object:
        end = monotonic() + PATIENCE
        while not self.is_broken.is_set() and monotonic() < end:
            with suppress(Empty):
                return self._queue(key).get(timeout=LOOK)
        raise PeerLost("another thread failed, or never came")

    def _queue(self, key: object) -> Queue[object]:
        with self._lock:
            return self._mail[key]


class ThreadTransport:
    """A rank's side of a run of so many ranks."""

    def __init__(self, meeting: Meeting, rank: int, count: int) -> None:
        self.rank = rank
        self.world_size = count
        self.device = torch.device("cpu")
        self.moved = 0
        self._meeting = meeting
        self._members = ProgramMembers.all_of(count)
        self._arrays = TorchArrays()

    def serve(self, members: ProgramMembers) -> None:
        self._members = members

    def answer(self, request: Request[Tensor]) -> Tensor | None:
        match request:
            case AllReduce(step, value, _):
                return self._reduce(value, self._members.group(step.group), step.combine)
            case GradReduce(bucket, flat):
                return self._reduce(flat, self._members.group(bucket.group), Combine.SUM)
            case ReduceStart(bucket, flat):
                for peer in self._members.group(bucket.group):
                    self._put(peer, ("bucket", bucket.id), flat.clone())
                return None
            case ReduceWait(bucket):
                group = self._members.group(bucket.group)
                return self._arrays.reduce(
                    [self._take(peer, ("bucket", bucket.id)) for peer in group], Combine.SUM
                )
            case LossReduce(share):
                return self.sum_over_ranks(share)
            case Exchange(step, source):
                return self._exchange(self._members.step(step), source)
            case ExchangeStart(_, value):
                return value  # all of it is done where it ends
            case Send(step, value, tag):
                for peer, row in self._arrays.cut(self._members.step(step), value).items():
                    self._put(peer, tag, row.clone())
                return None
            case Recv(step, tag):
                mine = self._members.step(step)
                arrived = {piece.peer: self._take(piece.peer, tag) for piece in mine.recvs}
                return self._arrays.paste(mine, arrived)
        raise InternalError(f"no transport answers {type(request).__name__}")

    def finish_sends(self) -> None: ...

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        return self._reduce(value, tuple(range(self.world_size)), Combine.SUM)

    def broadcast(self, value: Tensor, source: int) -> None:
        value.copy_(self._gathered(value, tuple(range(self.world_size)))[source])

    def send_run(self, row: Tensor, peer: int) -> None:
        self.moved += row.numel() * row.itemsize
        self._put(peer, "row", row.clone())

    def recv_run(self, size: int, dtype: torch.dtype, peer: int) -> Tensor:
        row = self._take(peer, "row")
        assert (row.numel(), row.dtype) == (size, dtype), "a message of another size or type"
        return row

    def swap_runs(
        self, leaving: Mapping[int, Sequence[Tensor]], arriving: Mapping[int, Sequence[Tensor]]
    ) -> None:
        for peer, rows in leaving.items():
            self.moved += sum(row.numel() * row.itemsize for row in rows)
            self._put(peer, "swap", [row.clone() for row in rows])
        for peer, rows in arriving.items():
            for row, came in zip(rows, self._take(peer, "swap"), strict=True):  # type: ignore[call-overload]
                row.copy_(came)

    def gather_objects(self, value: object) -> list[object]:
        return [*self._gathered(value, tuple(range(self.world_size))).values()]

    @contextmanager
    def call(self, name: str, meets: bool = True) -> Iterator[None]:
        yield

    def tell_end(self, failure: str = "") -> None: ...

    def close(self) -> None: ...

    def _reduce(self, value: Tensor, group: Group, combine: Combine) -> Tensor:
        return self._arrays.reduce([*self._gathered(value.clone(), group).values()], combine)

    def _exchange(self, step: CommStep, source: Tensor | None) -> Tensor | None:
        cut = {} if source is None else self._arrays.cut(step, source)
        told = self._gathered({peer: row.clone() for peer, row in cut.items()}, step.group)
        arrived = {peer: rows[self.rank] for peer, rows in told.items() if self.rank in rows}
        return None if step.dst_view is None else self._arrays.paste(step, arrived)

    def _gathered(self, value: T, group: Group) -> Mapping[int, T]:
        """What each member of a group gives; by rank."""
        for peer in group:
            self._put(peer, group, value)
        return {peer: self._take(peer, group) for peer in group}

    def _put(self, peer: int, key: object, value: object) -> None:
        self._meeting.put((self.rank, peer, key), value)

    def _take(self, peer: int, key: object) -> T:  # type: ignore[type-var]
        return self._meeting.take((peer, self.rank, key))  # type: ignore[return-value]


def in_threads(count: int, meeting: Meeting, job: Callable[[int], T]) -> list[T]:
    """The job of each rank, all at once; where some fail, the error of one that isn't a consequence."""

    def run(rank: int) -> T:
        try:
            return job(rank)
        except BaseException:
            meeting.is_broken.set()
            raise

    with ThreadPoolExecutor(count) as pool:
        jobs = [pool.submit(run, rank) for rank in range(count)]
    errors = [error for each in jobs if (error := each.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):
        raise error
    return [each.result() for each in jobs]
