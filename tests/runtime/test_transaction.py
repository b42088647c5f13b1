"""A step is a transaction: whoever dies between any two things that a rank does, the others can go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.compiler import lower_graph
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.program.program import Op, Program
from hspmd_compiler.program.requests import Request
from hspmd_compiler.program.trained import trained_value
from hspmd_compiler.runtime.elastic.decide import decide
from hspmd_compiler.runtime.elastic.messages import HeldReport
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.shards import cut_shard, owned_run, owned_value
from hspmd_compiler.runtime.timing.step_timer import Untimed
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.trace.tracer import trace
from tests.runtime import hand_made
from tests.runtime.mortal_ranks import Killed, MortalTransport, MortalWorld, run_mortals

T = TypeVar("T")
STEPS = 3
DEADLY = 2
"""The step in which a rank dies."""
CLIPPED = OptimizerConfig(lr=0.05, max_grad_norm=0.1)
MOMENTUM = OptimizerConfig(name=OptimizerName.SGD, lr=0.05, momentum=0.9)

State = tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]


@dataclass
class KillAt(Untimed):
    """Dies at the nth thing that it does in a step: beside an exchange, or behind an instruction."""

    number: int | None = None
    done: int = 0

    def begins(self) -> None:
        self.passes()

    def exchanges(self, request: Request[Tensor] | None, call: Callable[[], T]) -> T:
        self.passes()
        result = call()
        self.passes()
        return result

    def finished(self, position: int) -> None:
        self.passes()

    def passes(self) -> None:
        if self.done == self.number:
            raise Killed
        self.done += 1


@dataclass
class Run:
    """A program on threads: engines, and what an undisturbed run has behind each step."""

    program: Program
    config: OptimizerConfig
    whole: Mapping[str, Tensor]
    batches: list[dict[str, Tensor]]
    engines: list[Engine] = field(default_factory=list)
    after: list[list[State]] = field(default_factory=list)
    events: list[int] = field(default_factory=list)

    def start(self, world: MortalWorld) -> list[Engine]:
        engines = []
        for own in sorted(self.program.ranks, key=lambda each: each.rank):
            params = {
                shard.name: cut_shard(shard, self.whole[shard.name], torch.device("cpu"))
                for shard in own.shards
            }
            transport = MortalTransport(world, own.rank)
            engines.append(Engine(self.program, self.config, transport, params))
        return engines

    def undisturbed(self) -> None:
        world = MortalWorld(self.program.world_size)
        engines = self.start(world)
        self.after = [[held(each) for each in engines]]
        for batch in self.batches:
            timers = [KillAt() for _ in engines]
            for engine, timer in zip(engines, timers, strict=True):
                engine.timing = timer
            ends = step_all(world, engines, batch)
            assert set(ends.values()) == {"done"}
            self.after.append([held(each) for each in engines])
            self.events = [timer.done for timer in timers]

    def killed(self, victim: int, number: int, deaf: Collection[int]) -> None:
        """One rank dies; the others come to one step, one takes its place, and all end as undisturbed."""
        world = MortalWorld(self.program.world_size, deaf)
        engines = self.start(world)
        for batch in self.batches[: DEADLY - 1]:
            step_all(world, engines, batch)
        engines[victim].timing = KillAt(number)
        ends = step_all(world, engines, self.batches[DEADLY - 1])
        assert ends[victim] == "killed"
        alive = [engine for engine in engines if ends[engine.rank] != "killed"]
        target = self.settle(alive)
        self.replace(engines, victim, target)
        for engine in engines:
            assert_same(held(engine), self.after[target][engine.rank], f"rank {engine.rank} behind {target}")
        for batch in self.batches[target:]:
            assert set(step_all(engines[0].transport._world, engines, batch).values()) == {"done"}  # type: ignore[attr-defined]
        for engine in engines:
            assert_same(held(engine), self.after[STEPS][engine.rank], f"rank {engine.rank} at the end")

    def settle(self, alive: list[Engine]) -> int:
        """Do what the launcher decides; the step that all are at then."""
        reports = {
            engine.rank: HeldReport(
                0, engine.steps, engine.transaction.ready, engine.transaction.whole, engine.active.gathers
            )
            for engine in alive
        }
        decision = decide(reports)
        assert max(each.steps for each in alive) - min(each.steps for each in alive) <= 1
        for engine in alive:
            if engine.rank in decision.forward:
                engine.transaction.roll_forward()
            else:
                engine.transaction.abandon()
            assert engine.steps == decision.steps
            if engine.rank in decision.stale:
                restore(engine, self.after[decision.steps][engine.rank], owned_is_kept=True)
        return decision.steps

    def replace(self, engines: list[Engine], victim: int, target: int) -> None:
        """New connections for all, and for the dead one its state, as from a copy elsewhere."""
        world = MortalWorld(self.program.world_size)
        fresh = self.start(world)
        fresh[victim].optimizer.steps = target
        for engine in engines:
            if engine.rank == victim:
                restore(fresh[victim], self.after[target][victim])
                engines[victim] = fresh[victim]
            else:
                engine.transport = fresh[engine.rank].transport
                engine.active.batches = fresh[engine.rank].active.batches


def held(engine: Engine) -> State:
    """All that a rank goes on from, copied."""
    state = engine.active.state
    params = {name: value.clone() for name, value in state.params.items()}
    stored = {f"stored {name}": value.clone() for name, value in state.stored.items()}
    return params | stored, deepcopy(engine.optimizer.state)


def restore(engine: Engine, state: State, owned_is_kept: bool = False) -> None:
    """Take a state over. owned_is_kept: what the rank owns must be the same already."""
    params, moments = state
    own = engine.active.state
    if owned_is_kept:
        for shard in engine.shards:
            trained = params[f"stored {shard.name}" if shard.is_flat else shard.name]
            owned = trained if shard.is_flat else owned_run(shard, trained)
            assert torch.equal(owned_value(shard, trained_value(shard, own)), owned), shard.name
        for name, of in engine.optimizer.state.items():
            for moment, value in of.items():
                assert torch.equal(value, moments[name][moment])
    for name, value in params.items():
        if name.startswith("stored "):
            own.stored[name.removeprefix("stored ")] = value.clone()
        else:
            own.params[name] = value.clone()
    engine.optimizer.state = deepcopy(moments)


def assert_same(one: State, other: State, where: str) -> None:
    for first, second in zip(one, other, strict=True):
        assert first.keys() == second.keys(), where
    for name, value in one[0].items():
        assert torch.equal(value, other[0][name]), f"{where}: {name}"
    for name, of in one[1].items():
        for moment, value in of.items():
            assert torch.equal(value, other[1][name][moment]), f"{where}: {moment} of {name}"


def step_all(world: MortalWorld, engines: list[Engine], batch: dict[str, Tensor]) -> dict[int, str]:
    def step(engine: Engine) -> Callable[[], None]:
        def run() -> None:
            engine.step(batch)

        return run

    return run_mortals(world, {engine.rank: step(engine) for engine in engines})


def hand_made_run(config: OptimizerConfig) -> Run:
    whole = {**hand_made.initial(0), "scale": torch.full((1,), 0.5, dtype=torch.float64)}
    run = Run(hand_made.program(), config, whole, [hand_made.batch(seed) for seed in range(STEPS)])
    run.undisturbed()
    return run


@pytest.mark.parametrize(
    ("config", "victim"),
    [
        (CLIPPED, 0),
        (CLIPPED, 2),
        *(pytest.param(MOMENTUM, victim, marks=pytest.mark.slow) for victim in range(3)),
        pytest.param(CLIPPED, 1, marks=pytest.mark.slow),
    ],
)
def test_a_rank_dies_between_any_two_things(config: OptimizerConfig, victim: int) -> None:
    """Whatever reaches which survivor: all, none, or each alone."""
    run = hand_made_run(config)
    others = [rank for rank in range(3) if rank != victim]
    for number in range(run.events[victim]):
        for deaf in ((), others, others[:1], others[1:]):
            run.killed(victim, number, deaf)


class Normed(nn.Module):
    """Buffers change with each step."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), norm(8), nn.Linear(8, 3)).double()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.body(x), target)


