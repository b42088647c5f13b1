"""Deduced layouts as text, and what deduction refuses, by name."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.errors import DeduceError, RuleMissing, StrategyError
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.passes.annotate import annotate, parameter_text
from hspmd_compiler.passes.deduction.deduce_all import deduce, deduce_all
from hspmd_compiler.passes.texts.annotated_text import annotated_text
from hspmd_compiler.rules.rule_book import RULES
from hspmd_compiler.strategy.strategy import Override, PipelineSpec, StageSpec, Strategy
from hspmd_compiler.trace.tracer import trace

from ..training.training_cases import program_for

Expect = Callable[[str, str], None]
ALL = (0, 2)
UNEQUAL = Strategy(
    (
        PipelineSpec((StageSpec((0, 1, 2), (0, 1)), StageSpec((3,), (1, 2))), (2, 1)),
        PipelineSpec((StageSpec((4, 5), ALL),), (2,)),
    )
)


class Model(nn.Module):
    """Two layers, and a loss of their result."""

    def __init__(
        self,
        loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.mse_loss,
        activation: Callable[[], nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, 6)) for _ in range(2)
        )
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.loss(x, y)


def similarity(x: Tensor, y: Tensor) -> Tensor:
    """A contrastive loss: every sample against every other."""
    return (x @ y.t()).square().mean()


class SortedSamples(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(0)[0]


def strange(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).logcumsumexp(1).square().mean()


def graph_of(
    loss: Callable[[Tensor, Tensor], Tensor], batch: int, activation: Callable[[], nn.Module] = nn.ReLU
) -> LogicalGraph:
    return trace(Model(loss, activation), {"x": torch.zeros(1, 6), "y": torch.zeros(1, 6)}, batch=batch)


def without_numbers(text: str) -> str:
    """This file's line numbers change with it."""
    return re.sub(r"test_deduce\.py:\d+", "test_deduce.py:N", text)


def one_pipeline(*micro_batches: int, devices: int = 2, **options: object) -> Strategy:
    stage = StageSpec(tuple(range(devices)), ALL)
    return Strategy((PipelineSpec((stage,), micro_batches),), **options)  # type: ignore[arg-type]


def test_annotated_text(expect: Expect) -> None:
    graph = graph_of(nn.functional.mse_loss, UNEQUAL.global_batch)
    layouts, placements = annotate(graph, UNEQUAL)
    pipelines = [deduce(graph, p, UNEQUAL.pipelines[p], placement) for p, placement in enumerate(placements)]
    expect("deduce/parameters", parameter_text(layouts))
    expect("deduce/annotated", without_numbers(annotated_text(graph, UNEQUAL, pipelines)))


def test_a_layer_that_needs_all_samples_is_refused_by_name(expect: Expect) -> None:
    graph = graph_of(nn.functional.mse_loss, 4, SortedSamples)
    with pytest.raises(DeduceError) as caught:
        program_for(graph, one_pipeline(3, 1))
    expect("deduce/batch-coupled", without_numbers(caught.value.text()))
    program_for(graph, one_pipeline(4))


def test_the_cost_of_meeting_samples_is_told(caplog: pytest.LogCaptureFixture) -> None:
    graph, strategy = graph_of(similarity, 4), one_pipeline(3, 1)
    _, placements = annotate(graph, strategy)
    with caplog.at_level("WARNING"):
        deduce_all(graph, strategy, placements)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (text,) = map(without_numbers, told)
    assert text == (
        "samples of the whole batch meet: all pipelines wait for each other in the middle of a step, and all"
        " micro-batches run forward before the first runs backward; 288 bytes reduced per step; first at"
        " test_deduce.py:N  in Model.forward  return self.loss(x, y)"
    )


def test_an_operator_without_a_rule(expect: Expect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, "aten.logcumsumexp.default")
    graph = graph_of(strange, 4)
    with pytest.raises(RuleMissing) as caught:
        program_for(graph, one_pipeline(2, 2))
    expect("deduce/rule-missing", without_numbers(caught.value.text()))


def test_overrides_that_match_nothing(expect: Expect) -> None:
    overrides = (
        Override("layers.7.*", duplicate=True),
        Override("layers.0.0", split=1),
        Override("*.q_proj", split=0),
    )
    graph = graph_of(nn.functional.mse_loss, 4)
    with pytest.raises(StrategyError) as caught:
        program_for(graph, one_pipeline(4, overrides=overrides))
    expect("deduce/overrides-unmatched", without_numbers(caught.value.text()))
