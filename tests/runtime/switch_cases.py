"""Bundles of strategies that leave some processes idle, and a rank's state against whole tensors cut anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import permutations
from pathlib import Path

import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import Artifact
from hspmd_compiler.artifact.write_bundle import BundleContent, write_bundle
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.switch_plan import SwitchPlan
from hspmd_compiler.program.trained import started
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.optimizer import ShardOptimizer
from hspmd_compiler.runtime.shards import boxes_of, fill_kept, fill_shard
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rendezvous import Timeouts
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.switching.links import links_of
from hspmd_compiler.switching.plan import plan_switch

PATIENCE = timedelta(seconds=60)
SEED = 3
FIRST, SECOND, ALL = (0, 1), (1, 2), (0, 2)
WIDE = Strategy((P((S((0, 1), FIRST), S((2,), SECOND)), (3, 2)), P((S((3,), ALL),), (5,))), zero=1)
"""Four devices."""
UNEVEN = Strategy((P((S((0, 1, 3), ALL, (3, 1, 2)),), (6, 4)),), zero=3)
"""Three, without device 2."""
TWO = Strategy((P((S((1,), ALL),), (4, 2)), P((S((2,), ALL),), (3, 1))), zero=2)
"""Two, without devices 0 and 3."""
Factory = Callable[[], tuple[nn.Module, dict[str, Tensor]]]


def bundled(
    to: Path,
    factory: Factory,
    strategies: Mapping[str, Strategy],
    optimizer: OptimizerConfig,
    pairs: Sequence[tuple[str, str]] | None = None,
    precision: str = "model",
) -> Path:
    """A bundle on disk, with plans of these switches, or of all."""
    artifacts = {
        name: hspmd.compile(factory, strategy=strategy, optimizer=optimizer, precision=precision).artifact
        for name, strategy in strategies.items()
    }
    pairs = list(permutations(strategies, 2)) if pairs is None else pairs
    plans = [_plan(artifacts, *pair, ShardOptimizer(optimizer).moments) for pair in pairs]
    write_bundle(to, BundleContent(artifacts, plans))
    return to


def _plan(
    artifacts: Mapping[str, Artifact], source: str, target: str, moments: tuple[str, ...]
) -> SwitchPlan:
    devices = sorted({own.device for each in artifacts.values() for own in each.program.ranks})
    before, after = (
        {devices.index(own.device): own for own in artifacts[name].program.ranks} for name in (source, target)
    )
    return plan_switch(before, after, links_of(None, devices), names=(source, target), moments=moments)


def options(strategy: str | None = None, round_bytes: int = 1 << 12) -> StartOptions:
    return StartOptions(
        SEED, timeouts=Timeouts(PATIENCE, PATIENCE), strategy=strategy, round_bytes=round_bytes
    )


def check_switch(engine: Engine, name: str) -> None:
    """After a switch each rank has, bit for bit, what it would cut from the whole state before it."""
    values, moments, steps = engine.state_dict(), engine.optimizer_state_dict(), engine.steps
    settings = engine.settings
    engine.switch_to(name)
    assert engine.strategy == name and engine.steps == steps and engine.settings == settings
    saved = [shard for shard in engine.shards if shard.persistent]
    device = engine.transport.device
    given = {shard.name: fill_shard(shard, boxes_of(shard, values[shard.name]), device) for shard in saved}
    state, found = started(saved, given), engine.active.state
    for wanted, held in ((state.params, found.params), (state.stored, found.stored)):
        for key, value in wanted.items():
            assert _same(held[key], value), f"{key} of rank {engine.rank}"
    for shard in saved:
        for moment in engine.optimizer.moments if shard.name in engine.updated and steps else ():
            cut = fill_kept(shard, boxes_of(shard, moments[moment][shard.name]), device)
            own = engine.optimizer.state.get(shard.name, {}).get(moment, torch.empty(0, dtype=cut.dtype))
            assert _same(own, cut), f"{moment} of {shard.name} of rank {engine.rank}"
    assert not set(engine.optimizer.state) - {shard.name for shard in engine.shards}


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
