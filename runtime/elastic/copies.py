"""A rank's copies of pieces that others train: updated by the same gradients, in the same transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from ...program.execute import RankState
from ...program.program import Shard
from ...program.state.state_copies import StateCopies
from ...program.switch_plan import GRAD, VALUE
from ..optimizer import ShardOptimizer
from ..switching.carry import carry
from ..switching.filling import Filling
from ..switching.held import HeldState, StateLayout
from ..switching.stages import ROUND_BYTES, without_moments
from ..update import apply_update, ready_update

if TYPE_CHECKING:
    from ..engine import Engine


class KeptCopies:
    """See UpdateBeside. Every rank of a generation has one, also one that keeps none: it may have to send.

    held: values and moments, as of the step of the engine. Before a step's vote each copy gets the gradient
    of its elements, clipped, and behind it the update of the optimizer: so owner and copy are of one step
    wherever the rank is found, and what is lost with a rank on the way is the step. sent: hears what the
    making of the copies takes.
    """

    def __init__(
        self,
        plan: StateCopies,
        engine: Engine,
        round_bytes: int = ROUND_BYTES,
        sent: Callable[[int], None] = lambda size: None,
    ) -> None:
        rank = engine.transport.rank
        shards = plan.shards[rank]
        self._engine = engine
        self._gradients = Filling(plan.each_step, rank, round_bytes)
        self._buffers = Filling(plan.buffers, rank, round_bytes)
        types = {shard.name: plan.gradients[shard.name] for shard in shards if shard.name in plan.gradients}
        self._layout = StateLayout({shard.name: shard for shard in shards}, types)
        self._optimizer = ShardOptimizer(engine.optimizer.config, engine.optimizer.deterministic)
        self._optimizer.steps = engine.steps
        make = plan.make if engine.steps else without_moments(plan.make)
        made = carry(make, rank, engine.held(), self._layout, engine.transport, round_bytes, True, sent)
        self._state, self._optimizer.state = made.state, made.moments
        changing = {part.name for each in plan.buffers.classes for part in each.parts}
        self._changing = [shard.name for shard in shards if shard.name in changing]
        self._coming = HeldState(self._layout)

    @property
    def held(self) -> HeldState:
        """The copies as a state to go on from."""
        return HeldState(self._layout, self._state, self._optimizer.state)

    def make_ready(self) -> None:
        """Bring the gradients of the copied elements, and allocate what an update of them needs."""
        engine, held = self._engine, self.held
        for name in self._layout.gradients:
            if not held.holds((name, GRAD)):
                held.make((name, GRAD), engine.transport.device)
        self._gradients.fill(engine.held(), held, engine.transport)
        for name in self._changing:
            if not self._coming.holds((name, VALUE)):
                self._coming.make((name, VALUE), engine.transport.device)
        self._buffers.fill(self._with_new_buffers(), self._coming, engine.transport)
        ready_update(self._shards, self._state, self._optimizer, None)

    def update(self, lr: float) -> None:
        """Take the step, alone."""
        apply_update(self._shards, self._state, self._optimizer, lr)
        for name in self._changing:
            self._state.stored[name].copy_(self._coming.tensor((name, VALUE)))

    def abandon(self) -> None:
        """Forget a step that came to no end."""
        if not self._optimizer.steps:
            self._optimizer.state = {}

    @property
    def _shards(self) -> list[Shard]:
        return list(self._layout.shards.values())

    def _with_new_buffers(self) -> HeldState:
        """The rank's state with the values that its buffers have behind the update."""
        engine = self._engine
        held = engine.held()
        params: dict[str, Tensor] = {**held.state.params, **held.state.buffers}
        return replace(held, state=RankState(params, stored=held.state.stored))
