"""Ranks as threads, whose engines hold drawn values and take no steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.program import Program, Shard
from hspmd_compiler.program.trained import trained_value
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.saved.checkpoint.checkpointer import Checkpointer, CheckpointNews
from hspmd_compiler.runtime.shards import boxes_of, fill_shard

from ..thread_ranks import Meeting, ThreadTransport, in_threads

T = TypeVar("T")


@dataclass
class Source:
    """Data that stands at a number."""

    at: int = 0
    local: bool = False
    epoch: int = 0
    left_out: int = 0
    at_start: bool = True

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(())

    def state_dict(self) -> dict[str, object]:
        return {"at": self.at}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self.at = cast(int, state["at"])


def wholes_of(program: Program, seed: int) -> dict[str, Tensor]:
    """Drawn values of every parameter and buffer, in their own types."""
    shards = {shard.name: shard for own in program.ranks for shard in own.shards}
    generator = torch.Generator().manual_seed(seed)
    return {name: _drawn(shard, generator) for name, shard in sorted(shards.items())}


def _drawn(shard: Shard, generator: torch.Generator) -> Tensor:
    dtype = getattr(torch, shard.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shard.whole_shape, generator=generator, dtype=dtype)
    return torch.randint(0, 2, shard.whole_shape, generator=generator).to(dtype)


class ThreadRanks:
    """The engines of a program, each of a thread."""

    def __init__(self, program: Program, config: OptimizerConfig, seed: int | None, steps: int = 0) -> None:
        self.program, self.meeting = program, Meeting()
        self.engines = []
        wholes = wholes_of(program, 0 if seed is None else seed)
        if seed is None:
            wholes = {name: torch.zeros_like(whole) for name, whole in wholes.items()}
        moments = {moment: wholes_of(program, 100 + n) for n, moment in enumerate(("exp_avg", "exp_avg_sq"))}
        for own in program.ranks:
            transport = ThreadTransport(self.meeting, own.rank, program.world_size)
            params = {
                shard.name: fill_shard(shard, boxes_of(shard, wholes[shard.name]), transport.device)
                for shard in own.shards
            }
            engine = Engine(program, config, transport, params)
            if steps:
                held = {
                    moment: {name: whole for name, whole in of.items() if name in engine.updated}
                    for moment, of in moments.items()
                }
                engine.load_optimizer_state_dict(held, steps)
            self.engines.append(engine)
        self.data = [Source() for _ in self.engines]

    def all(self, work: Callable[[Engine, Source], T]) -> list[T]:
        """`work` of every rank, at once; the first error ends all."""
        ranks = list(zip(self.engines, self.data, strict=True))
        return in_threads(len(ranks), self.meeting, lambda rank: work(*ranks[rank]))

    def save(self, directory: Path, **options: Any) -> list[CheckpointNews]:
        """One checkpoint of all as they stand; what rank 0 is told."""

        def work(engine: Engine, data: Source) -> list[CheckpointNews]:
            news: list[CheckpointNews] = []
            steps, engine.optimizer.steps = engine.steps, engine.steps - 1
            checkpointer = Checkpointer(engine, data, directory, 1, tell=news.append, **options)
            engine.optimizer.steps = steps
            checkpointer.finish()
            return news

        return self.all(work)[0]


def assert_same_state(found: ThreadRanks, wanted: ThreadRanks) -> None:
    """Values and moments of every rank, bit for bit."""
    for one, two in zip(found.engines, wanted.engines, strict=True):
        for shard in one.shards:
            ours, theirs = (trained_value(shard, engine.active.state) for engine in (one, two))
            assert torch.equal(ours, theirs), shard.name
            held, due = (moments_of(engine, shard.name) for engine in (one, two))
            assert held.keys() == due.keys(), shard.name
            assert all(torch.equal(held[moment], due[moment]) for moment in due), shard.name


def moments_of(engine: Engine, name: str) -> dict[str, Tensor]:
    """Those with any elements."""
    held = engine.optimizer.state.get(name, {})
    return {moment: value for moment, value in held.items() if value.numel()}
