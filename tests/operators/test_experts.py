"""Experts shared out among devices, in any shares: exact, whichever experts the tokens go to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.coverage.transformers_models import CAUSAL, DECODER, FromConfig, tokens
from hspmd_compiler.errors import DeduceError, StrategyError
from hspmd_compiler.ir.own_names import EXPERT_GRAD, EXPERT_MM
from hspmd_compiler.options import Precision
from hspmd_compiler.strategy.form import form_of, strategy_from
from hspmd_compiler.strategy.formats.expanded import Choices
from hspmd_compiler.strategy.formats.flagscale import expand_flagscale
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy

from ..fit import check_fit
from ..quick import quick_are
from ..training.equal_to_eager import Case
from ..training.test_end_to_end_gloo import CONFIG, train_like_eager
from ..training.training_cases import SUBJECTS, Subject, program_for

SAMPLES, LENGTH, WIDTH, EXPERTS = 4, 3, 8, 5
LATENT = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 10,
    "first_k_dense_replace": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 6,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 6,
    "num_key_value_heads": 3,
}
DEEPSEEK = FromConfig("deepseek_v3", CAUSAL, {**DECODER, **LATENT})


class Routed(nn.Module):
    """Gated experts, each token's best one. all_to: the expert that all tokens go to, if any."""

    def __init__(self, all_to: int | None = None) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 8))
        self.down = nn.Parameter(torch.randn(EXPERTS, 8, WIDTH))
        favour = torch.zeros(EXPERTS)
        if all_to is not None:
            favour[all_to] = 100.0
        self.register_buffer("favour", favour)

    def forward(self, x: Tensor) -> Tensor:
        from transformers.integrations.moe import _grouped_mm

        rows = x.reshape(-1, WIDTH)
        logits = self.router(rows)
        ids, order = (logits + self.favour).argmax(-1).sort()
        ends = torch.histc(ids.float(), bins=EXPERTS, min=0, max=EXPERTS - 1).cumsum(0, dtype=torch.int32)
        made = _grouped_mm(_grouped_mm(rows[order], self.up, ends).tanh(), self.down, ends)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return x + (made[back] * logits.softmax(-1).amax(-1, keepdim=True)).view(x.shape)


