"""HSPMD's annotation JSON: written as its generators write it, and read back to the same strategy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.formats.annotation_json import Family, annotation_json
from hspmd_compiler.strategy.formats.annotation_reading import read_annotation
from hspmd_compiler.strategy.formats.expanded import Choices, Expanded
from hspmd_compiler.strategy.formats.hotspa import hotspa_entries
from hspmd_compiler.strategy.formats.hspmd_cases import expand_case, expand_lines
from hspmd_compiler.strategy.formats.read import read_strategy
from hspmd_compiler.strategy.strategy import Strategy

CHOICES = Choices()
HOTSPA_LAYERS = {"7b": 32, "13b": 40, "32b": 60}
LINE_KEY = {"hetero_layers": "LAYERS_NUM_LIST"}

CASE_6 = """
HETERO=true
NUM_GPUS=44
DP=2
CP_LIST="[1,1]"
TP=4
LAYERS_NUM_LIST="[[6,6,6,21,21],[6,6,6,22,13,7]]"
MICRO_BATCH_NUM_LIST="[33,31]"
UNUSED_RANK="[38,39,41,42,43]"
RANK_TO_DEVICE_MAPPING="{0:0,1:1,2:2,3:3,4:4,5:5,6:6,7:7,8:8,9:9,10:10,11:11,12:24,13:25,14:26,15:27,\
16:28,17:29,18:30,19:31,20:12,21:13,22:14,23:15,24:16,25:17,26:18,27:19,28:20,29:21,30:22,31:23,32:32,\
33:33,34:34,35:35,36:36,37:37,38:39,39:40,40:38,41:41,42:42,43:43}"
"""

UNEVEN = 'HETERO=true\nDP=2\nTP=2\nLAYERS_NUM_LIST="[[1,2],[3]]"\nUNUSED_RANK="[3]"\nNUM_GPUS=6\n'


def dumped(form: object) -> str:
    """A text that tells apart what == does not: the order of keys, true and 1."""
    return json.dumps(form)


def flags(argv: list[str]) -> dict[str, str]:
    """A generator's arguments by name; a flag without a value is 'true'."""
    found: dict[str, str] = {}
    for word in argv:
        if word.startswith("--"):
            found[name := word[2:]] = "true"
        else:
            found[name] = word
    return found


def expanded_from(argv: list[str]) -> Expanded:
    given = {key: value for key, value in flags(argv).items() if key not in ("zero", "file_name")}
    lines = [f"HETERO={'true' if 'hetero_layers' in given else 'false'}"]
    lines += [f'{LINE_KEY.get(key, key.upper())}="{value}"' for key, value in given.items()]
    return expand_lines("\n".join(lines), CHOICES, "argv")


def test_every_generator_output_is_written_alike(reference: Path) -> None:
    folder = reference / "hspmd" / "generator_outputs"
    rows = json.loads((folder / "INDEX.json").read_text())
    unlike = [
        row["file"]
        for row in rows
        if dumped(annotation_json(expanded_from(row["argv"]), Family(row["family"]), row["zero_arg"]))
        != dumped(json.loads((folder / row["file"]).read_text()))
    ]
    assert rows
    assert not unlike


def test_cases_are_written_alike(reference: Path) -> None:
    """The same outputs from the lists of cases, instead of from the generators' arguments."""
    hspmd = reference / "hspmd"
    lists = [json.loads((hspmd / name).read_text()) for name in CASE_LISTS]
    cases = {case["id"]: case for items in lists for case in items}
    rows = json.loads((hspmd / "generator_outputs" / "INDEX.json").read_text())
    rows = [row for row in rows if row["case"] in cases]
    for row in rows:
        expanded = expand_case(cases[row["case"]], CHOICES)
        wanted = json.loads((hspmd / "generator_outputs" / row["file"]).read_text())
        written = annotation_json(expanded, Family(row["family"]), row["zero_arg"])
        assert dumped(written) == dumped(wanted), row["file"]
    assert rows


