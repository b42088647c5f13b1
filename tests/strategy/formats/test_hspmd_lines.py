"""HSPMD's KEY=VALUE lines: rank slots to stages, as published, and errors in the format's own words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.formats.expanded import Choices
from hspmd_compiler.strategy.formats.hspmd_lines import looks_like_lines, read_lines
from hspmd_compiler.strategy.formats.read import read_strategy, read_text
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

SMALL = """
# one full stage of two slots, one with an unused slot
export HETERO=true   # as in a launch script
NUM_GPUS=6 DP=2
CP_LIST="[1,1]"
TP=2
LAYERS_NUM_LIST='[[3,1],
                  [4]]'
MICRO_BATCH_NUM_LIST="[3,2]"
UNUSED_RANK="[3]"
RANK_TO_DEVICE_MAPPING="{0:4,1:1,2:2,3:3,\\
4:0,5:5}"
SEQ_LEN_LIST="null"
"""
KEYS = {
    "HETERO": "hetero",
    "NUM_GPUS": "num_gpus",
    "DP": "dp",
    "CP_LIST": "cp_list",
    "TP": "tp",
    "LAYERS_NUM_LIST": "layers_num_list",
    "MICRO_BATCH_NUM_LIST": "micro_batch_num_list",
    "UNUSED_RANK": "unused_rank",
    "RANK_TO_DEVICE_MAPPING": "rank_to_device_mapping",
    "SEQ_LEN_LIST": "seq_len_list",
}


def lines_of(case: dict[str, object]) -> str:
    """A case of the reference as the lines of its launch script."""
    values = {key: json.dumps(case[field]).replace('"', "") for key, field in KEYS.items()}
    return "".join(f'{key}="{value}"\n' for key, value in values.items())


def test_slots_become_stages() -> None:
    read = read_lines(SMALL)
    assert read.strategy == Strategy(
        (
            PipelineSpec((StageSpec((4, 1), (0, 3)), StageSpec((2,), (3, 4))), (1, 1, 1)),
            PipelineSpec((StageSpec((0, 5), (0, 4)),), (1, 1)),
        )
    )
    assert read.notes == ("NUM_GPUS=6 is not checked: the stages use 5 devices",)
    assert read_lines(SMALL + "MICRO_BATCH_SIZE=4\n").strategy.global_batch == 20
    assert read_lines(SMALL, Choices(micro_batch_size=2)).strategy.global_batch == 10


def test_a_strategy_file_may_hold_lines(tmp_path: Path) -> None:
    path = tmp_path / "case.sh"
    path.write_text(SMALL)
    assert read_strategy(path) == read_lines(SMALL).strategy
    assert looks_like_lines(SMALL)
    assert not looks_like_lines("pipelines: []\n")


def test_null_is_the_documented_default() -> None:
    text = 'HETERO=true\nDP=2\nTP=2\nLAYERS_NUM_LIST="[[1,3],[4]]"\nRANK_TO_DEVICE_MAPPING=null\n'
    strategy = read_lines(text).strategy
    assert strategy.devices == (0, 1, 2, 3, 4, 5)
    assert [pipeline.micro_batches for pipeline in strategy.pipelines] == [(1, 1), (1,)]


def test_without_hetero_all_stages_are_equal() -> None:
    text = "HETERO=false\nNUM_GPUS=8\nTP=2\nPP=2\nDP=2\nCP=1\n"
    strategy = read_lines(text, Choices(num_layers=6)).strategy
    assert strategy == Strategy(
        (
            PipelineSpec((StageSpec((0, 1), (0, 3)), StageSpec((4, 5), (3, 6))), (1, 1)),
            PipelineSpec((StageSpec((2, 3), (0, 3)), StageSpec((6, 7), (3, 6))), (1, 1)),
        )
    )


def test_the_last_value_counts_and_is_noted() -> None:
    read = read_lines(SMALL + 'HIDDEN_SIZE=64\nMICRO_BATCH_NUM_LIST="[1,1]"\n')
    assert read.strategy.global_batch == 2
    assert read.notes[1:] == (
        "MICRO_BATCH_NUM_LIST is set more than once: the last value, in line 15, counts",
        "HIDDEN_SIZE says nothing about the strategy",
    )


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 8, 10, 12, 13])
def test_published_cases_give_their_pipelines(reference: Path, number: int) -> None:
    """The CASEs of HSPMD's launch script, against stages derived independently."""
    cases = json.loads((reference / "hspmd" / "strategies_hetero_cluster.json").read_text())
    case = next(case for case in cases if case["id"].endswith(f"/case{number}"))
    strategy = read_lines(lines_of(case), Choices(num_layers=case["model"]["layers"])).strategy
    stages = [
        [{"layers": list(s.layers), "devices": list(s.devices), "tp": s.tp} for s in pipeline.stages]
        for pipeline in strategy.pipelines
    ]
    for pipeline in case["derived"]["pipelines"]:
        for stage in pipeline:
            del stage["ranks"]
    assert stages == case["derived"]["pipelines"]
    assert [len(pipeline.micro_batches) for pipeline in strategy.pipelines] == case["micro_batch_num_list"]
    assert list(strategy.devices) == case["derived"]["used_devices"]


