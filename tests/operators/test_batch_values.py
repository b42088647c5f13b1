"""Samples of the whole batch meet, in sums and in gathered values: exact under every strategy."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from transformers import MixtralConfig, MixtralForCausalLM

from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.errors import DeduceError
from hspmd_compiler.options import Precision
from hspmd_compiler.pages.schedule_page import schedule_lines, stages_of
from hspmd_compiler.program.program import Op, Program
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import Recompute, RecomputeKind, ScheduleKind, Strategy
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.verify.eager import eager_model, eager_step, whole_state
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor
from hspmd_compiler.verify.values import simulate
from hspmd_compiler.verify.widen import widen_program

from ..fit import check_fit
from ..quick import quick_are
from ..survey.batch_losses import (
    CHUNKS,
    EVERY,
    OF_INPUTS,
    SUMS,
    Loss,
    barlow,
    centred,
    chained,
    clip,
    load_balance,
    pairs_of_labels,
    sums_of_sums,
    two_views,
)
from ..training.equal_to_eager import EXACT, Case
from ..training.training_cases import program_for

Activation = Callable[[Tensor], Tensor]
SAMPLES, WIDTH = 6, 6
CLOSE = 5e-2
"""bfloat16 has 8 bits."""
ALL, FIRST, SECOND = (0, 2), (0, 1), (1, 2)
UNEVEN = (P((S((0,), ALL),), (2, 1, 1)), P((S((1,), ALL),), (1, 1)))
STAGES = P((S((0,), FIRST), S((1,), SECOND)), (3, 2, 1))
STRATEGIES = {
    "one": Strategy((P((S((0,), ALL),), (3, 2, 1)),)),
    "alike": Strategy((P((S((0,), ALL),), (2, 2, 2)),)),
    "tp2": Strategy((P((S((0, 1), ALL),), (SAMPLES,)),)),
    "tp2mb": Strategy((P((S((0, 1), ALL),), (3, 2, 1)),)),
    "dp": Strategy(UNEVEN),
    "dp-one-each": Strategy((P((S((0,), ALL),), (4,)), P((S((1,), ALL),), (2,)))),
    "zero2": Strategy(UNEVEN, zero=2),
    "zero3": Strategy(UNEVEN, zero=3),
    "zero3-inside": Strategy((P((S((0,), ALL),), (2, 1)), P((S((1,), ALL),), (2, 1))), zero=3),
    "pp": Strategy((STAGES,)),
    "pp-gpipe": Strategy((STAGES,), schedule=ScheduleKind.GPIPE),
    "pp-recompute": Strategy((replace(STAGES, recompute=(Recompute(ALL, RecomputeKind.FULL),)),)),
    "mixed": Strategy((P((S((0, 1), FIRST), S((2,), SECOND)), (2, 1)), P((S((3,), ALL),), (3,)))),
}
QUICK = (OF_INPUTS[0], pairs_of_labels, centred, sums_of_sums, barlow, clip, two_views, *CHUNKS[:2])
"""Of each kind of values that meet; all run under every strategy in the slow run."""
MIXED, ALIKE = STRATEGIES["mixed"], STRATEGIES["alike"]


class Layer(nn.Module):
    """A linear layer, and what is done with its result."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(WIDTH, WIDTH), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.linear(x))


class Layers(nn.Module):
    """Two layers, and a loss behind them."""

    def __init__(self, loss: Loss, activation: Activation) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(activation) for _ in range(2))
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.loss(x, y)


@cache
def case(loss: Loss, activation: Activation = torch.tanh) -> Case:
    """Traced once for all strategies."""
    generator = torch.Generator().manual_seed(0)
    batch = {key: torch.randn(SAMPLES, WIDTH, generator=generator) for key in "xy"}
    return Case.of(lambda: Layers(loss, activation), batch)


def ops(program: Program, pipeline: int = 0) -> list[Op]:
    return [instruction.op for instruction in stages_of(program, pipeline)[0].instructions]


@pytest.mark.parametrize("loss", quick_are(EVERY, QUICK), ids=lambda loss: loss.__name__)
def test_exact_in_unlike_pipelines(loss: Loss) -> None:
    made = case(loss)
    for strategy in (MIXED, ALIKE):
        made.check(strategy)


