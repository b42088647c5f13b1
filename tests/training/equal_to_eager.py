"""One training step of a compiled strategy against one eager call, in float64, all ranks in lockstep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.program.program import Program
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.trace.blocks.trace_step import trace_step
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.eager import EagerResult, eager_model, eager_step, whole_state
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor, loss_difference
from hspmd_compiler.verify.values import simulate
from hspmd_compiler.verify.widen import widen_program

from ..fit import check_fit
from .training_cases import program_for

EXACT = 1e-10
SPREAD = 0.3
"""Standard deviation of all parameters: none is zero or one, so that a wrong one shows."""


@dataclass(frozen=True)
class Case:
    """A model traced once, its values, and the eager step that every strategy is compared with."""

    graph: LogicalGraph
    state: dict[str, Tensor]
    batch: dict[str, Tensor]
    eager: EagerResult

    @staticmethod
    def of(
        build: Callable[[], nn.Module], batch: dict[str, Tensor], anchors: tuple[str, ...] | None = None
    ) -> Case:
        """For a batch whose dim 0 is the sample. anchors: of the traced graph."""
        torch.manual_seed(0)
        model = build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=SPREAD)
        samples = len(next(iter(batch.values())))
        if anchors is None:
            graph = trace(model, batch, batch=samples)
        else:
            graph = trace_step(model, batch, batch=samples, anchors=anchors).graph
        state = {k: _wide(v) for k, v in whole_state(model).items()}
        wide = {k: _wide(v) for k, v in batch.items()}
        return Case(graph, state, wide, eager_step(eager_model(build, state, True), wide, True))

    def check(self, strategy: Strategy) -> Program:
        """Loss and every gradient are eager's; gives the program."""
        program = program_for(self.graph, strategy)
        check_fit(program)
        self.compare(program)
        return program

    def compare(self, program: Program) -> None:
        """VerifyError where loss or a gradient is another than eager's."""
        found = simulate(widen_program(program), self.state, [self.batch])
        check_equal([loss_difference(found.losses[0], self.eager.loss)], EXACT, "loss")
        floor = gradient_floor(self.eager.grads)
        check_equal(differences(found.grads[0], self.eager.grads, floor), EXACT, "gradients")


def _wide(value: Tensor) -> Tensor:
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() else value