BAD = {
    "lists_of_wrong_length": 'DP=3\nTP=2\nCP_LIST="[1,1]"\nLAYERS_NUM_LIST="[[2,2],[3]]"\n'
    'MICRO_BATCH_NUM_LIST="[1]"\nSEQ_LEN_LIST="[8,8,9]"\n',
    "context_of_unlike_stages": 'DP=2\nTP=2\nCP_LIST="[1,2]"\nLAYERS_NUM_LIST="[[4],[2,2],[1,3]]"\n',
    "slots_and_mapping": 'DP=2\nTP=2\nLAYERS_NUM_LIST="[[2,2],[4]]"\nUNUSED_RANK="[2,3,3,9]"\n'
    'RANK_TO_DEVICE_MAPPING="{0:1,1:1,4:2,9:7}"\n',
    "stage_without_slots": 'DP=1\nTP=2\nLAYERS_NUM_LIST="[[2,2]]"\nUNUSED_RANK="[2,3]"\n',
    "types": 'HETERO=maybe\nDP=two\nTP=0\nLAYERS_NUM_LIST="[[2,-1],3]"\nMICRO_BATCH_NUM_LIST="[1,x]"\n'
    'UNUSED_RANK=4\nRANK_TO_DEVICE_MAPPING="[0,1]"\nMICRO_BATCH_SIZE=1.5\n',
    "never_executed": "HETERO=true\nDP=$(nproc)\nTP=`cat tp`\nLAYERS_NUM_LIST=${1:-null}\nUNUSED_RANKS=[]\n"
    'FOO=1\nif [[ 1 ]]; then\nCP_LIST=[1, 1]\nSEQ_LEN_LIST="[1\n',
    "missing": "NUM_GPUS=4\nHETERO=true\n",
    "missing_equal": "NUM_GPUS=4\nHETERO=false\nUNUSED_RANK=[]\n",
    "stages_do_not_divide": "HETERO=false\nDP=1\nTP=1\nPP=3\nNUM_LAYERS=4\n",
    "other_model": 'DP=1\nTP=1\nNUM_LAYERS=5\nLAYERS_NUM_LIST="[[2,2]]"\n',
    "empty_pipeline": 'DP=2\nTP=1\nLAYERS_NUM_LIST="[[2],[]]"\n',
}


@pytest.mark.parametrize("name", BAD)
def test_every_bad_line_is_listed(name: str, expect: Callable[[str, str], None]) -> None:
    with pytest.raises(StrategyError) as caught:
        read_lines(BAD[name], at="case.sh")
    expect(f"strategy/lines_{name}", str(caught.value))


def test_nothing_is_executed(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    text = f'DP="$(touch {planted})"\nTP="__import__(\'os\').mkdir(\'{planted}\')"\nLAYERS_NUM_LIST="[[1]]"\n'
    with pytest.raises(StrategyError):
        read_lines(text)
    assert not planted.exists()


def test_a_member_may_have_no_tokens() -> None:
    text = (
        'HETERO=true\nDP=1\nCP_LIST="[3]"\nTP=2\nLAYERS_NUM_LIST="[[2],[2],[2]]"\n'
        'MICRO_BATCH_NUM_LIST="[2]"\nSEQ_LEN_LIST="[{}]"\n'
    )
    (group,) = read_text(text.format("13,0,7")).context
    assert group.lengths == (13, 0, 7) and group.padding == 0
    with pytest.raises(StrategyError, match="some member more than 0"):
        read_text(text.format("0,0,0"))
