"""Steps in parts by threads, beside eager on the whole padded batch, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.program import Program
from hspmd_compiler.program.switch_plan import SwitchScope
from hspmd_compiler.runtime.active import ActiveProgram
from hspmd_compiler.runtime.batches.buckets import CountedLabels
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.hot.hot_step import HotSteps, HotStrategy
from hspmd_compiler.runtime.hot.parts import LossKind, StepPart, weighed
from hspmd_compiler.runtime.shards import cut_shard
from hspmd_compiler.switching.links import links_of_nodes
from hspmd_compiler.switching.plan import plan_switch
from hspmd_compiler.verify.eager import eager_model, eager_step, whole_state
from hspmd_compiler.verify.training import EagerUpdate
from hspmd_compiler.verify.widen import default_type, widened

from .thread_ranks import Meeting, ThreadTransport, in_threads

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """After the last step: whole parameters and moments. losses, norms, grads: of each step."""

    losses: list[float]
    norms: list[float | None]
    grads: list[Tensors]
    params: Tensors
    moments: dict[str, Tensors]
    moved: int = field(default=0, compare=False)


def by_world(program: Program, devices: Sequence[int]) -> dict[int, int]:
    """Own rank of a program by world rank."""
    index = {device: rank for rank, device in enumerate(devices)}
    return {index[own.device]: own.rank for own in program.ranks}


def train_in_parts(
    programs: Mapping[str, Program],
    home: str,
    state: Mapping[str, Tensor],
    steps: Sequence[Sequence[StepPart]],
    config: OptimizerConfig,
    kind: LossKind = LossKind.LABELS,
    counted: CountedLabels | None = None,
    dtype: torch.dtype = torch.float64,
) -> Trained:
    """Real engines, one thread for each device that any of the strategies uses."""
    devices = sorted({own.device for program in programs.values() for own in program.ranks})
    ranks = {name: by_world(program, devices) for name, program in programs.items()}
    held = {
        name: {world: program.ranks[own] for world, own in ranks[name].items()}
        for name, program in programs.items()
    }
    links = links_of_nodes([world // 3 for world in range(len(devices))])
    plans = {
        name: (
            plan_switch(held[home], held[name], links, names=(home, name), scope=SwitchScope.PARAMS),
            plan_switch(held[name], held[home], links, names=(name, home), scope=SwitchScope.GRADS),
        )
        for name in programs
        if name != home
    }
    meeting = Meeting()

    def job(world: int) -> Trained:
        transport = ThreadTransport(meeting, world, range(len(devices)))
        own = programs[home].ranks[ranks[home][world]]
        params = {shard.name: cut_shard(shard, state[shard.name], transport.device) for shard in own.shards}
        engine = Engine(programs[home], config, transport, params)
        strategies = {}
        for name, program in programs.items():
            members = sorted(ranks[name], key=lambda rank: ranks[name][rank])
            rank = ranks[name].get(world)
            between = ThreadTransport(meeting, rank or 0, members)
            active = (
                engine.active
                if name == home
                else ActiveProgram(program, rank, transport, type(engine.active.state)({}))
            )
            strategies[name] = HotStrategy(name, active, between, *plans.get(name, (None, None)))
        hot = HotSteps(engine, home, strategies)
        losses, norms, grads = [], [], []
        with torch.no_grad():
            for parts in steps:
                losses.append(hot.step(weighed(parts, kind, counted)))
                norms.append(engine.grad_norm)
                grads.append(engine.grads())
            return Trained(
                losses, norms, grads, engine.state_dict(), engine.optimizer_state_dict(), transport.moved
            )

    with default_type(dtype):
        found = in_threads(len(devices), meeting, job)
    assert all(each.losses == found[0].losses for each in found), "ranks have different losses"
    return found[0]


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
