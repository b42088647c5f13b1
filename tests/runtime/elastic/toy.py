"""A job of real processes that loses ranks: data parallel, Adam in float64, each holds all of the state."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Timer
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hspmd_compiler.runtime.elastic.agent import Agent, Tell
from hspmd_compiler.runtime.elastic.choosing import Situation, Successor
from hspmd_compiler.runtime.elastic.messages import (
    NOTHING_HELD,
    Arrived,
    HeldReport,
    NextGeneration,
    RunPosition,
    ToldRecord,
)
from hspmd_compiler.runtime.elastic.rank import live
from hspmd_compiler.runtime.elastic.wake import GlooWake
from hspmd_compiler.runtime.start.rendezvous import use_loopback
from hspmd_compiler.runtime.transport import peer_lost_in

SIZE, SAMPLES = 8, 24
POINTS = ("first", "reduced", "voted", "updated")


@dataclass
class Toy:
    """trouble: what happens to (id of the process, step, point)."""

    agent: Agent
    steps: int
    trouble: Callable[[int, int, str], None]
    state: list[Tensor] = field(default_factory=list)
    taken: int = 0
    ready: Tensor | None = None
    generation: int = NOTHING_HELD
    beside: tuple[int, list[Tensor], int] | None = None
    last: dict[str, Any] | None = None

    @property
    def held(self) -> HeldReport:
        beside = NOTHING_HELD if self.beside is None else self.beside[0]
        steps = 0 if self.beside is None else self.beside[2]
        ready = self.ready is not None
        return HeldReport(self.generation, self.taken, ready, beside=beside, beside_steps=steps)

    @property
    def position(self) -> RunPosition:
        return RunPosition(0, self.taken)

    def take(self, order: NextGeneration) -> str:
        self.settle(order)
        rank, size = order.rank_of(self.agent.id), len(order.world)
        self.point("joining")
        self.agent.join(order, [tuple(range(size - 1)), tuple(range(1, size))], timedelta(seconds=60))
        pairs = [dist.new_group(list(range(size - 1))), dist.new_group(list(range(1, size)))]
        with peer_lost_in("taking the state"):
            self.beside = (order.generation, self.carried(order, rank), order.steps)
            dist.barrier()
        self.adopt()
        self.agent.report(Arrived(order.generation))
        while self.taken < self.steps:
            with peer_lost_in("a step"):
                paused = self.step(rank, size, pairs)
            self.last = {"step": self.taken, "sum": float(self.state[0].sum())}
            if rank == 0:
                self.agent.report(ToldRecord(self.last))
            if paused and self.taken < self.steps:
                return "pause"
        self.agent.report(ToldRecord({"end": self.state[0].tolist(), "moment": self.state[1].tolist()}))
        return "done"

    def settle(self, order: NextGeneration) -> None:
        """Turn to the state that goes on."""
        if self.beside is not None and self.beside[0] == order.held:
            self.adopt()
        elif order.steps == self.taken + 1 and self.ready is not None:
            self.update()
        self.ready = self.beside = None

    def adopt(self) -> None:
        assert self.beside is not None
        self.generation, self.state, self.taken = self.beside
        self.beside = None

    def carried(self, order: NextGeneration, rank: int) -> list[Tensor]:
        if not order.plan:
            return [torch.linspace(-1, 1, SIZE, dtype=torch.float64), *torch.zeros(2, SIZE).double()]
        source = int(order.plan)
        state = [each.clone() for each in self.state] if self.state else [*torch.empty(3, SIZE).double()]
        for each in state:
            dist.broadcast(each, source)
        return state

    def step(self, rank: int, size: int, pairs: Sequence[Any]) -> bool:
        self.point("first")
        grad = torch.zeros(SIZE, dtype=torch.float64)
        for sample in range(SAMPLES):
            if sample % size == rank:
                x = torch.randn(SIZE, dtype=torch.float64, generator=seeded(self.taken * SAMPLES + sample))
                grad += x * ((x * self.state[0]).sum() - 1)
        for members, pair in zip((range(size - 1), range(1, size)), pairs, strict=True):
            if rank in members and size > 2:
                dist.all_reduce(torch.ones(1), group=pair)
        if size > 1 and rank < 2:  # one message that a rank waits for alone
            work = dist.isend(torch.ones(3), 1, tag=3) if rank == 0 else dist.irecv(torch.ones(3), 0, tag=3)
            assert work is not None
            work.wait()
        dist.all_reduce(grad)
        self.ready = grad
        self.point("reduced")
        vote = torch.tensor([float(self.agent.pausing)])
        dist.all_reduce(vote)
        self.point("voted")
        self.update()
        self.point("updated")
        return bool(vote)

    def update(self) -> None:
        assert self.ready is not None
        param, first, second = self.state
        first = first * 0.9 + self.ready * 0.1
        second = second * 0.99 + self.ready.square() * 0.01
        time = self.taken + 1
        step = (first / (1 - 0.9**time)) / ((second / (1 - 0.99**time)).sqrt() + 1e-8)
        self.state = [param - 0.01 * step, first, second]
        self.taken, self.ready = time, None

    def point(self, name: str) -> None:
        self.trouble(self.agent.id, self.taken + 1, name)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def undisturbed(steps: int) -> list[float]:
    """The parameters of a run of one process."""
    toy = Toy.__new__(Toy)
    toy.state = [torch.linspace(-1, 1, SIZE, dtype=torch.float64), *torch.zeros(2, SIZE).double()]
    toy.taken = 0
    for step in range(steps):
        toy.ready = torch.zeros(SIZE, dtype=torch.float64)
        for sample in range(SAMPLES):
            x = torch.randn(SIZE, dtype=torch.float64, generator=seeded(step * SAMPLES + sample))
            toy.ready += x * ((x * toy.state[0]).sum() - 1)
        toy.update()
    return toy.state[0].tolist()


def body(steps: int, trouble: Callable[[int, int, str], None]) -> Callable[[int, int, Tell], None]:
    def run(id: int, control: int, report: Tell) -> None:
        torch.set_num_threads(1)
        use_loopback()
        agent = Agent(id, control, report, GlooWake())
        live(agent, Toy(agent, steps, trouble))

    return run


def choose(situation: Situation) -> Successor:
    """All go on; the first who has the state gives it to all."""
    sources = [rank for rank, own in enumerate(situation.held_as) if own is not None]
    members = tuple(range(len(situation.devices)))
    plan = str(sources[0]) if sources else ""
    missing = () if sources else (("all", "of it"),)
    return Successor("toy", f"{len(members)} ranks", members, plan, missing=missing)


def dies(id: int, step: int, point: str, number: int = signal.SIGKILL) -> Callable[[int, int, str], None]:
    """One process gets a signal at a point of a step."""

    def trouble(who: int, at: int, where: str) -> None:
        if (who, at, where) == (id, step, point):
            os.kill(os.getpid(), number)

    return trouble


def all_of(*troubles: Callable[[int, int, str], None]) -> Callable[[int, int, str], None]:
    def trouble(who: int, at: int, where: str) -> None:
        for each in troubles:
            each(who, at, where)

    return trouble


def at_random(seed: int, chance: float, window_s: float) -> Callable[[int, int, str], None]:
    """Any process may die within this time of entering a generation, or at any point."""

    def trouble(who: int, at: int, where: str) -> None:
        drawn = random.Random(f"{seed} {who} {at} {where}")
        if drawn.random() > chance:
            return
        if where == "joining":
            delay = drawn.random() * window_s
            Timer(delay, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    return trouble


def slowly(seconds: float) -> Callable[[int, int, str], None]:
    """Each step takes a while."""

    def trouble(who: int, at: int, where: str) -> None:
        if where == "first":
            sleep(seconds)

    return trouble


def elapsed(run: Callable[[], None]) -> float:
    start = monotonic()
    run()
    return monotonic() - start