CASE_LISTS = ("strategies_hetero_cluster.json", "strategies_hetu_misc.json")


def test_every_hotspa_output_is_written_alike(reference: Path) -> None:
    folder = reference / "hspmd" / "generator_outputs_hotspa"
    rows = json.loads((folder / "INDEX.json").read_text())
    for row in rows:
        given = flags(row["argv"])
        degrees = tuple(int(given[key]) for key in ("dp", "tp", "pp"))
        (entry,) = hotspa_entries(degrees, Choices(num_layers=HOTSPA_LAYERS[given["model_size"]]))
        written = annotation_json(entry.expand(), zero="zero" in given)
        assert dumped(written) == dumped(json.loads((folder / row["file"]).read_text())), row["file"]
    assert rows


@pytest.mark.parametrize("folder", ["generator_outputs", "generator_outputs_hotspa"])
def test_every_output_is_read_back(reference: Path, folder: str) -> None:
    files = [
        path for path in sorted((reference / "hspmd" / folder).glob("*.json")) if path.name != "INDEX.json"
    ]
    for path in files:
        content = json.loads(path.read_text())
        family = Family.GPT if "gpt" in content else Family.LLAMA
        expanded = read_annotation(content, CHOICES, path.name)
        assert dumped(annotation_json(expanded, family)) == dumped(content), path.name
        assert read_strategy(content) == expanded.strategy
    assert files


def test_the_sample_of_the_readme_is_case_6() -> None:
    """HSPMD's README prints another strategy, of three pipelines, above this sample."""
    blocks: Any = annotation_json(expand_lines(CASE_6, CHOICES, ""), zero=True)["llama"]
    assert blocks["blocks"]["blocks59"]["attn"]["dense"] == {
        "split": {"0": [4, 1]},
        "dup": [2, 2],
        "device_group_union": [[28, 29, 30, 31], [38]],
        "type": "variable",
    }


def test_the_annotation_json_keeps_the_strategy() -> None:
    expanded = expand_lines(UNEVEN, CHOICES, "")
    form = annotation_json(expanded)
    assert read_annotation(form, CHOICES).strategy == expanded.strategy
    assert read_annotation(form, Choices(3, 2)).strategy.pipelines[0].micro_batches == (3, 3)


def test_zero_needs_a_second_pipeline() -> None:
    alone = 'DP=1\nTP=2\nLAYERS_NUM_LIST="[[2]]"\n'
    assert annotation_json(expand_lines(alone, CHOICES, ""), zero=True)["zero"] is False
    assert annotation_json(expand_lines(UNEVEN, CHOICES, ""), zero=True)["zero"] is True


RECOMPUTE = {
    "uniform": "RECOMPUTE_GRANULARITY=full\nRECOMPUTE_METHOD=uniform\nRECOMPUTE_NUM_LAYERS=2\n",
    "block": "RECOMPUTE_GRANULARITY=full\nRECOMPUTE_METHOD=block\nRECOMPUTE_NUM_LAYERS=1\n",
    "named": "RECOMPUTE_GRANULARITY=\"['selective',null]\"\nRECOMPUTE_LAYER_IDXS_LIST=[[1],[]]\n",
}
RECOMPUTED = {
    "uniform": ([[True, True]] * 3, [[True, True], [False, False], [True, True]]),
    "block": ([[True, True], [True, False], [False, False]], [[False, False]] * 3),
    "named": ([[False, False], [True, False], [False, False]], [[False, False]] * 3),
}


@pytest.mark.parametrize("name", RECOMPUTE)
def test_recompute_flags(name: str) -> None:
    text = RECOMPUTE[name].replace("null", "None")
    form: Any = annotation_json(expand_lines(UNEVEN + text, CHOICES, ""))
    blocks = form["llama"]["blocks"].values()
    assert [block["recompute"] for block in blocks] == RECOMPUTED[name][0]
    assert [block["output_recompute"] for block in blocks] == RECOMPUTED[name][1]


