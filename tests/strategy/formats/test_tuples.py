"""Strategies as tuples: Hydraulis' (cp, tp, pp) per pipeline, HotSPa's (dp, tp, pp) per bucket."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.context_spec import ContextSpec
from hspmd_compiler.strategy.formats.expanded import Choices
from hspmd_compiler.strategy.formats.hotspa import bucket_of_strategy, hotspa_entries
from hspmd_compiler.strategy.formats.hydraulis import json_entries, line_entries, pool_entries
from hspmd_compiler.strategy.formats.placement import place
from hspmd_compiler.strategy.strategy import Strategy

EIGHT_LAYERS = Choices(num_layers=8)


def positions(strategy: Strategy) -> dict[str, list[int]]:
    """Device to [pipeline, stage]."""
    return {
        str(device): [index, number]
        for index, pipeline in enumerate(strategy.pipelines)
        for number, stage in enumerate(pipeline.stages)
        for device in stage.devices
    }


def test_published_strategies_are_placed_alike(reference: Path) -> None:
    content = json.loads((reference / "hspmd" / "strategies_mixed_length.json").read_text())
    entries = json_entries(content, Choices())
    published = {item["id"]: item for item in content["strategies"]}
    assert [entry.id for entry in entries] == list(published)
    for entry in entries:
        strategy = entry.expand().strategy
        assert positions(strategy) == published[entry.id]["gpu_pos"]
        assert strategy.num_layers == published[entry.id]["layers"]


def test_published_pools_use_all_gpus(reference: Path) -> None:
    content = json.loads((reference / "hydraulis" / "strategies.json").read_text())
    entries = json_entries(content, Choices(num_layers=60))
    for entry in entries:
        assert entry.expand().strategy.world_size == content[entry.id.split("/")[0]]["gpus"]
    assert entries


def test_stages_go_to_other_nodes() -> None:
    assert place([(8, 1), (4, 2), (4, 2)], 24) == [
        [list(range(8))],
        [[8, 9, 10, 11], [16, 17, 18, 19]],
        [[12, 13, 14, 15], [20, 21, 22, 23]],
    ]
    assert place([(1, 3)], 16) == [[[0], [8], [1]]]
    assert place([(16, 1), (2, 1)], 24) == [[list(range(16))], [[16, 17]]]
    assert place([(4, 1), (16, 1)], 20) == [[[0, 1, 2, 3]], None]


def test_context_parallel_members_are_pipelines() -> None:
    (entry,) = pool_entries([(2, 2, 1), (1, 4, 1)], EIGHT_LAYERS)
    expanded = entry.expand()
    assert expanded.strategy.context == (ContextSpec((0, 1)),)
    assert [pipeline.devices for pipeline in expanded.strategy.pipelines] == [(0, 1), (2, 3), (4, 5, 6, 7)]
    assert expanded.strategy.global_batch == 2


def test_pools_number_their_strategies() -> None:
    entries = pool_entries([[(2, 1), (2, 1)], [(1, 1, 1), (1, 3, 1)]], EIGHT_LAYERS)
    assert [entry.id for entry in entries] == ["0", "1"]
    assert [stage.tp for one in entries[1].expand().strategy.pipelines for stage in one.stages] == [1, 3]
    assert not entries[0].expand().notes


def test_layers_that_do_not_divide_go_to_the_first_stages() -> None:
    (entry,) = pool_entries([(1, 1, 3)], EIGHT_LAYERS)
    assert [stage.num_layers for stage in entry.expand().strategy.pipelines[0].stages] == [3, 3, 2]
    assert entry.expand().notes == ("8 layers do not divide into 3 stages: the first ones take one more",)


def test_lines_of_the_launch_script() -> None:
    text = 'NUM_GPUS=8\nNUM_LAYERS=4\nMULTI_TP_PP_LIST="[[(4,1),(4,1)],[(4,1),(2,2)]]"\nBATCHING_METHOD=4\n'
    entries = line_entries(text, Choices())
    assert [len(entry.expand().strategy.pipelines[1].stages) for entry in entries] == [1, 2]


BAD_POOLS: dict[str, tuple[object, Choices]] = {
    "shapes": ([[(2, 1), (1, 2, 3, 4)], [(0, 1), "x"]], EIGHT_LAYERS),
    "no_list": ("tp4", EIGHT_LAYERS),
    "no_layers": ([(1, 4, 2)], Choices()),
    "too_many_stages": ([(1, 1, 9)], EIGHT_LAYERS),
    "no_room": ([(1, 4, 1), (1, 16, 1), (1, 3, 1), (1, 6, 1)], EIGHT_LAYERS),
}


@pytest.mark.parametrize("name", BAD_POOLS)
def test_bad_pools_are_refused(name: str, expect: Callable[[str, str], None]) -> None:
    pool, choices = BAD_POOLS[name]
    errors = []
    try:
        entries = pool_entries(pool, choices, "pool.txt")
    except StrategyError as error:
        errors.append(str(error))
        entries = []
    for entry in entries:
        with pytest.raises(StrategyError) as caught:
            entry.expand()
        errors.append(str(caught.value))
    expect(f"strategy_formats/hydraulis_{name}", "\n".join(errors))


def test_a_pool_uses_all_gpus(expect: Callable[[str, str], None]) -> None:
    (entry,) = pool_entries([(1, 4, 1)], EIGHT_LAYERS, "pool.txt", gpus=8)
    with pytest.raises(StrategyError) as caught:
        entry.expand()
    expect("strategy_formats/hydraulis_gpus", str(caught.value))


def test_hotspa_orders_its_list_by_first_last_and_down_to_second() -> None:
    assert [bucket_of_strategy(index, 4) for index in range(4)] == [0, 3, 2, 1]
    assert [bucket_of_strategy(index, 1) for index in range(1)] == [0]


def test_published_runs_of_hotspa(reference: Path) -> None:
    runs = json.loads((reference / "hspmd" / "strategies_hotspa.json").read_text())
    entries = {entry.id: entry for entry in hotspa_entries(runs, Choices())}
    for run in runs:
        for published in run["strategies"]:
            expanded = entries[f"{run['id']}/{published['index']}"].expand()
            bucket = published["handles_bucket"]
            low, high = run["bucket_ranges"][bucket]
            pipelines = expanded.strategy.pipelines
            layers = [[stage.num_layers for stage in one.stages] for one in pipelines]
            assert layers == published["layers_num_list"]
            assert f"runs bucket {bucket}, lengths {low + 1} to {high}:" in expanded.notes[0]
            assert expanded.strategy.world_size == run["num_gpus"]


def test_quick_runs_of_hotspa(reference: Path) -> None:
    runs = json.loads((reference / "hspmd" / "strategies_hotspa_quick_8xA100.json").read_text())
    entries = hotspa_entries(runs, Choices(num_layers=32))
    assert [entry.id for entry in entries][:4] == ["0/0", "0/1", "0/2", "1/0"]
    assert {entry.expand().strategy.world_size for entry in entries} == {8}


BAD_RUNS: dict[str, object] = {
    "shapes": [(1, 2), (0, 2, "x")],
    "no_list": "dp2",
    "buckets": {"bucket_sizes": [4096, 8192, 1], "strategies": [[1, 2, 2], [2, 2]], "layers": 8},
    "strategies": {"bucket_sizes": [8192, 0], "strategies": [[1, 2, 2], [4, 1, 1]], "layers": 8},
    "gpus": {"bucket_sizes": [8192, 0], "strategies": [{"dp": 2, "tp": 2}], "num_gpus": 8, "layers": 8},
    "layers": {"bucket_sizes": [8192, 0], "strategies": [{"dp": 1, "tp": 1, "pp": 3, "cp": 2}], "layers": 8},
    "no_layers": [(1, 2, 2)],
}


@pytest.mark.parametrize("name", BAD_RUNS)
def test_bad_runs_are_refused(name: str, expect: Callable[[str, str], None]) -> None:
    errors = []
    try:
        entries = hotspa_entries(BAD_RUNS[name], Choices(), "runs.json")
    except StrategyError as error:
        errors.append(str(error))
        entries = []
    for entry in entries:
        with pytest.raises(StrategyError) as caught:
            entry.expand()
        errors.append(str(caught.value))
    expect(f"strategy_formats/hotspa_{name}", "\n".join(errors))