class Layers(nn.Module):
    """A layer with experts, and a head."""

    def __init__(self, all_to: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Routed(all_to), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.functional.mse_loss(x, y)


def batch(step: int = 0) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(step)
    return {key: torch.randn(SAMPLES, LENGTH, WIDTH, generator=draws) for key in "xy"}


@cache
def case(all_to: int | None = None) -> Case:
    return Case.of(lambda: Layers(all_to), batch())


def shared(*experts: int, tail: tuple[S, ...] = ()) -> Strategy:
    """A stage whose devices share out experts beside a pipeline of one device."""
    devices = tuple(range(len(experts)))
    stage = S(devices, (0, 2 - len(tail)), experts=experts)
    return Strategy((P((stage, *tail), (1, 2)), P((S((9,), (0, 2)),), (1,))))


@pytest.mark.parametrize("weights", [(1, 1), (3, 1, 1), (0, 1), (1, 0, 4)])
@pytest.mark.parametrize("tokens_cut", [False, True])
def test_shares_of_experts(weights: tuple[int, ...], tokens_cut: bool) -> None:
    """Unequal ones, and a device without any."""
    strategy = replace(shared(*weights), sequence_parallel=tokens_cut)
    program = case().check(strategy)
    held = [shard for rank in program.ranks for shard in rank.shards if shard.name == "layers.0.up"]
    assert len(held) >= sum(weight > 0 for weight in weights)


@pytest.mark.parametrize("all_to", [0, EXPERTS - 1])
def test_all_tokens_to_one_expert(all_to: int) -> None:
    """The other experts, and the devices that have no other, get no token."""
    made = case(all_to)
    assert not made.eager.grads["layers.0.up"][1 if all_to == 0 else 0].any()
    for strategy in (shared(2, 3), shared(1, 1, 1, 1, 1), replace(shared(4, 1), zero=3)):
        made.check(strategy)


def test_shared_experts_and_latent_attention() -> None:
    """DeepSeek's: experts that every token takes are split like other layers, in stages and by tokens."""
    made = Case.of(DEEPSEEK, tokens(torch.Generator().manual_seed(0)))
    stages = (S((0, 1), (0, 1)), S((2, 3, 4), (1, 2), experts=(1, 2, 1)))
    made.check(Strategy((P(stages, (1, 1)), P((S((5,), (0, 2)),), (1,))), sequence_parallel=True))


def refused(strategy: Strategy, build: Callable[[], nn.Module] = Layers) -> str:
    graph = trace_graph(build(), batch(), SAMPLES).graph
    with pytest.raises(StrategyError) as caught:
        program_for(graph, strategy)
    return caught.value.text()


def test_more_devices_than_experts(expect: Callable[[str, str], None]) -> None:
    expect("deduce/experts_too_few", refused(shared(*(1,) * (EXPERTS + 1))))
    case().check(shared(*(1,) * EXPERTS, 0))


class Dropping(Routed):
    """Places of an expert are given to the first tokens, others go by; with Switch's auxiliary loss.

    per_sample: whether each sample has places of its own, or the batch.
    """

    def __init__(self, per_sample: bool, places: int = 1) -> None:
        super().__init__()
        self.per_sample, self.places = per_sample, places

    def forward(self, x: Tensor) -> Tensor:
        chances = self.router(x).softmax(-1)
        chosen = nn.functional.one_hot(chances.argmax(-1), EXPERTS)
        in_turn = chosen if self.per_sample else chosen.flatten(0, 1).unsqueeze(0)
        place = in_turn.cumsum(1).view(chosen.shape)
        kept = ((place <= self.places) & (chosen > 0)).any(-1, keepdim=True)
        self.balance = EXPERTS * (chosen.to(x.dtype).mean((0, 1)) * chances.mean((0, 1))).sum()
        return torch.where(kept, super().forward(x), x)


class Balanced(nn.Module):
    """With the auxiliary loss, which is a product of means over all tokens."""

    def __init__(self, per_sample: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Dropping(per_sample), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        made = self.layers[1](self.layers[0](x))
        return nn.functional.mse_loss(made, y) + 0.3 * self.layers[0].balance


def test_dropped_tokens_and_a_global_auxiliary_loss() -> None:
    made = Case.of(lambda: Balanced(True), batch())
    for strategy in (shared(3, 1, 1), replace(shared(1, 1), sequence_parallel=True, zero=1)):
        made.check(strategy)


def test_places_of_the_whole_batch(expect: Callable[[str, str], None]) -> None:
    """They go by the order of all samples: exact where the batch is whole, else refused by name."""
    made = Case.of(lambda: Balanced(False), batch())
    made.check(Strategy((P((S((0, 1), (0, 2), experts=(3, 2)),), (SAMPLES,)),)))
    with pytest.raises(DeduceError) as caught:
        made.check(shared(1, 1))
    expect("deduce/experts_places_of_batch", caught.value.text())


def test_narrow_types() -> None:
    """PyTorch's own product of groups, which bfloat16 takes, is the same operator."""
    graph = trace_graph(Layers(), batch(), SAMPLES, precision=Precision.BFLOAT16).graph
    assert {EXPERT_MM, EXPERT_GRAD} <= {row.op for row in graph.rows}
    check_fit(program_for(graph, shared(2, 3)))


class Plain(nn.Module):
    """No experts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.layers[1](self.layers[0](x).relu()), y)


def test_a_model_without_experts(expect: Callable[[str, str], None]) -> None:
    expect("deduce/experts_none", refused(shared(1, 1), Plain))


def test_the_key_is_kept_and_checked(expect: Callable[[str, str], None]) -> None:
    strategy = shared(3, 1, 0)
    assert strategy_from(form_of(strategy)) == strategy
    bad = form_of(shared(0, 0))
    bad["pipelines"][1]["stages"][0]["experts"] = [1, -1]  # type: ignore[index]
    with pytest.raises(StrategyError) as caught:
        strategy_from(bad)
    expect("deduce/experts_bad", caught.value.text())


@pytest.mark.slow
def test_flagscales_deepseek(reference: Path) -> None:
    """Its strategy as it was published, on a model of its 24 layers, narrow."""
    path = reference / "planners" / "flagscale" / "examples__deepseek_v3__conf__train__hetero.yaml"
    strategy = expand_flagscale(yaml.safe_load(path.read_text()), Choices(), path.name).strategy
    assert [stage.experts for stage in strategy.pipelines[0].stages] == [(1,) * 4, (1, 1), (1, 1)]
    deep = FromConfig("deepseek_v3", CAUSAL, {**DECODER, **LATENT, **HEADS, "num_hidden_layers": 24})
    made = {key: value[:1] for key, value in tokens(torch.Generator().manual_seed(0)).items()}
    check_fit(program_for(trace_graph(deep(), made, strategy.global_batch).graph, strategy))


HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 32}


@pytest.mark.parametrize("weights", quick_are([(3, 2), (1, 0, 4)], [(1, 0, 4)]))
def test_processes_train_like_eager(
    weights: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SUBJECTS, "experts", Subject(Layers, batch))
    strategy = replace(shared(*weights), sequence_parallel=True, zero=1)
    program = hspmd.compile(lambda: (Layers(), batch()), strategy=strategy, optimizer=CONFIG)
    program.save(tmp_path / "artifact")
    train_like_eager("experts", tmp_path / "artifact")