def changed(*edits: tuple[str, object]) -> dict[str, object]:
    """The annotation JSON of two uneven pipelines, with values replaced by key path."""
    form: Any = annotation_json(expand_lines(UNEVEN, CHOICES, ""))
    for path, value in edits:
        place = form
        *parents, last = path.split("/")
        for key in parents:
            place = place[key]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return dict(form)


B1 = "llama/blocks/blocks1"
BAD = {
    "no_blocks": {"input": {"device_group_union": [[0]], "type": "placeholder"}},
    "types": changed(
        (f"{B1}/attn/qkv/dup", "2"),
        (f"{B1}/range", [2, 1]),
        ("llama/blocks/blocks2/mlp/dense_4h_to_h/split", {"1": [2, 2]}),
        ("llama/blocks/blocks0/attn/dense/device_group_union", 4),
    ),
    "factors": changed(
        (f"{B1}/attn/qkv/dup", [2, 3]),
        (f"{B1}/attn/dense/device_group_union", [[2], [4, 4]]),
        ("llama/blocks/blocks2/attn/qkv/dup", [2]),
    ),
    "modules_apart": changed(
        (f"{B1}/attn/qkv/device_group_union", [[2], [6, 7]]),
        ("llama/blocks/blocks2/rmsnorm1/device_group_union", [[0], [4, 5]]),
    ),
    "blocks_missing": changed(("llama/blocks/blocks0", None), (f"{B1}/range", [2])),
    "ends": changed(
        ("llama/wte/device_group_union", [[0, 1], [6, 7]]),
        ("lm_head/device_group_union", [[2], [6, 7]]),
        ("label/dup", [4, 4]),
    ),
    "devices_return": changed(
        *(
            (f"llama/blocks/blocks2/{name}", changed()["llama"]["blocks"]["blocks0"][name])  # type: ignore[index]
            for name in ("rmsnorm1", "attn", "rmsnorm2", "mlp")
        ),
        ("llama/rmsnorm_final", changed()["llama"]["wte"]),  # type: ignore[index]
        ("lm_head", None),
        ("label", changed()["input"]),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_listed(name: str, expect: Callable[[str, str], None]) -> None:
    with pytest.raises(StrategyError) as caught:
        read_annotation(BAD[name], CHOICES, "annotation.json")
    expect(f"strategy_formats/annotation_{name}", str(caught.value))


def test_one_group_is_cut_into_pipelines() -> None:
    text = "HETERO=false\nDP=2\nTP=2\nPP=2\nNUM_LAYERS=4\n"
    expanded = expand_lines(text, CHOICES, "")
    form = annotation_json(expanded)
    assert form["input"] == {
        "split": {"0": [2]},
        "dup": [2],
        "device_group_union": [[0, 1, 2, 3]],
        "type": "placeholder",
    }
    strategy = read_annotation(form, CHOICES).strategy
    assert strategy == Strategy(expanded.strategy.pipelines)


RANGES = {
    "uniform": [[((0, 1), 2), ((1, 2), 2), ((2, 3), 2)], [((0, 3), 2)]],
    "block": [[((0, 1), 1), ((1, 2), 1)], [((0, 1), 1)]],
    "named": [[((1, 2), 1)], []],
}


@pytest.mark.parametrize("name", RECOMPUTE)
def test_recompute_stands_in_the_strategy(name: str) -> None:
    """`uniform` in groups that end at multiples of num_layers, `block` at the first blocks of each stage."""
    strategy = expand_lines(UNEVEN + RECOMPUTE[name].replace("null", "None"), CHOICES, "").strategy
    found = [[(item.layers, item.every) for item in spec.recompute] for spec in strategy.pipelines]
    assert found == RANGES[name]
