"""HSPMD's cases: lists of them, context parallelism, and errors in a case's own words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.context_spec import ContextSpec
from hspmd_compiler.strategy.formats.expanded import AnnotationStyle, Choices
from hspmd_compiler.strategy.formats.hspmd_cases import case_entries, expand_case, expand_lines
from hspmd_compiler.strategy.formats.hspmd_lines import read_lines

CASE: dict[str, Any] = {
    "id": "own/case1",
    "hetero": True,
    "num_gpus": 6,
    "dp": 2,
    "tp": 2,
    "cp_list": [1, 1],
    "layers_num_list": [[1, 2], [3]],
    "micro_batch_num_list": [3, 2],
    "unused_rank": [3],
    "rank_to_device_mapping": {"0": 5, "1": 1, "2": 2, "3": 3, "4": 4, "5": 0},
    "seq_len_list": None,
    "model": {"layers": 3},
}
CONTEXT_PARALLEL = (
    'DP=2\nTP=1\nCP_LIST="[1,2]"\nLAYERS_NUM_LIST="[[4],[2,2],[2,2]]"\nMICRO_BATCH_NUM_LIST="[3,5]"\n'
)


@pytest.mark.parametrize(
    "name", ["strategies_hetero_cluster", "strategies_hetu_misc", "strategies_elastic_inferred"]
)
def test_published_cases_have_the_published_stages(reference: Path, name: str) -> None:
    content = json.loads((reference / "hspmd" / f"{name}.json").read_text())
    cases = content["strategies"] if isinstance(content, dict) else content
    entries = case_entries(content, Choices(), name)
    assert [entry.id for entry in entries] == [case["id"] for case in cases]
    for entry, case in zip(entries, cases, strict=True):
        pipelines = entry.expand().strategy.pipelines
        if "derived" in case:
            found = [
                [{"layers": list(stage.layers), "devices": list(stage.devices)} for stage in one.stages]
                for one in pipelines
            ]
            assert found == [
                [{key: stage[key] for key in ("layers", "devices")} for stage in stages]
                for stages in case["derived"]["pipelines"]
            ]
        else:
            assert len(pipelines) == case["dp"] * case["cp"]


def test_a_case_is_its_launch_script() -> None:
    text = (
        'HETERO=true\nNUM_GPUS=6\nDP=2\nTP=2\nLAYERS_NUM_LIST="[[1,2],[3]]"\nMICRO_BATCH_NUM_LIST="[3,2]"\n'
        'UNUSED_RANK="[3]"\nRANK_TO_DEVICE_MAPPING="{0:5,1:1,2:2,3:3,4:4,5:0}"\n'
    )
    assert expand_case(CASE, Choices()).strategy == expand_lines(text, Choices(), "").strategy
    assert expand_case(CASE, Choices()).strategy == read_lines(text).strategy


def test_choices_go_before_the_script() -> None:
    strategy = expand_case(CASE, Choices(micro_batch_size=2, micro_batches=4)).strategy
    assert [one.micro_batches for one in strategy.pipelines] == [(2, 2, 2, 2), (2, 2, 2, 2)]


def test_context_parallel_pipelines_share_their_micro_batches() -> None:
    expanded = expand_lines(CONTEXT_PARALLEL + 'SEQ_LEN_LIST="[12,4,8]"\n', Choices(), "")
    assert expanded.strategy.context == (ContextSpec((1, 2), (4, 8)),)
    assert [len(one.micro_batches) for one in expanded.strategy.pipelines] == [3, 5, 5]
    assert expanded.strategy.global_batch == 8


def test_context_parallelism_of_equal_stages() -> None:
    expanded = expand_lines("HETERO=false\nDP=2\nCP=2\nTP=2\nPP=2\nNUM_LAYERS=4\n", Choices(), "")
    assert expanded.strategy.context == (ContextSpec((0, 1)), ContextSpec((2, 3)))
    assert expanded.style is AnnotationStyle.ONE_GROUP
    assert [one.devices for one in expanded.strategy.pipelines][1] == (2, 3, 10, 11)


def test_samples_of_fewer_tokens_are_padded() -> None:
    """One length per pipeline; a group that has fewer in all, or a pipeline alone, runs no padding."""
    pair = ContextSpec((1, 2), (4, 6))
    groups = {
        "[12,4,6]": (replace(pair, padding=2),),
        "[7,4,6]": (ContextSpec((0,), (7,), 3), pair),
        "[10,4,6]": (pair,),
    }
    for given, wanted in groups.items():
        strategy = expand_lines(CONTEXT_PARALLEL + f'SEQ_LEN_LIST="{given}"\n', Choices(), "").strategy
        assert strategy.context == wanted


BAD = {
    "values": {**CASE, "tp": "two", "unused_rank": [3, 3], "cp_list": [1], "seq_len": 4, "dpp": 3},
    "layers": {**CASE, "layers_num_list": [[1, 2], [4]], "rank_to_device_mapping": {"0": "x"}},
    "homogeneous": {
        "hetero": False,
        "dp": 2,
        "tp": 2,
        "pp": 3,
        "cp": 2,
        "cp_list": [2, 1],
        "model": {"layers": 4},
    },
    "recompute": {
        **CASE,
        "recompute_granularity": ["selective", "all"],
        "recompute_method": "block",
        "recompute_layer_idxs_list": [[1], "x", [2]],
    },
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_listed_in_a_case_s_words(name: str, expect: Callable[[str, str], None]) -> None:
    with pytest.raises(StrategyError) as caught:
        expand_case(BAD[name], Choices(), "cases.json")
    expect(f"strategy_formats/case_{name}", str(caught.value))


def test_a_list_of_cases_holds_objects(expect: Callable[[str, str], None]) -> None:
    with pytest.raises(StrategyError) as caught:
        case_entries([CASE, 3], Choices(), "cases.json")
    expect("strategy_formats/case_no_object", str(caught.value))
