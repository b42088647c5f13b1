"""Steps in parts by real processes over gloo, in float64, beside one device on the whole padded batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import RankLost
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.runtime.batches.buckets import BucketBatch, BucketFill, LengthBucket
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import StartOptions, launch
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy

from .hot_cases import Trained, check_alike, train_eagerly

WIDTH, HEADS, VOCAB, LONGEST, LAYERS = 32, 8, 32, 16, 4
ADAMW = OptimizerConfig(lr=1e-2, eps=1e-2, weight_decay=0.1, max_grad_norm=0.5)
"""An eps by which a gradient that is rounding alone moves nothing."""
STEPS = 3
SEED = 0
Steps = Sequence[Sequence[BucketBatch]]
Wholes = Sequence[Mapping[str, Tensor]]


class Block(nn.Module):
    """Causal attention and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(x)
        parts = [
            of(seen).unflatten(-1, (HEADS, -1)).transpose(1, 2) for of in (self.query, self.key, self.value)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class LanguageModel(nn.Module):
    """All of it in the type of its parameters; labels are shifted here."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def tokens(length: int) -> dict[str, Tensor]:
    ids = torch.zeros(2, length, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids.clone()}


def build() -> nn.Module:
    return LanguageModel().double()


def factory() -> tuple[nn.Module, dict[str, Tensor]]:
    return build(), tokens(LONGEST)


def sequences(step: int, count: int) -> list[Tensor]:
    """Most of them short; one is as long as can be."""
    drawn = torch.Generator().manual_seed(step)
    sizes = torch.randint(2, LONGEST // 2, (count,), generator=drawn).tolist()
    return [torch.randint(0, VOCAB, (size,), generator=drawn) for size in (*sizes[1:], LONGEST)]


def bundle(to: Path, strategies: Mapping[str, tuple[Strategy, int]], home: str) -> list[LengthBucket]:
    """Written; the buckets of what it takes. strategies: with their lengths."""
    entries = {
        name: hspmd.BundleEntry(strategy, tokens(length)) for name, (strategy, length) in strategies.items()
    }
    made = hspmd.compile_bundle(factory, strategies=entries, home=home, switch=(), optimizer=ADAMW)
    made.save(to)
    return [
        LengthBucket(name, length, strategy.global_batch) for name, (strategy, length) in strategies.items()
    ]


def check_run(
    directory: Path, home: str, steps: Sequence[Sequence[BucketBatch]], wholes: Sequence[dict[str, Tensor]]
) -> None:
    """Loss, norm and gradients of each step; parameters and moments at the end."""
    kept = directory.parent / "kept.pt"

    def job(engine: Engine, emit: Emit) -> None:
        losses, norms, grads = [], [], []
        for parts in steps:
            losses.append(engine.hot_step(parts))
            norms.append(engine.grad_norm)
            grads.append(engine.grads())
        found = Trained(losses, norms, grads, engine.state_dict(), engine.optimizer_state_dict())
        if engine.rank == 0:
            torch.save(found, kept)

    launch(directory, job, StartOptions(seed=SEED, strategy=home))
    torch.manual_seed(SEED)
    start = {name: value.detach() for name, value in build().state_dict().items()}
    found: Trained = torch.load(kept, weights_only=False)
    check_alike(found, train_eagerly(build, start, wholes, ADAMW), ADAMW.lr)


def divided(
    buckets: Sequence[LengthBucket], count: int
) -> tuple[list[list[BucketBatch]], list[dict[str, Tensor]]]:
    """Parts of each step, and the same sequences as one padded batch."""
    drawn, fill = [sequences(step, count) for step in range(STEPS)], BucketFill()
    whole = [LengthBucket("whole", LONGEST, count)]
    return [fill.divided(step, buckets) for step in drawn], [
        fill.divided(step, whole)[0].batch for step in drawn
    ]


def pipelines(dp: int, tp: int, pp: int, size: int, zero: int) -> Strategy:
    """Equal pipelines of equal stages, a micro-batch for each stage."""
    devices, each = iter(range(dp * tp * pp)), LAYERS // pp

    def stage(at: int) -> S:
        return S(tuple(next(devices) for _ in range(tp)), (at * each, (at + 1) * each))

    made = (P(tuple(stage(at) for at in range(pp)), (size,) * pp) for _ in range(dp))
    return Strategy(tuple(made), zero=zero)


def test_three_processes(tmp_path: Path) -> None:
    """Short sequences by two processes alone, long ones by three, unequally; home is the one of three."""
    uneven = Strategy((P((S((0, 2), (0, 4), (2, 1)),), (2,)), P((S((1,), (0, 4)),), (1,))), zero=2)
    buckets = bundle(
        tmp_path / "bundle", {"long": (uneven, LONGEST), "short": (pipelines(2, 1, 1, 2, 1), 8)}, "long"
    )
    check_run(tmp_path / "bundle", "long", *divided(buckets, 7))


@pytest.mark.slow
def test_eight_processes(tmp_path: Path) -> None:
    """HotSPa's run of a 7B model on eight devices at 32K, each bucket under its own strategy."""
    strategies = {
        "dp1-tp4-pp2": (pipelines(1, 4, 2, 1, 1), LONGEST),
        "dp2-tp2-pp2": (pipelines(2, 2, 2, 1, 3), 8),
        "dp8-tp1-pp1": (pipelines(8, 1, 1, 1, 2), 4),
    }
    buckets = bundle(tmp_path / "bundle", strategies, "dp1-tp4-pp2")
    check_run(tmp_path / "bundle", "dp1-tp4-pp2", *divided(buckets, 16))


@pytest.mark.slow
def test_a_rank_that_dies_between_parts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing hangs: the others wait for it in a flow, a collective, or the vote."""
    strategies = {"long": (pipelines(1, 2, 1, 1, 1), LONGEST), "short": (pipelines(2, 1, 1, 2, 1), 8)}
    buckets = bundle(tmp_path / "bundle", strategies, "long")
    (first, second, _), _ = divided(buckets, 5)

    def job(engine: Engine, emit: Emit) -> None:
        engine.hot_step(first)
        if engine.rank == 1:
            monkeypatch.setattr(
                engine.transport, "serve", lambda members: os.kill(os.getpid(), signal.SIGKILL)
            )
        engine.hot_step(second)

    begun = monotonic()
    with pytest.raises(RankLost, match=r"rank 1 .*died with signal 9"):
        launch(tmp_path / "bundle", job, StartOptions(seed=SEED, strategy="long"))
    assert monotonic() - begun < 60