@pytest.mark.slow
@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: loss.__name__)
def test_exact_under_every_strategy(loss: Loss) -> None:
    made = case(loss)
    for strategy in STRATEGIES.values():
        made.check(strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy(strategy: str) -> None:
    """One loss with a sum and one with gathered values; the strategies are what differs."""
    for loss in (load_balance, clip):
        case(loss).check(STRATEGIES[strategy])


def test_how_passes_that_stop_are_shown() -> None:
    program = case(clip).check(STRATEGIES["dp"])
    lines = [schedule_lines(stages_of(program, pipeline))[0] for pipeline in range(2)]
    assert lines == [
        "stage 0  F0 F1 F2 | F0 F1 F2 | F0 B0 F1 B1 F2 B2 | B0 B1 B2",
        "stage 0  F0 F1 | F0 F1 | F0 B0 F1 B1 | B0 B1",
    ]


def test_layers_may_use_sums_over_the_batch() -> None:
    """Each layer waits for the sums of all micro-batches, forward and backward."""
    made = case(nn.functional.mse_loss, lambda x: (x - x.mean(0)) / (x.var(0) + 1).sqrt())
    for name in ("one", "mixed", "pp-recompute", "zero3-inside"):
        made.check(STRATEGIES[name])
    assert ops(made.check(STRATEGIES["zero2"])).count(Op.STEP_REDUCE) >= 2 * 2 * 2


@pytest.mark.parametrize("loss", [centred, clip, chained], ids=lambda loss: loss.__name__)
def test_sums_of_bfloat16_are_float32_sums(loss: Loss) -> None:
    """A running sum is wider than what is added; what reads the result is of the narrow type."""
    torch.manual_seed(0)
    model = Layers(loss, lambda x: x - x.mean(0))
    batch = {key: torch.randn(SAMPLES, WIDTH).bfloat16().float() for key in "xy"}
    graph = trace_graph(model, batch, SAMPLES, precision=Precision.BFLOAT16).graph
    eager = eager_step(deepcopy(model).bfloat16(), {key: x.bfloat16() for key, x in batch.items()}, False)
    wide = eager_step(eager_model(lambda: deepcopy(model), {}, True), batch, True)
    for name in ("tp2mb", "zero3", "pp-recompute"):
        program = program_for(graph, STRATEGIES[name])
        check_fit(program)
        found = simulate(program, whole_state(model), [batch])
        assert abs(found.losses[0] - eager.loss) <= CLOSE * abs(eager.loss)
        exact = simulate(widen_program(program), whole_state(model), [batch])
        assert abs(exact.losses[0] - wide.loss) <= EXACT
        floor = gradient_floor(wide.grads)
        check_equal(differences(exact.grads[0], wide.grads, floor), EXACT, "gradients")


def test_layers_may_not_gather_samples() -> None:
    with pytest.raises(DeduceError, match="mixes samples of different micro-batches") as caught:
        case(nn.functional.mse_loss, lambda x: x.sort(0)[0]).check(ALIKE)
    assert any("self.activation(self.linear(x))" in line for line in caught.value.at)
    case(nn.functional.mse_loss, lambda x: x.sort(0)[0]).check(STRATEGIES["tp2"])


class PerSample(nn.Module):
    """Parameters with a row for each sample, one of them used in a product, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.rows, self.scale = nn.Parameter(torch.zeros(SAMPLES, WIDTH)), nn.Parameter(torch.ones(SAMPLES))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.layers[0](x * self.scale[:, None]).tanh() + self.rows
        x = self.layers[1](x).tanh() * self.layers[1](self.rows)
        return (x - y).square().mean() + (self.rows * x).sum()


def test_parameters_with_a_row_for_each_sample() -> None:
    """Micro-batches alike would add up rows of unlike samples."""
    case = Case.of(PerSample, {"x": torch.randn(SAMPLES, WIDTH), "y": torch.randn(SAMPLES, WIDTH)})
    for strategy in (ALIKE, MIXED, replace(MIXED, zero=3)):
        case.check(strategy)


def test_all_run_forward_before_any_runs_backward() -> None:
    """But only where activations decide: sums of inputs are known before, and chunks need no others."""
    for loss in SUMS:
        found = ops(case(loss).check(STRATEGIES["dp"]))
        before = found[: found.index(Op.BACKWARD)]
        assert before.count(Op.FORWARD) >= 3
        assert Op.STEP_REDUCE in before[before.index(Op.FORWARD) :]
    for loss in (*OF_INPUTS, *CHUNKS):
        found = ops(case(loss).check(STRATEGIES["dp"]))
        first = found.index(Op.BACKWARD)
        assert found[:first].count(Op.FORWARD) == 1
        assert Op.STEP_REDUCE not in found[first:]


def mixtral() -> nn.Module:
    return MixtralForCausalLM(
        MixtralConfig(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            vocab_size=19,
            num_local_experts=4,
            num_experts_per_tok=2,
            output_router_logits=True,
            router_aux_loss_coef=0.3,
            use_cache=False,
            max_position_embeddings=8,
            bos_token_id=None,
            eos_token_id=None,
            experts_implementation="batched_mm",
        )
    ).train()


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
def test_the_load_balance_loss_of_experts(padded: bool) -> None:
    """As transformers computes it: counts of tokens per expert times mean chances, over all tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 19, (SAMPLES, 5), generator=generator)
    labels = ids.clone()
    labels[1], labels[3, 2:] = -100, -100
    batch = {"input_ids": ids, "labels": labels}
    if padded:
        batch["attention_mask"] = torch.ones_like(ids)
        batch["attention_mask"][2, 3:] = 0
    made = Case.of(mixtral, batch)
    for strategy in (MIXED, STRATEGIES["zero2"]):
        made.check(strategy)
