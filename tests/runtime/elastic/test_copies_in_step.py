"""Copies and who they are of are at one step, whoever dies between any two things that a rank does in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.compiler import lower_graph, trace_graph
from hspmd_compiler.options import OptimizerConfig, Precision
from hspmd_compiler.program.state.state_copies import StateCopies, changing_buffers, copies_as_program
from hspmd_compiler.program.switch_plan import SwitchPlan
from hspmd_compiler.runtime.elastic.copies import KeptCopies
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.switching.carry import carry
from hspmd_compiler.runtime.switching.filling import Filling
from hspmd_compiler.runtime.switching.held import HeldState, StateLayout
from hspmd_compiler.runtime.switching.stages import without_moments
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.switching.copies import plan_copies, plan_restored
from hspmd_compiler.switching.links import links_of_nodes
from hspmd_compiler.switching.plan import plan_switch
from tests.runtime.mortal_ranks import MortalWorld, run_mortals
from tests.runtime.test_transaction import CLIPPED, MOMENTUM, STEPS, KillAt, Normed, Run

ALL, FRONT, BACK = (0, 3), (0, 2), (2, 3)
TWICE = tuple(PipelineSpec((StageSpec((rank,), ALL),), (2,)) for rank in (0, 1))
STAGES = (PipelineSpec((StageSpec((0,), FRONT), StageSpec((1,), BACK)), (4,)),)


class Plain(nn.Module):
    """Nothing but what is trained in a wide type, and read in a narrow one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.body(x), target)


@dataclass
class CopiedRun(Run):
    """What a lost rank had comes from the others alone. copied: where what of it is."""

    copied: StateCopies | None = None

    def start(self, world: MortalWorld) -> list[Engine]:
        engines = super().start(world)
        for engine in engines:
            watch_swaps(engine)
        self.copy(world, engines)
        return engines

    def copy(self, world: MortalWorld, engines: list[Engine]) -> None:
        """Make the copies, anew."""

        def make(engine: Engine) -> Callable[[], None]:
            def run() -> None:
                assert self.copied is not None
                engine.transaction.beside = KeptCopies(self.copied, engine)

            return run

        assert set(run_mortals(world, {each.rank: make(each) for each in engines}).values()) == {"done"}

    def replace(self, engines: list[Engine], victim: int, target: int) -> None:
        world = MortalWorld(self.program.world_size)
        fresh = super().start(world)
        fresh[victim].optimizer.steps = target
        left = [each for each in engines if each.rank != victim]
        plans = self.plans(victim, target)
        for engine in left:
            engine.transport = fresh[engine.rank].transport
            engine.active.batches = fresh[engine.rank].active.batches
        engines[victim] = fresh[victim]

        def take(engine: Engine) -> Callable[[], None]:
            return lambda: take_state(engine, engine.rank == victim, *plans)

        run_mortals(world, {each.rank: take(each) for each in engines})
        self.copy(world, engines)

    def plans(self, victim: int, target: int) -> tuple[SwitchPlan, SwitchPlan]:
        assert self.copied is not None
        programs = {own.rank: own for own in self.program.ranks}
        left = {rank: own for rank, own in programs.items() if rank != victim}
        kept = {rank: copies_as_program(self.copied.shards[rank], programs) for rank in left}
        links, names, moments = links_of_nodes(range(len(programs))), ("", ""), self.config.moments
        plan = plan_switch(left, programs, links, moments=moments, missing_ok=True)
        restored, missing = plan_restored(left, kept, programs, links, names, moments)
        assert restored.classes and not missing.classes
        return (plan, restored) if target else (without_moments(plan), without_moments(restored))


def watch_swaps(engine: Engine) -> None:
    """A rank may die where copies are brought, too."""
    swap = engine.transport.swap_runs

    def swap_runs(leaving: Mapping[int, Sequence[Tensor]], arriving: Mapping[int, Sequence[Tensor]]) -> None:
        timing = engine.timing
        for act in (lambda: None, lambda: swap(leaving, arriving)):
            if isinstance(timing, KillAt):
                timing.passes()
            act()
        if isinstance(timing, KillAt):
            timing.passes()

    engine.transport.swap_runs = swap_runs  # type: ignore[method-assign]


def take_state(engine: Engine, is_new: bool, plan: SwitchPlan, restored: SwitchPlan) -> None:
    """As a rank of an elastic run comes to the state of a generation."""
    before, copies = HeldState(StateLayout()), HeldState(StateLayout())
    if not is_new:
        beside = engine.transaction.beside
        assert isinstance(beside, KeptCopies)
        before, copies = engine.held(), beside.held
    layout = StateLayout.of(engine.rank_program)
    found = carry(plan, engine.rank, before, layout, engine.transport, keep_source=True)
    Filling(restored, engine.rank).fill(copies, found, engine.transport)
    found.cast_copies(())
    engine.active.state, engine.optimizer.state = found.state, found.moments


def run_of(
    pipelines: tuple[PipelineSpec, ...],
    zero: int,
    config: OptimizerConfig,
    precision: Precision = Precision.MODEL,
) -> CopiedRun:
    torch.manual_seed(0)
    is_narrow = precision is Precision.BFLOAT16
    model, dtype = (Plain(), torch.float32) if is_narrow else (Normed(), torch.float64)
    batches = [
        {"x": torch.randn(4, 6, dtype=dtype), "target": torch.randn(4, 3, dtype=dtype)} for _ in range(STEPS)
    ]
    whole = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {name: value.detach().clone() for name, value in whole.items()}
    strategy = Strategy(pipelines, zero=zero)
    graph = trace_graph(model, batches[0], 4, precision=precision).graph
    program = lower_graph(graph, strategy, DeviceKind.CPU).program
    programs = {own.rank: own for own in program.ranks}
    links, changing = links_of_nodes(range(len(programs))), changing_buffers(program)
    copied = plan_copies(programs, links, 1, config.moments, changing)
    run = CopiedRun(program, config, state, batches, copied=copied)
    run.undisturbed()
    return run


@pytest.mark.parametrize(
    ("pipelines", "zero", "config", "victim", "every"),
    [
        (TWICE, 2, CLIPPED, 0, 4),
        (STAGES, 0, CLIPPED, 0, 4),
        *(
            pytest.param(pipelines, zero, config, victim, 1, marks=pytest.mark.slow)
            for pipelines, zero in ((TWICE, 1), (TWICE, 2), (TWICE, 3), (STAGES, 0), (STAGES, 3))
            for config in (CLIPPED, MOMENTUM)
            for victim in (0, 1)
        ),
    ],
)
def test_a_rank_dies_between_any_two_things(
    pipelines: tuple[PipelineSpec, ...], zero: int, config: OptimizerConfig, victim: int, every: int
) -> None:
    """Values, moments and buffers that it alone had are those of the step that the others are at."""
    run = run_of(pipelines, zero, config)
    for number in range(0, run.events[victim], every):
        for deaf in ((), (1 - victim,)):
            run.killed(victim, number, deaf)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_masters_and_their_copies_in_a_narrow_type(zero: int) -> None:
    """What the segments of a new rank read is cast from masters that a copy gave."""
    run = run_of(STAGES if zero == 0 else TWICE, zero, CLIPPED, Precision.BFLOAT16)
    assert all(shard.compute for own in run.program.ranks for shard in own.shards if shard.trainable)
    for number in range(0, run.events[0], 3):
        for deaf in ((), (1,)):
            run.killed(0, number, deaf)
