"""Steps of unlike sizes by real engines, one thread for each rank, beside eager on each whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.program import Program
from hspmd_compiler.program.sized.step_plan import StepPlan
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.shards import cut_shard
from hspmd_compiler.verify.eager import eager_model, eager_step
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor, loss_difference
from hspmd_compiler.verify.training import EagerUpdate
from hspmd_compiler.verify.widen import default_type, widen_program

from ..thread_ranks import Meeting, ThreadTransport, in_threads

Tensors = dict[str, Tensor]
Given = tuple[StepPlan | None, Tensors]
EXACT = 1e-10


@dataclass(frozen=True)
class StepEnd:
    """What a step leaves: its loss, gradients (clipped, as eager's are then) and their norm before."""

    loss: float
    norm: float | None
    grads: Tensors


def train_in_threads(
    program: Program,
    state: Tensors,
    steps: Sequence[Given],
    config: OptimizerConfig,
    given: Callable[[int, Engine, Given], Given] = lambda rank, engine, step: step,
    local: bool = False,
    widens: bool = True,
) -> tuple[list[StepEnd], Tensors]:
    """Steps of all ranks in double precision, if it `widens`, and whole parameters at their end.

    given: what a rank is given of a step.
    """
    run, meeting = widen_program(program) if widens else program, Meeting()

    def job(rank: int) -> tuple[list[StepEnd], Tensors]:
        shards = run.ranks[rank].shards
        params = {each.name: cut_shard(each, state[each.name], torch.device("cpu")) for each in shards}
        transport = ThreadTransport(meeting, rank, run.world_size)
        engine = Engine(run, config, transport, params)
        ends = []
        for step in steps:
            plan, batch = given(rank, engine, step)
            loss = engine.step(batch, plan, local=local)
            ends.append(StepEnd(loss, engine.grad_norm, engine.grads()))
        return ends, engine.state_dict()

    with default_type(torch.float64 if widens else torch.float32):
        found = in_threads(run.world_size, meeting, job)
    assert all([end.loss for end in ends] == [end.loss for end in found[0][0]] for ends, _ in found)
    return found[0]


def check_training(
    build: Callable[[], nn.Module],
    state: Tensors,
    steps: Sequence[Given],
    config: OptimizerConfig,
    found: tuple[list[StepEnd], Tensors],
    tolerance: float = EXACT,
) -> None:
    """Losses, gradients, norms and parameters are those of eager, one call for each whole batch."""
    ends, params = found
    model = eager_model(build, state, True)
    update = EagerUpdate(config, model)
    for number, ((_, batch), end) in enumerate(zip(steps, ends, strict=True)):
        eager = eager_step(model, batch, True, step=number)
        check_equal([loss_difference(end.loss, eager.loss)], tolerance, f"loss of step {number}")
        norm = update()
        if config.max_grad_norm is not None:
            assert norm is not None and end.norm is not None
            check_equal([loss_difference(end.norm, norm)], tolerance, f"norm of step {number}")
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        check_equal(differences(end.grads, grads, gradient_floor(grads)), tolerance, f"gradients of {number}")
    whole = {name: value.detach() for name, value in model.state_dict().items() if name in params}
    check_equal(differences(params, whole, config.lr), tolerance, "parameters")
