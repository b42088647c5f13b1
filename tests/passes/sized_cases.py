"""Sized programs of small models, and steps of theirs beside one eager call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hspmd_compiler.options import Precision
from hspmd_compiler.passes.compile_state import Example
from hspmd_compiler.passes.pipeline import planning, tracing
from hspmd_compiler.passes.sized.probes import probes_of, range_of
from hspmd_compiler.passes.sized.unify import unify
from hspmd_compiler.program.program import Program
from hspmd_compiler.program.sized.instantiate import instantiate
from hspmd_compiler.program.sized.sizes import Count, MicroSizes
from hspmd_compiler.program.sized.step_plan import StepPlan
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.verify.eager import eager_model, eager_step, whole_state
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor, loss_difference
from hspmd_compiler.verify.values import simulate
from hspmd_compiler.verify.widen import widen_program

from ..fit import check_fit

Batch = dict[str, Tensor]
EXACT = 1e-10


@dataclass(frozen=True)
class SizedCase:
    """A model, its values, and the program of any size."""

    build: Callable[[], nn.Module]
    state: dict[str, Tensor]
    program: Program
    probed: Sequence[Program]

    @staticmethod
    def of(
        build: Callable[[], nn.Module],
        inputs: Callable[[int], Batch],
        strategy: Strategy,
        unit: Count,
        high: int,
        low: int = 1,
        precision: Precision = Precision.MODEL,
    ) -> SizedCase:
        """inputs: of a probe of so many tokens."""
        model = build()
        probes = probes_of(strategy, unit, low, high)
        lowered, lines = [], []
        for probe in probes:
            traced = tracing(precision=precision).run(
                Example(model, inputs(probe.tokens), probe.strategy.global_batch)
            )
            lines = [row.where for row in traced.graph.rows]
            lowered.append(planning(probe.strategy, cuts=probe.cuts).run(traced).program)
        program = unify(lowered, range_of(strategy, unit, low, high, probes), lines)
        state = {key: _wide(value) for key, value in whole_state(model).items()}
        return SizedCase(build, state, program, lowered)

    def check(self, plan: StepPlan, batch: Mapping[str, Tensor]) -> Program:
        """Loss and every gradient are those of one eager call on the whole batch; gives the plain program."""
        program = instantiate(self.program, plan)
        check_fit(program)
        wide = {key: _wide(value) for key, value in batch.items()}
        found = simulate(widen_program(program), self.state, [wide])
        eager = eager_step(eager_model(self.build, self.state, True), wide, True)
        check_equal([loss_difference(found.losses[0], eager.loss)], EXACT, "loss")
        check_equal(differences(found.grads[0], eager.grads, gradient_floor(eager.grads)), EXACT, "gradients")
        return program


def planned(unit: Count, *pipelines: Sequence[int], **sizes: Any) -> tuple[StepPlan, int]:
    """Micro-batches of these sizes, pipelines one after the other, and how much they hold together."""
    first, made = 0, []
    for own in pipelines:
        micros = []
        for size in own:
            counted = (size, 0) if unit is Count.SAMPLES else (1, size)
            micros.append(MicroSizes(*counted, first=first, **sizes))
            first += size
        made.append(tuple(micros))
    return StepPlan(tuple(made)), first


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value
