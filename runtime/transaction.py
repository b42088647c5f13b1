"""The end of a step as a transaction: made ready with all ranks, decided by all, then done by each alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ..errors import InternalError
from .gradient_norm import global_norm
from .shards import owned_grads
from .step_vote import StepVote
from .update import apply_update, ready_update

if TYPE_CHECKING:
    from .engine import Engine


class UpdateBeside(Protocol):
    """Something that is updated with the rank's shards: in the same step, or not at all."""

    def make_ready(self) -> None:
        """All that needs other ranks; gradients are clipped. May raise PeerLost."""

    def update(self, lr: float) -> None:
        """Take the step, alone."""

    def abandon(self) -> None:
        """Forget a step that came to no end."""


class Transaction:
    """Of an engine. vote: what the last meeting of a step decides. beside: what takes the same updates.

    ready: the gradients of the next step are synchronised and clipped, so that `roll_forward` can take it
    alone. whole: local copies are of this step, not only what the rank owns. first_end: called once, when all
    that a step leaves is there.
    """

    def __init__(self, engine: Engine) -> None:
        self.vote = StepVote()
        self.beside: UpdateBeside | None = None
        self.ready = False
        self.whole = True
        self.first_end: Callable[[], object] | None = None
        self._engine = engine

    def begin(self) -> None:
        """A step begins."""
        self.ready = False

    def end(self) -> None:
        """All of a step is done, also what is exchanged behind the update."""
        self.whole = True
        if self.first_end is not None:
            self.first_end()
            self.first_end = None

    def make_ready(self) -> None:
        """All of an update that needs other ranks, or may find no memory."""
        engine, state = self._engine, self._engine.active.state
        # What is being sent may share memory with a parameter.
        engine.timing.exchanges(None, engine.transport.finish_sends)
        if engine.optimizer.config.max_grad_norm is not None:
            owned = owned_grads(engine.shards, state.synced)
            engine.grad_norm = global_norm(owned, engine.transport.device, self._sum_over_ranks)
        ready_update(engine.shards, state, engine.optimizer, engine.grad_norm)
        if self.beside is not None:
            engine.timing.exchanges(None, self.beside.make_ready)
        self.ready = True

    def update(self) -> None:
        """Update the shards from the synchronised gradients: nothing in here can lose a rank."""
        if not self.ready:
            self.make_ready()
        engine = self._engine
        lr = engine.current_lr
        apply_update(engine.shards, engine.active.state, engine.optimizer, lr)
        if self.beside is not None:
            self.beside.update(lr)
        self.ready, self.whole = False, not engine.active.gathers

    @torch.no_grad()
    def roll_forward(self) -> None:
        """Take the step whose gradients are there, alone: others have, and this rank has lost them."""
        if not self.ready:
            raise InternalError(
                "there are no gradients of a next step", rule="only a rank that is ready steps"
            )
        self.update()

    def abandon(self) -> None:
        """Forget a step that came to no end. The same batch is to be given again."""
        self.ready = False
        self._engine.active.abandon()
        if not self._engine.steps:
            self._engine.optimizer.state = {}  # made ready for an update that has not come
        if self.beside is not None:
            self.beside.abandon()

    def _sum_over_ranks(self, value: Tensor) -> Tensor:
        engine = self._engine
        return engine.timing.exchanges(None, partial(engine.transport.sum_over_ranks, value))
