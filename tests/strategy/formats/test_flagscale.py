"""FlagScale's process meshes: the published configurations, meshes that differ in dp, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.context_spec import ContextSpec
from hspmd_compiler.strategy.formats.expanded import Choices, Expanded
from hspmd_compiler.strategy.formats.flagscale import expand_flagscale
from hspmd_compiler.strategy.strategy import Strategy

Stages = list[list[tuple[tuple[int, ...], tuple[int, int]]]]


def config(meshes: object, split: object, **model: object) -> dict[str, object]:
    hetero = {"hetero_process_meshes": meshes, "hetero_pipeline_layer_split": split}
    return {"system": {"hetero": hetero}, "model": model}


def stages(strategy: Strategy) -> Stages:
    return [[(stage.devices, stage.layers) for stage in one.stages] for one in strategy.pipelines]


def published(reference: Path, name: str) -> Expanded:
    path = reference / "planners" / "flagscale" / name
    return expand_flagscale(yaml.safe_load(path.read_text()), Choices(), name)


def test_meshes_of_other_tensor_parallelism(reference: Path) -> None:
    expanded = published(reference, "conf__train__tp2pp1_tp4pp1_tp2pp1.yaml")
    assert stages(expanded.strategy) == [[((0, 1), (0, 2)), ((2, 3, 4, 5), (2, 6)), ((6, 7), (6, 8))]]
    assert expanded.strategy.pipelines[0].micro_batches == (4,) * 256
    assert expanded.strategy.sequence_parallel
    assert expanded.zero


def test_pipelines_are_what_all_meshes_have_in_common(reference: Path) -> None:
    """dp 2 and 4: two pipelines, whose second stage has the devices of two copies."""
    expanded = published(reference, "conf__train__dp2dp4_shared_embedding.yaml")
    assert stages(expanded.strategy) == [
        [((0,), (0, 4)), ((2, 3), (4, 8))],
        [((1,), (0, 4)), ((4, 5), (4, 8))],
    ]
    assert expanded.strategy.global_batch == 1024
    assert any("become tensor parallelism of degree 2" in note for note in expanded.notes)


def test_other_published_configurations(reference: Path) -> None:
    for name, devices in {
        "conf__train__tp2dp1pp1_tp2dp2pp1_tp1dp2pp1.yaml": 8,
        "examples__aquila__conf__train__hetero.yaml": 8,
        "examples__llama3__conf__train__8b_hetero.yaml": 16,
    }.items():
        assert published(reference, name).strategy.world_size == devices


@pytest.mark.parametrize(
    "name",
    ["examples__aquila__conf__hetero_auto_tuner.yaml"],
)
def test_published_configurations_that_no_strategy_says(
    reference: Path, name: str, expect: Callable[[str, str], None]
) -> None:
    with pytest.raises(StrategyError) as caught:
        published(reference, name)
    expect(f"strategy_formats/flagscale_{name.removesuffix('.yaml')}", str(caught.value))


def test_copies_that_need_each_others_experts(reference: Path) -> None:
    """dp 4, 2 and 2 with ep 2 each: one pipeline, whose stages share out experts."""
    expanded = published(reference, "examples__deepseek_v3__conf__train__hetero.yaml")
    assert stages(expanded.strategy) == [
        [((0, 1, 2, 3), (0, 11)), ((4, 5), (11, 17)), ((6, 7), (17, 24))],
    ]
    assert [stage.experts for stage in expanded.strategy.pipelines[0].stages] == [
        (1,) * 4,
        (1,) * 2,
        (1,) * 2,
    ]
    assert any("ep is 2; the 4 devices of a stage share out its experts" in note for note in expanded.notes)


def test_a_mesh_of_several_stages() -> None:
    expanded = expand_flagscale(config([2, 1, 1, 1, 2, 1, 1, 1, 1, 1], [3, 2, 1]), Choices(2, 5))
    assert stages(expanded.strategy) == [[((0, 1), (0, 3)), ((2, 3), (3, 5)), ((4,), (5, 6))]]
    assert expanded.strategy.pipelines[0].micro_batches == (2,) * 5


def test_context_parallel_members_are_pipelines() -> None:
    expanded = expand_flagscale(config([2, 2, 1, 2, 1, 1, 2, 1, 2, 1], [1, 1]), Choices())
    assert expanded.strategy.context == (ContextSpec((0, 1)), ContextSpec((2, 3)))
    assert [one.devices for one in expanded.strategy.pipelines] == [
        (0, 1, 8),
        (2, 3, 9),
        (4, 5, 10),
        (6, 7, 11),
    ]


BAD = {
    "missing": {"hetero_process_meshes": None},
    "numbers": config([1, 1, 1, 1], "x"),
    "types": config([1, 1, 1, 1, 0], [1, -1]),
    "split": config([1, 1, 1, 2, 2, 2, 1, 1, 1, 1], [2, 2], num_layers=8),
    "sum": config([1, 1, 1, 1, 2], [2, 2], num_layers=8),
    "degrees": config([1, 1, 2, 1, 1, 1, 2, 1, 1, 1], [2, 2]),
    "expert_tp": {
        "hetero_process_meshes": [2, 1, 2, 1, 1],
        "hetero_pipeline_layer_split": [2],
        "expert_tensor_parallel_size_per_process_mesh": [2],
    },
    "batch": config([1, 1, 1, 2, 1], [2], micro_batch_size=2, global_batch_size=6),
    "standalone": {
        "hetero_process_meshes": [1, 1, 1, 1, 1],
        "hetero_pipeline_layer_split": [2],
        "standalone_embedding_stage": True,
        "hetero_device_types": ["A800", "A100"],
    },
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_listed(name: str, expect: Callable[[str, str], None]) -> None:
    with pytest.raises(StrategyError) as caught:
        expand_flagscale(BAD[name], Choices(), "train.yaml")
    expect(f"strategy_formats/flagscale_{name}", str(caught.value))
