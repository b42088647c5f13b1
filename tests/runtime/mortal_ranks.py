"""Ranks as threads of one process, with deaths where a test wants them: a transport by shared memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from threading import Condition, Thread
from typing import Any

import torch
from torch import Tensor

from hspmd_compiler.base.comm_plan import Combine
from hspmd_compiler.program import boxes
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
from hspmd_compiler.runtime.transport import PeerLost

CPU = torch.device("cpu")


class Killed(BaseException):
    """A rank dies here."""


class MortalWorld:
    """deaf: ranks to which nothing comes once somebody has died, whatever was sent to them before."""

    def __init__(self, size: int, deaf: Collection[int] = ()) -> None:
        self.size = size
        self.deaf = deaf
        self.dead: set[int] = set()
        self.changed = Condition()
        self.given_at: dict[Any, dict[int, float]] = defaultdict(dict)
        self.moves: dict[int, float] = defaultdict(float)
        self.given: dict[Any, dict[int, Any]] = defaultdict(dict)

    def die(self, rank: int) -> None:
        with self.changed:
            self.dead.add(rank)
            self.changed.notify_all()

    def meet(self, key: Any, rank: int, peers: AbstractSet[int], value: Any) -> dict[int, Any]:
        """What all peers give under this key. PeerLost where one died before, or nothing comes here."""
        with self.changed:
            given = self.given[key]  # two that make it at once would wait at two
            given[rank] = value
            self.moves[rank] += 1
            self.given_at[key][rank] = self.moves[rank]
            self.changed.notify_all()
            self.changed.wait_for(lambda: peers <= given.keys() or bool(self.dead & (peers - given.keys())))
            if rank in self.deaf:
                self._await_death(key, peers - {rank})
            if not peers <= given.keys() or (self.dead and rank in self.deaf):
                raise PeerLost(f"lost contact in {key}")
            return {peer: given[peer] for peer in sorted(peers)}

    def _await_death(self, key: Any, peers: AbstractSet[int]) -> None:
        """Until a peer is dead, or all have gone on: so that what comes is lost wherever it can be."""
        before = {peer: at for peer, at in self.given_at[key].items() if peer in peers - set(self.deaf)}
        self.changed.wait_for(
            lambda: bool(self.dead) or all(self.moves[peer] > moves for peer, moves in before.items())
        )

    def ends(self, rank: int) -> None:
        """A rank's step is over."""
        with self.changed:
            self.moves[rank] += 1
            self.changed.notify_all()


class MortalTransport:
    """See Transport."""

    def __init__(self, world: MortalWorld, rank: int) -> None:
        self.rank, self.world_size, self.device = rank, world.size, CPU
        self._world = world
        self._arrays = TorchArrays("cpu")
        self._calls: dict[Any, int] = defaultdict(int)
        self._started: dict[int, Tensor] = {}

    def answer(self, request: Request[Tensor]) -> Tensor | None:
        match request:
            case AllReduce(step, value, _):
                parts = self._meet((step.kind, step.id), step.group, value.clone())
                stacked = torch.stack(list(parts.values()))
                return stacked.amax(0) if step.combine is Combine.MAX else stacked.sum(0)
            case Exchange(step, source):
                sent = {} if source is None else self._arrays.cut(step, source)
                given = self._meet(
                    (step.kind, step.id), step.group, {to: row.clone() for to, row in sent.items()}
                )
                if step.dst_view is None:
                    return None
                wanted = boxes.received_volumes(step)
                return self._arrays.paste(step, {peer: given[peer][self.rank] for peer in wanted})
            case ExchangeStart(_, value):
                return value  # all of it is done where it ends
            case Send(step, value, tag):
                for peer, row in self._arrays.cut(step, value).items():
                    self._give(("p2p", tag, self.rank, peer), row.clone())
                return None
            case Recv(step, tag):
                rows = {}
                for peer in boxes.received_volumes(step):
                    key = ("p2p", tag, peer, self.rank)
                    number = self._next(key)
                    rows[peer] = self._world.meet((*key, number), self.rank, {peer, self.rank}, None)[peer]
                return self._arrays.paste(step, rows)
            case GradReduce(bucket, flat):
                return torch.stack(
                    [*self._meet(("grad", bucket.id), bucket.group, flat.clone()).values()]
                ).sum(0)
            case ReduceStart(bucket, flat):
                self._started[bucket.id] = flat
                return None
            case ReduceWait(bucket):
                return self.answer(GradReduce(bucket, self._started.pop(bucket.id)))
            case LossReduce(share):
                return self.sum_over_ranks(share)
        raise AssertionError(request)

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        return torch.stack([*self._meet("sum", range(self.world_size), value.clone()).values()]).sum(0)

    def gather_objects(self, value: object) -> list[object]:
        return [*self._meet("objects", range(self.world_size), value).values()]

    def finish_sends(self) -> None:
        self._world.meet(("finish", self._next("finish"), self.rank), self.rank, {self.rank}, None)

    def broadcast(self, value: Tensor, source: int) -> None:
        value.copy_(self._meet("broadcast", range(self.world_size), value.clone())[source])

    def send_run(self, row: Tensor, peer: int) -> None:
        self._give(("run", self.rank, peer), row.clone())

    def recv_run(self, size: int, dtype: torch.dtype, peer: int) -> Tensor:
        key = ("run", peer, self.rank)
        number = self._next(key)
        row: Tensor = self._world.meet((*key, number), self.rank, {peer, self.rank}, None)[peer]
        return row

    def swap_runs(
        self, leaving: Mapping[int, Sequence[Tensor]], arriving: Mapping[int, Sequence[Tensor]]
    ) -> None:
        for peer, rows in leaving.items():
            for row in rows:
                self._give(("swap", self.rank, peer), row.clone())
        for peer, rows in arriving.items():
            for row in rows:
                key = ("swap", peer, self.rank)
                number = self._next(key)
                row.copy_(self._world.meet((*key, number), self.rank, {peer, self.rank}, None)[peer])

    def call(self, name: str, meets: bool = True) -> AbstractContextManager[None]:
        return nullcontext()

    def tell_end(self, failure: str = "") -> None:
        pass

    def close(self) -> None:
        pass

    def _next(self, key: Any) -> int:
        self._calls[key] += 1
        return self._calls[key]

    def _meet(self, key: Any, group: Collection[int], value: Any) -> dict[int, Any]:
        group = tuple(group)
        number = self._next((key, group))
        return self._world.meet((key, group, number), self.rank, set(group), value)

    def _give(self, key: Any, row: Tensor) -> None:
        number = self._next(key)
        with self._world.changed:
            self._world.given[(*key, number)][self.rank] = row
            self._world.changed.notify_all()


def run_mortals(world: MortalWorld, bodies: Mapping[int, Callable[[], None]]) -> dict[int, str]:
    """Run all to their ends; by rank, how each ended: `done`, `killed` or `lost`. Other errors are raised."""
    ends: dict[int, str] = {}
    errors: list[BaseException] = []

    def live(rank: int, body: Callable[[], None]) -> None:
        try:
            body()
            ends[rank] = "done"
        except Killed:
            ends[rank] = "killed"
        except PeerLost:
            ends[rank] = "lost"
        except BaseException as error:
            errors.append(error)
        if ends.get(rank) != "done":
            world.die(rank)
        world.ends(rank)

    threads = [Thread(target=live, args=each) for each in bodies.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return ends
