"""Training steps of all ranks in one process, with real numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..base.by_key import by_key
from ..errors import VerifyError
from ..program.arrays import TorchArrays
from ..program.codegen import SegmentCache
from ..program.execute import RankPlan, RankState, SegmentRunner, plan_ranks, run_step
from ..program.kernels.random_kernels import step_keys
from ..program.program import ZERO_GRADS, ZERO_STATE, Program, Shard
from ..program.segments import CompiledSegments, ObservedSegments, Observer
from ..program.sized.micro_batches import micro_batches
from ..program.trained import as_local, started, trained_value
from ..runtime.shards import cut_shard
from .lockstep.blocked import RankRun
from .lockstep.lockstep import Lockstep
from .lockstep.report import Event
from .same_masks import SEED
from .shards import join_shards
from .widen import default_type

Tensors = dict[str, Tensor]
Optimizer = Callable[[Sequence["Rank"]], None]
"""Updates the parameters of all ranks from their synchronised gradients."""


@dataclass(slots=True)
class Rank:
    """One simulated rank."""

    plan: RankPlan
    state: RankState[Tensor]
    segments: SegmentRunner[Tensor]


@dataclass(frozen=True, slots=True)
class Simulation:
    """Per step the loss, whole gradients and matched events; whole parameters and buffers at the end."""

    losses: list[float]
    grads: list[Tensors]
    params: Tensors
    events: list[tuple[Event, ...]]


def simulate(
    program: Program,
    params: Mapping[str, Tensor],
    batches: Sequence[Mapping[str, Tensor]],
    optimizer: Optimizer | None = None,
    observe: Observer | None = None,
) -> Simulation:
    """One step per global batch, from whole parameters and buffers (by any of their names).

    Without an optimizer parameters stay. With `observe`, each value of each rank is shown to it.
    """
    ranks = start_ranks(program, params, observe)
    losses: list[float] = []
    grads: list[Tensors] = []
    events: list[tuple[Event, ...]] = []
    for step, batch in enumerate(batches):
        loss, matched = lockstep_step(ranks, batch, optimizer, step)
        losses.append(loss)
        events.append(matched)
        grads.append(whole_grads(ranks))
    return Simulation(losses, grads, whole_params(ranks), events)


def start_ranks(
    program: Program, params: Mapping[str, Tensor], observe: Observer | None = None
) -> list[Rank]:
    """All ranks with their shards of `params`."""
    by_name = {program.aliases.get(name, name): tensor for name, tensor in params.items()}
    needed = {shard.name for rank in program.ranks for shard in rank.shards}
    missing = sorted(needed - by_name.keys())
    if missing:
        raise VerifyError("parameters are missing", details=[("missing", ", ".join(missing))])
    cache = SegmentCache(starts=True)
    return [_start(plan, by_name, cache, observe) for plan in plan_ranks(program)]


def ranks_from(program: Program, states: Mapping[int, RankState[Tensor]]) -> list[Rank]:
    """All ranks with states that they got elsewhere, by rank."""
    cache = SegmentCache(starts=True)
    return [
        Rank(plan, states[plan.program.rank], CompiledSegments(plan, cache)) for plan in plan_ranks(program)
    ]


def lockstep_step(
    ranks: Sequence[Rank], batch: Mapping[str, Tensor], optimizer: Optimizer | None, step: int = 0
) -> tuple[float, tuple[Event, ...]]:
    """One step of all ranks: the loss, and what was matched. step: of the random masks."""
    for rank in ranks:
        rank.state.keys = step_keys(rank.plan.program.drawn_rows, SEED, step)
    with torch.no_grad(), default_type(_width(ranks)):
        arrays = TorchArrays()
        runs = [_run(rank, batch, arrays) for rank in ranks]
        events = Lockstep(runs, None if optimizer is None else lambda: optimizer(ranks)).run()
    losses = {float(run.loss) for run in runs if run.loss is not None}
    if len(losses) != 1 and not all(loss != loss for loss in losses):
        raise VerifyError(f"ranks disagree on the loss: {sorted(losses)}", rule="the loss is one number")
    return losses.pop(), events


def _width(ranks: Sequence[Rank]) -> torch.dtype:
    """Double where all parameters are, as eager code computes in a widened model."""
    held = [value for rank in ranks for value in (*rank.state.params.values(), *rank.state.stored.values())]
    types = {value.dtype for value in held if value.is_floating_point() or value.is_complex()}
    is_double = bool(types) and types <= {torch.float64, torch.complex128}
    return torch.float64 if is_double else torch.get_default_dtype()


def whole_grads(ranks: Sequence[Rank], kept: Sequence[Tensors] | None = None) -> Tensors:
    """Synchronised gradients joined from all ranks, copies checked. kept: instead, by rank."""
    synced = [rank.state.synced for rank in ranks] if kept is None else kept
    held = zip(ranks, synced, strict=True)
    return _joined([(rank, _whole_or_owned(rank, of, ZERO_GRADS)) for rank, of in held])


def whole_params(ranks: Sequence[Rank]) -> Tensors:
    """Parameters and buffers joined from all ranks, copies checked."""
    return _joined([(rank, _whole_or_owned(rank, _trained(rank), ZERO_STATE)) for rank in ranks])


def _trained(rank: Rank) -> Tensors:
    return {name: trained_value(shard, rank.state) for name, shard in rank.plan.shards.items()}


def _start(
    plan: RankPlan, params: Mapping[str, Tensor], cache: SegmentCache, observe: Observer | None
) -> Rank:
    given = {name: _cut(shard, params[name]) for name, shard in plan.shards.items()}
    state = started(plan.shards.values(), given)
    segments: SegmentRunner[Tensor] = (
        CompiledSegments(plan, cache) if observe is None else ObservedSegments(plan, observe)
    )
    return Rank(plan, state, segments)


def _cut(shard: Shard, whole: Tensor) -> Tensor:
    """What a rank of a run starts with."""
    if tuple(whole.shape) != shard.whole_shape:
        raise VerifyError(f"{shard.name} has shape {tuple(whole.shape)}, the program {shard.whole_shape}")
    return cut_shard(shard, whole.detach(), torch.device("cpu"))


def _run(rank: Rank, batch: Mapping[str, Tensor], arrays: TorchArrays) -> RankRun[Tensor]:
    rows = micro_batches(rank.plan, batch)
    steps = run_step(rank.plan, rank.state, rows, rank.segments, arrays)
    return RankRun(rank.plan, rank.state, arrays, steps)


def _whole_or_owned(rank: Rank, tensors: Tensors, zero: int) -> list[tuple[Shard, Tensor]]:
    """Local tensors with their shards; rows of shards from `zero` on as what the rank owns of them."""
    found = []
    for name, value in tensors.items():
        shard = rank.plan.shards[name]
        if shard.zero >= zero:
            found.append((replace(shard, boxes=shard.owned), as_local(shard, value)))
        else:
            found.append((shard, value.view(shard.shape)))
    return found


def _joined(held: Sequence[tuple[Rank, Sequence[tuple[Shard, Tensor]]]]) -> Tensors:
    parts = by_key(
        (shard.name, (rank.plan.program.rank, shard, local)) for rank, of in held for shard, local in of
    )
    return {name: join_shards(name, parts[name]) for name in sorted(parts)}
