"""A rank of an elastic training: its engine of each generation, made from what the ranks hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch

from ...artifact.copies_file import copies_from
from ...artifact.store import Artifact, load
from ...artifact.switch_file import plan_from
from ...program.switch_plan import SwitchPlan
from ..batches.data import DataSource
from ..device import CPU, find_device
from ..engine import Engine
from ..members import ProgramMembers
from ..saved.initial_params import InitialState
from ..start.opening import StartOptions
from ..start.rank_process import Emit
from ..step_vote import StepVote
from ..strategies import Strategies, StrategyProgram
from ..switching.carry import carry
from ..switching.filling import Filling
from ..switching.held import HeldState, StateLayout
from ..switching.stages import without_moments
from ..torch_transport import TorchDist
from .agent import Agent
from .batches import ReturnedBatches
from .copies import KeptCopies
from .launcher import DONE, PAUSED
from .messages import NOTHING_HELD, Arrived, HeldReport, NextGeneration, RunPosition, ToldRecord
from .stale import layout_of_owned

COPIES = "copies"
"""Record: copies are kept from now on, how many lost nodes they make up for, and what they cost."""


class Paused(Exception):
    """All ranks stop behind the step that is complete."""


class MakeData(Protocol):
    """The data of an engine. alone: only this rank makes them now, so that nothing may ask others."""

    def __call__(self, engine: Engine, alone: bool) -> DataSource: ...


class TrainOn(Protocol):
    """Trains to the end of the run, which began at a step; calls `on_step` behind each."""

    def __call__(
        self, engine: Engine, data: DataSource, begun: int, emit: Emit, on_step: Callable[[], None]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class ElasticRun:
    """What is trained, by whoever starts it. resume: at the beginning. load: go on from a checkpoint.

    local_index: of each device, among those of its host.
    """

    options: StartOptions
    data: MakeData
    resume: Callable[[Engine, DataSource, Emit], None]
    load: Callable[[Engine, DataSource, Path], None]
    train: TrainOn
    local_index: Mapping[int, int]


@dataclass(slots=True)
class _State:
    """An engine and its data, as of a generation."""

    generation: int
    engine: Engine
    data: ReturnedBatches
    begun: int
    noted: int = 0

    def __post_init__(self) -> None:
        self.noted = self.engine.steps

    def note(self) -> None:
        """The batch that was drawn last is used where its step is complete."""
        if self.engine.steps != self.noted:
            self.data.used()
            self.noted = self.engine.steps


class ElasticVote(StepVote):
    """Stops behind the step where the launcher wants it. What came by an abort is not used."""

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__()
        self._agent = agent
        self._device = device

    def enter(self) -> bool:
        """See StepVote."""
        if self._device.type != CPU:
            torch.cuda.synchronize(self._device)
        self._agent.check()
        return self._agent.pausing

    def passed(self, paused: bool) -> None:
        """See StepVote."""
        self._agent.check()
        super().passed(paused)


class ElasticTraining:
    """See RankWork. The old state is kept, beside the new one, until every rank has all of that."""

    def __init__(self, agent: Agent, run: ElasticRun) -> None:
        self._agent = agent
        self._run = run
        self._state: _State | None = None
        self._beside: _State | None = None
        self.last: dict[str, Any] | None = None

    @property
    def held(self) -> HeldReport:
        """See RankWork."""
        new = self._beside
        beside = (NOTHING_HELD, 0) if new is None else (new.generation, new.engine.steps)
        if self._state is None:
            return HeldReport(beside=beside[0], beside_steps=beside[1])
        engine, end = self._state.engine, self._state.engine.transaction
        return HeldReport(
            self._state.generation, engine.steps, end.ready, end.whole, engine.active.gathers, *beside
        )

    @property
    def position(self) -> RunPosition:
        """See RankWork."""
        state = self._state or self._beside
        if state is None:
            return RunPosition()
        state.note()
        engine, data = state.engine, state.data
        return RunPosition(*data.position(), engine.seed, state.begun, data.seed, engine.lr)

    def take(self, order: NextGeneration) -> str:
        """See RankWork."""
        self._settle(order)
        rank = order.rank_of(self._agent.id)
        members = ProgramMembers(order.members)
        own_rank = members.rank_at(rank)
        artifact = load(order.program, own_rank or 0, with_weights=not order.plan)
        own = None if own_rank is None else artifact.rank_program(own_rank)
        if own is not None and self._run.options.check is not None and order.held == NOTHING_HELD:
            self._run.options.check(artifact.program, own.rank)
        start = perf_counter()
        groups = [members.group(group) for group in artifact.program.groups]
        transfer = self._run.options.timeouts.transfer
        self._agent.join(order, groups, transfer)
        kind = artifact.program.ranks[0].device_kind
        device = find_device(kind, self._run.local_index[order.world[rank].device]).device
        transport = TorchDist(device, groups, transfer, members)
        joined = perf_counter()
        moved = self._arrive(order, artifact, StrategyProgram(artifact.program, own, members), transport)
        self._agent.report(Arrived(order.generation, joined - start, perf_counter() - joined, moved))
        return self._train()

    def _settle(self, order: NextGeneration) -> None:
        """Turn to the state that is in force, at its last completed step."""
        if self._beside is not None and self._beside.generation == order.held:
            self._state = self._beside
        elif self._state is not None and self._state.generation == order.held:
            end = self._state.engine.transaction
            if order.steps == self._state.engine.steps + 1:
                end.roll_forward()
            else:
                end.abandon()
            self._state.note()
        else:
            self._state = None
        self._beside = None

    def _arrive(
        self, order: NextGeneration, artifact: Artifact, strategy: StrategyProgram, transport: TorchDist
    ) -> int:
        """Come to the state of a generation beside the old one; all ranks have it at the end."""
        moved: list[int] = []
        if order.plan:
            self._beside = self._carried(order, artifact, strategy, transport, moved)
        else:
            self._beside = self._begun(order, artifact, strategy, transport)
        engine = self._beside.engine
        engine.transaction.vote = ElasticVote(self._agent, transport.device)
        engine.places = tuple(f"device {each.device}" for each in order.world)
        told = self._copy(order, engine, moved) if order.copies else None
        transport.sum_over_ranks(torch.zeros((), device=transport.device))
        self._agent.check()
        self._state, self._beside = self._beside, None
        if told is not None:
            self._emit_as(transport.rank)({COPIES: told})
        return sum(moved)

    def _copy(self, order: NextGeneration, engine: Engine, moved: list[int]) -> dict[str, object]:
        """Make the copies of this generation; what there is to tell of them."""
        copies = copies_from(Path(order.copies).read_bytes(), order.copies)
        engine.transaction.beside = KeptCopies(copies, engine, self._run.options.round_bytes, moved.append)
        return {
            "wanted": copies.wanted,
            "survived": copies.survived,
            "memory_bytes": copies.memory_bytes,
            "step_bytes": copies.step_bytes,
        }

    def _begun(
        self, order: NextGeneration, artifact: Artifact, strategy: StrategyProgram, transport: TorchDist
    ) -> _State:
        """As the run began, or from a checkpoint: all ranks alike."""
        options = self._run.options
        initial = InitialState.of(artifact, options.seed, options.weights)
        shards = [] if strategy.own is None else strategy.own.shards
        params = initial.shards_of(strategy.program, shards, transport)
        engine = self._engine(order, artifact, strategy, transport, params)
        engine.seed = options.seed
        data = ReturnedBatches(self._run.data(engine, alone=False))
        if order.checkpoint:
            self._run.load(engine, data, Path(order.checkpoint))
            return _State(order.generation, engine, data, order.position.begun)
        self._run.resume(engine, data, self._emit_as(transport.rank))
        return _State(order.generation, engine, data, engine.steps)

    def _carried(
        self,
        order: NextGeneration,
        artifact: Artifact,
        strategy: StrategyProgram,
        transport: TorchDist,
        moved: list[int],
    ) -> _State:
        """The state of the ranks that have it, as the plan says."""
        world = range(len(order.world))

        def read(file: str) -> SwitchPlan:
            plan = plan_from(Path(file).read_bytes(), file, world, world, orphans=bool(order.restored))
            return plan if order.steps else without_moments(plan)

        held = carry(
            read(order.plan),
            transport.rank,
            self._before(),
            StateLayout.of(strategy.own),
            transport,
            self._run.options.round_bytes,
            keep_source=True,
            sent=moved.append,
        )
        if order.restored:
            filling = Filling(read(order.restored), transport.rank, self._run.options.round_bytes)
            moved.append(filling.fill(self._copies(), held, transport))
            held.cast_copies(())
        engine = self._engine(order, artifact, strategy, transport, held)
        engine.seed, engine.lr = order.position.seed, order.position.lr
        engine.optimizer.steps = order.steps
        if self._state is None:
            data = ReturnedBatches(self._run.data(engine, alone=True))
        else:
            data = self._state.data
        data.go_on(order.position, engine.rows, engine.keys, engine.active.sizes)
        return _State(order.generation, engine, data, order.position.begun)

    def _before(self) -> HeldState:
        """What this rank has; of a step whose last exchange is lost only what it owns."""
        if self._state is None:
            return HeldState(StateLayout())
        engine = self._state.engine
        held = engine.held()
        if engine.transaction.whole:
            return held
        return replace(held, layout=layout_of_owned(held.layout))

    def _copies(self) -> HeldState:
        """What this rank has of others' state."""
        beside = None if self._state is None else self._state.engine.transaction.beside
        return beside.held if isinstance(beside, KeptCopies) else HeldState(StateLayout())

    def _engine(
        self,
        order: NextGeneration,
        artifact: Artifact,
        strategy: StrategyProgram,
        transport: TorchDist,
        held: Any,
    ) -> Engine:
        optimizer, name = artifact.manifest.optimizer, order.strategy
        strategies = Strategies({name: strategy}, round_bytes=self._run.options.round_bytes)
        arithmetic = self._run.options.arithmetic
        return Engine(strategy.program, optimizer, transport, held, strategies, name, arithmetic)

    def _train(self) -> str:
        assert self._state is not None, "it has arrived"
        state, rank = self._state, self._state.engine.transport.rank

        def emit(record: Mapping[str, object]) -> None:
            if "step" in record:
                self.last = dict(record)
                state.note()
            self._emit_as(rank)(record)

        def on_step() -> None:
            if state.engine.transaction.vote.paused:
                raise Paused

        try:
            self._run.train(state.engine, state.data, state.begun, emit, on_step)
        except Paused:
            return PAUSED
        return DONE

    def _emit_as(self, rank: int) -> Emit:
        """What rank 0 emits is told."""
        if rank == 0:
            return lambda record: self._agent.report(ToldRecord(dict(record)))
        return lambda record: None
