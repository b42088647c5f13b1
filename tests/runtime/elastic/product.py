"""Real processes that train a small model by the product's engine, with deaths where a test wants them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.cli.training.elastic import body_of
from hspmd_compiler.cli.training.successors import Successors
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.program import Op
from hspmd_compiler.program.requests import Request
from hspmd_compiler.runtime.batches.data import DataSource, FactoryData
from hspmd_compiler.runtime.elastic.launcher import ElasticLauncher, ElasticLimits
from hspmd_compiler.runtime.elastic.presence import Presence
from hspmd_compiler.runtime.elastic.several.host_run import ElasticHost, run_on_hosts
from hspmd_compiler.runtime.elastic.several.other_hosts import OtherHosts
from hspmd_compiler.runtime.elastic.training import ElasticRun
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.saved.checkpoint.checkpointer import Checkpointer
from hspmd_compiler.runtime.saved.checkpoint.load import load_checkpoint, newest
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import Timeouts
from hspmd_compiler.runtime.timing.step_timer import Untimed
from hspmd_compiler.runtime.train import StepRecord, train
from hspmd_compiler.runtime.transport import PeerLost
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

T = TypeVar("T")
WIDTH, SAMPLES, EPOCH, SEED = 8, 8, 5, 7
ADAMW = OptimizerConfig(lr=0.05, weight_decay=0.1, max_grad_norm=0.5, eps=0.01)
# AdamW's usual eps would blow up what sums in another order change.
OTHER_LR = replace(ADAMW, lr=10 * ADAMW.lr)
LIMITS = ElasticLimits(silent_s=3.0, grace_s=60.0)
NETWORK = 0
"""Instead of a signal: contact is lost, and nobody dies."""
PATIENCE = timedelta(seconds=60)


class Net(nn.Module):
    """Four blocks, each a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)]).double()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return nn.functional.mse_loss(x, target)


def batch(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        key: torch.randn(SAMPLES, WIDTH, dtype=torch.float64, generator=generator) for key in ("x", "target")
    }


def batches(epoch: int, seed: int) -> Iterator[dict[str, Tensor]]:
    return (batch(100 * epoch + number + seed - SEED) for number in range(EPOCH))


def as_resumed(engine: Engine, data: DataSource, emit: Emit) -> None:
    """The rate and the order of the data are those of a run that this one goes on from."""
    engine.lr = ADAMW.lr
    data.load_state_dict({"epoch": 0, "batches": 0, "seed": SEED})


def twice(zero: int = 0) -> Strategy:
    """Two pipelines of two stages: each piece of the state is on two ranks without ZeRO."""
    stages = ((0, 2), (2, 4))
    pipelines = (
        PipelineSpec(tuple(StageSpec((2 * number + place,), stages[place]) for place in (0, 1)), (2, 2))
        for number in (0, 1)
    )
    return Strategy(tuple(pipelines), zero=zero)


def compiled(strategy: Strategy, to: Path) -> Path:
    hspmd.compile(lambda: (Net(), batch(0)), strategy=strategy, optimizer=OTHER_LR).save(to)
    return to


def bundle(strategies: Mapping[str, Strategy], to: Path) -> Path:
    hspmd.compile_bundle(
        lambda: (Net(), batch(0)), strategies=strategies, optimizer=OTHER_LR, switch=[]
    ).save(to)
    return to


@dataclass
class Fault(Untimed):
    """A signal, once, in a step: behind the first instruction of a kind, or where it exchanges."""

    engine: Engine
    mark: Path
    step: int
    op: Op
    inside: bool = False
    number: int = signal.SIGKILL

    def exchanges(self, request: Request[Tensor] | None, call: Callable[[], T]) -> T:
        if self.inside:
            self._strike(self.engine.active.state.position)
        return call()

    def finished(self, position: int) -> None:
        if not self.inside:
            self._strike(position)

    def _strike(self, position: int) -> None:
        is_counted = self.op is Op.PARAM_GATHER or (self.op is Op.OPTIMIZER and not self.inside)
        step = self.engine.steps + (not is_counted)
        if step == self.step and self.engine.rank_program.instructions[position].op is self.op:
            if self.number == NETWORK and not self.mark.exists():
                self.mark.touch()
                raise PeerLost("a cable was pulled out")
            self.mark.touch()
            os.kill(os.getpid(), self.number)


