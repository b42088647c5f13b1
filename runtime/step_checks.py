"""What all ranks must agree on in a step, asked in the reduction that the loss needs anyway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ..program.kernels.index_check import IndexProblem, Use, count_outside, noting_uses, outside_error
from .batches.batch_check import BatchCheck, Settings
from .step_vote import StepVote
from .transport import Transport


@dataclass(frozen=True, slots=True)
class StepChecks:
    """The checks of one step. step: counted from 1. uses: noted indexes.

    settings: what all ranks must take the step with alike. vote: what it decides beside, None: an
    update does not follow.
    """

    transport: Transport
    batches: BatchCheck
    batch: Mapping[str, Tensor]
    local: bool
    step: int
    settings: Settings
    uses: list[Use]
    vote: StepVote | None

    def sum_of(self, share: Tensor) -> Tensor:
        """The loss of the whole batch; RunError on all ranks where batches differ, or an index is outside.

        The batch is read only now, while a device still works on what it was given.
        """
        pauses = self.vote is not None and self.vote.enter()
        pausing = torch.tensor(float(pauses), dtype=share.dtype, device=share.device)
        said = self.batches.addend(self.batch, self.local, self.settings)
        addend = torch.tensor(said, dtype=share.dtype, device=share.device)
        parts = torch.stack([share, addend, count_outside(self.uses, share), pausing])
        loss, total, outside, paused = self.transport.sum_over_ranks(parts).unbind()
        self.batches.check(float(total), self.batch, self.local, self.step, self.settings)
        if float(outside):
            own = [use.problem() for use in self.uses]
            told = cast(list[list[IndexProblem | None]], self.transport.gather_objects(own))
            raise outside_error([problem for problems in told for problem in problems])
        if self.vote is not None:
            self.vote.passed(bool(paused))
        return loss


@contextmanager
def checking(
    transport: Transport,
    batches: BatchCheck,
    batch: Mapping[str, Tensor],
    local: bool,
    step: int,
    settings: Settings,
    vote: StepVote | None = None,
) -> Iterator[StepChecks]:
    """The checks of a step that runs within."""
    with noting_uses() as uses:
        yield StepChecks(transport, batches, batch, local, step, settings, uses, vote)
