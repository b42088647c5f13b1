"""Steps in parts by threads, beside eager on the whole padded batch, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.artifact.proved_loss import LossKind, ProvedLoss
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.program import Program
from hspmd_compiler.program.switch_plan import SwitchPlan, SwitchScope
from hspmd_compiler.runtime.batches.buckets import CountedLabels
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.hot.parts import StepPart
from hspmd_compiler.runtime.members import ProgramMembers
from hspmd_compiler.runtime.shards import cut_shard
from hspmd_compiler.runtime.strategies import PlanOf, Strategies, StrategyProgram
from hspmd_compiler.switching.links import links_of_nodes
from hspmd_compiler.switching.plan import plan_switch
from hspmd_compiler.verify.eager import eager_model, eager_step, whole_state
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor
from hspmd_compiler.verify.training import EagerUpdate
from hspmd_compiler.verify.widen import default_type, widened

from .thread_ranks import Meeting, ThreadTransport, in_threads

Tensors = dict[str, Tensor]
EXACT = 1e-10


@dataclass(frozen=True)
class Trained:
    """After the last step: whole parameters and moments. losses, norms, grads: of each step."""

    losses: list[float]
    norms: list[float | None]
    grads: list[Tensors]
    params: Tensors
    moments: dict[str, Tensors]


def train_in_parts(
    programs: Mapping[str, Program],
    home: str,
    state: Mapping[str, Tensor],
    steps: Sequence[Sequence[StepPart]],
    config: OptimizerConfig,
    loss: ProvedLoss | None = None,
    kind: LossKind | None = None,
    counted: CountedLabels | None = None,
    dtype: torch.dtype = torch.float64,
    given: Callable[[int, Sequence[StepPart]], Sequence[StepPart]] = lambda world, parts: parts,
) -> Trained:
    """Real engines, one thread for each device that any of the strategies uses.

    loss: what it was proved to be. given: the parts that one of them is given of a step.
    """
    devices = sorted({own.device for program in programs.values() for own in program.ranks})
    plan, meeting = planner(programs, devices), Meeting()

    def job(world: int) -> Trained:
        known = {name: used_by(program, devices, world) for name, program in programs.items()}
        own = known[home].own
        shards = [] if own is None else own.shards
        params = {shard.name: cut_shard(shard, state[shard.name], torch.device("cpu")) for shard in shards}
        transport = ThreadTransport(meeting, world, len(devices))
        transport.serve(known[home].members)
        strategies = Strategies(known, plan, loss=loss)
        engine = Engine(known[home].program, config, transport, params, strategies, home)
        losses, norms, grads = [], [], []
        for parts in steps:
            losses.append(engine.hot_step(given(world, parts), kind, counted))
            norms.append(engine.grad_norm)
            grads.append(engine.grads())
        return Trained(losses, norms, grads, engine.state_dict(), engine.optimizer_state_dict())

    with default_type(dtype):
        found = in_threads(len(devices), meeting, job)
    assert all(each.losses == found[0].losses for each in found), "ranks have different losses"
    return found[0]


def used_by(program: Program, devices: Sequence[int], world: int) -> StrategyProgram:
    """A program as one process takes part in it."""
    members = ProgramMembers([devices.index(own.device) for own in program.ranks])
    rank = members.rank_at(world)
    return StrategyProgram(program, None if rank is None else program.ranks[rank], members)


def planner(programs: Mapping[str, Program], devices: Sequence[int]) -> PlanOf:
    """Compiled plans between strategies, on nodes of three devices; each is made once."""
    by_world = {
        name: {devices.index(own.device): own for own in program.ranks} for name, program in programs.items()
    }
    links = links_of_nodes([world // 3 for world in range(len(devices))])
    scopes = (SwitchScope.PARAMS, SwitchScope.GRADS)
    plans = {
        (one, other, scope): plan_switch(
            by_world[one], by_world[other], links, names=(one, other), scope=scope
        )
        for one, other in permutations(programs, 2)
        for scope in scopes
    }

    def plan(source: str, target: str, scope: SwitchScope = SwitchScope.STATE, /) -> SwitchPlan:
        return plans[source, target, scope]

    return plan


def train_eagerly(
    build: Callable[[], nn.Module],
    state: Mapping[str, Tensor],
    batches: Sequence[Mapping[str, Tensor]],
    config: OptimizerConfig,
) -> Trained:
    """One device, the whole padded batch in one call, torch's own optimizer."""
    model = eager_model(build, state, widen=True)
    update = EagerUpdate(config, model)
    losses, norms, grads = [], [], []
    for step, batch in enumerate(batches):
        found = eager_step(model, batch, widen=True, step=step, seed=0)
        losses.append(found.loss)
        norms.append(update())
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    optimizer = update._optimizer
    assert optimizer is not None
    moments: dict[str, Tensors] = {}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor) and value.dim() == parameter.dim() and moment != "step":
                moments.setdefault(moment, {})[name] = value
    held = whole_state(model)
    return Trained(losses, norms, grads, {k: v.detach() for k, v in held.items()}, moments)


def start_of(build: Callable[[], nn.Module]) -> Tensors:
    """Values of every parameter and buffer in float64; none is zero or one."""
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return {name: cast(Tensor, widened(value.detach())) for name, value in whole_state(model).items()}


def check_alike(found: Trained, wanted: Trained, lr: float) -> None:
    """Losses, norms, gradients, parameters and moments."""
    assert found.losses == pytest.approx(wanted.losses, rel=EXACT)
    assert found.norms == pytest.approx(wanted.norms, rel=EXACT)
    for mine, theirs in zip(found.grads, wanted.grads, strict=True):
        alike("gradients", mine, theirs, gradient_floor(theirs))
    alike("parameters", found.params, wanted.params, lr)
    assert found.moments.keys() == wanted.moments.keys()
    for moment, of in found.moments.items():
        alike(moment, of, wanted.moments[moment], gradient_floor(wanted.moments[moment]))


def alike(what: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], floor: float) -> None:
    """Names that stand for another one are left out, and buffers that no model saves."""
    names = found.keys() & wanted.keys()
    assert names, what
    one, other = ({name: of[name] for name in names} for of in (found, wanted))
    check_equal(differences(one, other, floor), EXACT, what)