def compiled_run(zero: int, bucket_bytes: int | None = None, norm: type[nn.Module] = nn.BatchNorm1d) -> Run:
    torch.manual_seed(0)
    model = Normed(norm)
    batches = [
        {"x": torch.randn(4, 6, dtype=torch.float64), "target": torch.randn(4, 3, dtype=torch.float64)}
        for _ in range(STEPS)
    ]
    whole = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {name: value.detach().clone() for name, value in whole.items()}
    one = StageSpec((0,), (0, 3)), StageSpec((1,), (0, 3))
    pipelines = tuple(PipelineSpec((stage,), (2,)) for stage in one)
    strategy = Strategy(pipelines, zero=zero, bucket_bytes=bucket_bytes)
    program = lower_graph(trace(model, batches[0], batch=4), strategy, DeviceKind.CPU).program
    run = Run(program, CLIPPED, state, batches)
    run.undisturbed()
    return run


@pytest.mark.parametrize("zero", [0, 1, *(pytest.param(zero, marks=pytest.mark.slow) for zero in (2, 3))])
def test_buffers_and_what_is_stored_once_are_of_one_step(zero: int) -> None:
    """Behind an update, ranks exchange what each owns: who dies then leaves the others with old copies."""
    run = compiled_run(zero)
    for number in range(run.events[0]):
        for deaf in ((), (1,)):
            run.killed(0, number, deaf)


def test_sums_that_have_started_are_of_one_step() -> None:
    """Who dies leaves sums under way, whose memory is not used for the step that is taken anew."""
    run = compiled_run(0, bucket_bytes=1, norm=nn.LayerNorm)
    assert sum(each.op is Op.REDUCE_START for each in run.program.ranks[0].instructions) > 2
    for number in range(run.events[0]):
        run.killed(0, number, ())


def test_some_deaths_leave_survivors_at_different_steps() -> None:
    """Or the tests above would show nothing of rolling forward."""
    run = hand_made_run(CLIPPED)
    seen = set()
    for number in range(run.events[0]):
        world = MortalWorld(3, deaf=[1])
        engines = run.start(world)
        engines[0].timing = KillAt(number)
        step_all(world, engines, run.batches[0])
        seen.add((engines[1].steps, engines[1].transaction.ready, engines[2].steps))
    assert (0, True, 1) in seen, seen
    assert (0, False, 0) in seen, seen