@dataclass
class Training:
    """A run of `steps` steps. faults: of the first process of a device."""

    directory: Path
    scratch: Path
    steps: int = 6
    faults: Mapping[int, tuple[int, Op, bool, int]] = field(default_factory=dict)
    respawns: int = 0
    schedule: Sequence[Presence] = ()
    survive: int = 0
    checkpoints: Path | None = None
    on_step: Callable[[Training, int], None] = lambda training, step: None
    records: list[Mapping[str, Any]] = field(default_factory=list)
    host: ElasticHost | None = None
    pause_s: float = 0.0
    tell: Callable[[Mapping[str, Any]], None] = lambda record: None

    def run(self) -> Training:
        self.scratch.mkdir(exist_ok=True)
        successors = Successors(self.directory, self.scratch, survive=self.survive)
        successors.read()
        self.devices = successors.devices
        options = StartOptions(timeouts=Timeouts(PATIENCE, PATIENCE))
        own = self.devices if self.host is None else self.host.own_devices
        run = ElasticRun(
            options,
            self._data,
            as_resumed,
            load_checkpoint,
            self._train,
            {device: index for index, device in enumerate(own)},
        )
        body = body_of(run, 1, "cpu")

        def decider(hosts: OtherHosts | None = None) -> ElasticLauncher:
            self.launcher = ElasticLauncher(
                body,
                successors.choose,
                self.devices,
                self._record,
                LIMITS,
                self.respawns,
                self.schedule,
                None if self.checkpoints is None else self._newest,
                hosts=hosts,
            )
            return self.launcher

        if self.host is None:
            decider().run()
        else:
            run_on_hosts(self.host, body, LIMITS, decider)
        return self

    def _newest(self, steps: int) -> str:
        return str(newest(self.checkpoints, most_steps=steps) or "") if self.checkpoints else ""

    def kill(self, device: int, number: int = signal.SIGKILL) -> None:
        """A process of now."""
        for rank in self.launcher._members.alive.values():
            if rank.member.device == device:
                os.kill(rank.process.pid, number)

    def of(self, key: str) -> list[Any]:
        return [record[key] for record in self.records if key in record]

    def _record(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)
        self.tell(record)
        if "step" in record:
            self.on_step(self, int(record["step"]))

    @staticmethod
    def _data(engine: Engine, alone: bool) -> DataSource:
        return FactoryData(batches, engine.shape, 0, engine.rows, engine.keys)

    def _train(
        self, engine: Engine, data: DataSource, begun: int, emit: Emit, on_step: Callable[[], None]
    ) -> None:
        device = None if engine.active.is_idle else engine.rank_program.device
        if device in self.faults and not (self.scratch / f"struck-{device}").exists():
            engine.timing = Fault(engine, self.scratch / f"struck-{device}", *self.faults[device])

        checkpointer = None if self.checkpoints is None else Checkpointer(engine, data, self.checkpoints, 2)

        def each(record: StepRecord) -> None:
            sleep(self.pause_s)
            if checkpointer is not None:
                checkpointer.step_done()
            emit({"step": engine.steps, "loss": record.loss})
            on_step()

        train(engine, data, self.steps - engine.steps + begun, on_step=each)
        state, moments = engine.state_dict(), engine.optimizer_state_dict()
        emit({"end": {name: value.flatten().tolist() for name, value in state.items()}})
        emit(
            {
                "moments": {
                    name: {p: v.flatten().tolist() for p, v in of.items()} for name, of in moments.items()
                }
            }
        )


def one(zero: int = 0) -> Strategy:
    """One pipeline on devices 0 and 3."""
    return Strategy((PipelineSpec((StageSpec((0,), (0, 3)), StageSpec((3,), (3, 4))), (4, 4)),), zero=zero)


def eager(steps: int, start: Mapping[str, list[float]] | None = None) -> dict[str, list[float]]:
    """One process, by torch alone."""
    torch.manual_seed(0)
    model = Net()
    decay = ADAMW.weight_decay
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=ADAMW.lr, betas=ADAMW.betas, eps=ADAMW.eps, weight_decay=decay
    )
    for step in range(steps):
        optimizer.zero_grad()
        model(**batch(100 * (step // EPOCH) + step % EPOCH)).backward()
        assert ADAMW.max_grad_norm is not None
        nn.utils.clip_grad_norm_(model.parameters(), ADAMW.max_grad_norm)
        optimizer.step()
    return {name: value.flatten().tolist() for name, value in model.state_dict().items()}
