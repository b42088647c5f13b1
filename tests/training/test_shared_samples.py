"""Ranks of a stage share the samples of every micro-batch: no number changes, and nobody computes all."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from hspmd_compiler.layout.layout import Coordinate
from hspmd_compiler.strategy.strategy import Override, PipelineSpec, StageSpec, Strategy

from ..trace.marked_models import traced as marked
from ..trace.marked_models import with_marks
from .sampled_models import MODELS, Shared, case_of, deduced, lengths, moved, programs, strategy_of, text_of

QUIET = list(HealthCheck)

SHARED = {
    "uneven": (Shared(2, (4, 4), "S0(3,1)"),),
    "sizes": (Shared(2, (4, 2), "S0x2"),),
    "weights and sizes": (Shared(2, (4, 2), "S0(3,1)"),),
    "a rank without samples": (Shared(3, (2, 1), "S0x3"),),
    "pipelines": (Shared(2, (3, 1), "S0x2"), Shared(2, (4,), "S0(1,3)")),
}
EXPECTED = {
    "uneven": [{0: [3, 1], 1: [3, 1]}],
    "sizes": [{0: [2, 2], 1: [1, 1]}],
    "weights and sizes": [{0: [3, 1], 1: [2, 0]}],
    "a rank without samples": [{0: [1, 1, 0], 1: [1, 0, 0]}],
    "pipelines": [{0: [2, 1], 1: [1, 0]}, {2: [1, 3]}],
}
"""By pipeline and coordinate of the batch, the samples of each rank."""


@pytest.mark.parametrize("way", SHARED)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "chunks"])
def test_every_value_has_the_samples_that_the_marker_says(name: str, way: str) -> None:
    pipelines = SHARED[way]
    strategy = strategy_of(name, pipelines)
    samples = strategy.global_batch
    graphs = deduced(case_of(name, samples, text_of(pipelines)), strategy)
    for graph, pipeline, expected in zip(graphs, pipelines, EXPECTED[way], strict=True):
        assert not moved(graph), "nothing but the loss is communicated"
        for batch, shares in expected.items():
            found = list(lengths(graph, samples, pipeline.ranks, batch))
            assert len(found) > 8
            assert all(each == shares for each in found)


@pytest.mark.parametrize("name", MODELS)
def test_numbers_stay(name: str) -> None:
    pipelines = SHARED["pipelines"]
    strategy = strategy_of(name, pipelines, accumulation=2, zero=2)
    case_of(name, strategy.global_batch, text_of(pipelines)).check(strategy)


@pytest.mark.parametrize("way", ["uneven", "sizes", "a rank without samples"])
def test_numbers_stay_beside_heads_of_the_next_layers(way: str) -> None:
    """The second layer is tensor parallel: samples come together before it."""
    pipelines = SHARED[way]
    heads = (Override("layers.1.self_attn.in_proj_weight", split=0, shares=(3, 1, 0)[: pipelines[0].ranks]),)
    strategy = strategy_of("encoder", pipelines, *heads)
    case_of("encoder", strategy.global_batch, text_of(pipelines)).check(strategy)


@pytest.mark.parametrize(("devices", "states"), [((2, 3), "S0x2"), ((2, 3, 4), "S0x3")])
def test_numbers_stay_where_samples_go_to_the_next_stage(devices: tuple[int, ...], states: str) -> None:
    """To as many ranks they go as they are shared, to others they come together."""
    stages = StageSpec((0, 1), (0, 1)), StageSpec(devices, (1, 2))
    strategy = Strategy((PipelineSpec(stages, (3, 1)),), overrides=(Override("*", duplicate=True),))
    text = f"[0,1 | {','.join(map(str, devices))}] <S0x2 | {states}> hetero=0"
    case = with_marks(marked(), {"between": text})
    case.check(strategy)
    (graph,) = deduced(case, strategy)
    crossing = next(row.marker for row in graph.rows if row.marker and row.marker.target_stage == 1)
    assert crossing.target.local_shape(Coordinate(0, 0))[0] == (2 if len(devices) == 2 else 3)


@settings(max_examples=6, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(programs(["mlp", "language"]))
def test_drawn_shares(drawn: tuple[str, str, Strategy]) -> None:
    name, text, strategy = drawn
    case_of(name, strategy.global_batch, text).check(strategy)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=QUIET, database=None)
@given(programs(sorted(MODELS)))
def test_drawn_shares_more_often(drawn: tuple[str, str, Strategy]) -> None:
    name, text, strategy = drawn
    case_of(name, strategy.global_batch, text).check(strategy)
