"""Strategy values: ranks, rows of the global batch, globs over names, and the rules of `check`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.base.name_glob import matches
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.check import check
from hspmd_compiler.strategy.strategy import (
    Override,
    PipelineSpec,
    Recompute,
    RecomputeKind,
    StageSpec,
    Strategy,
)

TWO_UNEQUAL = Strategy(
    pipelines=(
        PipelineSpec((StageSpec((7, 0), (0, 3)), StageSpec((2,), (3, 4))), (4, 4, 2)),
        PipelineSpec((StageSpec((3, 5), (0, 4)),), (4, 1)),
    ),
    accumulation=2,
    device_kinds=((0, DeviceKind.CPU),),
)
FUSED = "model.layers.0.mlp.gate_up_proj.weight"


def test_a_rank_is_the_index_among_the_used_devices() -> None:
    assert TWO_UNEQUAL.devices == (0, 2, 3, 5, 7)
    assert TWO_UNEQUAL.world_size == 5
    assert TWO_UNEQUAL.ranks() == {0: 0, 2: 1, 3: 2, 5: 3, 7: 4}


def test_pipelines_take_consecutive_rows_of_every_slice() -> None:
    assert TWO_UNEQUAL.global_batch == 30
    assert TWO_UNEQUAL.rows(0) == [(0, 4), (4, 8), (8, 10), (15, 19), (19, 23), (23, 25)]
    assert TWO_UNEQUAL.rows(1) == [(10, 14), (14, 15), (25, 29), (29, 30)]
    taken = [row for p in range(2) for low, high in TWO_UNEQUAL.rows(p) for row in range(low, high)]
    assert sorted(taken) == list(range(TWO_UNEQUAL.global_batch))


def test_a_layer_belongs_to_one_stage() -> None:
    assert [TWO_UNEQUAL.pipelines[0].stage_of(layer) for layer in range(4)] == [0, 0, 0, 1]
    with pytest.raises(StrategyError, match="no stage of the pipeline runs layer 4"):
        TWO_UNEQUAL.pipelines[0].stage_of(4)


@pytest.mark.parametrize(
    ("pattern", "name", "wanted"),
    [
        ("up_proj", "layers.0.mlp.up_proj.weight", True),
        ("*up_proj", "layers.0.mlp.up_proj.weight", True),
        ("*up_proj", FUSED, False),
        ("*v_proj", "layers.0.attn.qkv_proj.weight", False),
        ("*_proj", FUSED, True),
        ("gate_*", FUSED, True),
        ("*.mlp", FUSED, True),
        ("layers.0", FUSED, True),
        ("layers.1", "model.layers.11.mlp.weight", False),
        ("layers.[0-3].mlp", FUSED, True),
        ("layers.[1-3].mlp", FUSED, False),
        ("**.weight", FUSED, True),
        ("model.**.weight", FUSED, True),
        ("model.*.weight", FUSED, False),
        ("fc?", "fc1.weight", True),
        ("weight", FUSED, True),
        ("Mlp", FUSED, False),
    ],
)
def test_a_glob_matches_whole_components(pattern: str, name: str, wanted: bool) -> None:
    assert matches(pattern, name) is wanted


def test_the_last_override_that_names_a_parameter_counts() -> None:
    wide, narrow = Override("mlp", tp=2), Override("layers.0.mlp", duplicate=True)
    strategy = Strategy((), overrides=(wide, narrow))
    assert strategy.override_for(FUSED) is narrow
    assert strategy.override_for("model.layers.1.mlp.weight") is wide
    assert strategy.override_for("lm_head.weight") is None


def test_a_layers_own_degree_divides_its_stage(expect: Callable[[str, str], None]) -> None:
    override = Override("*.mlp", tp=2)
    assert override.degree(StageSpec((0, 1, 2, 3), (0, 1))) == 2
    assert override.degree(StageSpec((9,), (0, 1))) == 1
    assert Override("mlp", duplicate=True).degree(StageSpec((0, 1, 2), (0, 1))) == 3
    with pytest.raises(StrategyError) as caught:
        override.degree(StageSpec((0, 1, 2), (0, 1)))
    expect("strategy/own_degree", str(caught.value))


def test_a_good_strategy_passes() -> None:
    check(TWO_UNEQUAL, num_layers=4, num_heads=2)
    stage = StageSpec((0, 1, 2), (0, 4), shares=(1, 1, 0))
    check(Strategy((PipelineSpec((stage,), (1,)),)), num_heads=2)


BAD_RECOMPUTE = (
    Recompute((0, 3), RecomputeKind.SELECTIVE, 2),
    Recompute((2, 4), RecomputeKind.FULL, 0),
    Recompute((3, 3), RecomputeKind.NONE),
    Recompute((5, 7), RecomputeKind.FULL),
)


def test_every_bad_value_is_listed_with_its_rule(expect: Callable[[str, str], None]) -> None:
    strategy = Strategy(
        pipelines=(
            PipelineSpec((StageSpec((0, 1), (0, 2)), StageSpec((1, -1), (3, 5))), (4, 0), BAD_RECOMPUTE),
            PipelineSpec((StageSpec((5, 6, 7), (0, 6), (1, 2)), StageSpec((), (5, 5))), ()),
            PipelineSpec((StageSpec((8, 9), (0, 3), (0, 0)), StageSpec((10, 11), (3, 5), (2, -1))), (1,)),
            PipelineSpec((), (1,)),
            PipelineSpec((StageSpec((12,), (0, 6)),), (1,), BAD_RECOMPUTE),
        ),
        accumulation=0,
        zero=4,
        bucket_bytes=-1,
        overrides=(
            Override("a..b", split=-1),
            Override("mlp"),
            Override("mlp", tp=4),
            Override("mlp", tp=0, duplicate=True),
            Override("mlp", shares=(1, 1, 1, 1)),
            Override("mlp", annotation="[0] <>", split=0),
        ),
        device_kinds=((3, DeviceKind.CUDA),),
    )
    with pytest.raises(StrategyError) as caught:
        check(strategy, num_layers=6, num_heads=1, at="strategy.json")
    expect("strategy/every_rule", str(caught.value))


def test_weights_of_what_zero_stores(expect: Callable[[str, str], None]) -> None:
    """One per device, 0 for none, also for all of a stage; they say nothing without ZeRO."""
    good = PipelineSpec((StageSpec((0, 1), (0, 1), zero_shares=(0, 0)),), (1,))
    bad = PipelineSpec((StageSpec((2, 3), (0, 1), zero_shares=(1, -1, 2)),), (1,))
    check(Strategy((good,), zero=1))
    with pytest.raises(StrategyError) as caught:
        check(Strategy((good, bad)))
    expect("strategy/zero_shares", str(caught.value))


def test_more_devices_than_heads_need_shares(expect: Callable[[str, str], None]) -> None:
    with pytest.raises(StrategyError) as caught:
        check(TWO_UNEQUAL, num_layers=5, num_heads=1)
    expect("strategy/model_differs", str(caught.value))


def test_no_pipeline_is_an_error() -> None:
    with pytest.raises(StrategyError, match="pipelines empty"):
        check(Strategy(()))
