"""Which language a text is in, which strategy of a file is meant, and our own form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.context_spec import ContextSpec
from hspmd_compiler.strategy.formats.annotation_json import annotation_json
from hspmd_compiler.strategy.formats.expanded import Choices, Entry, Expanded, Format
from hspmd_compiler.strategy.formats.hspmd_cases import expand_lines
from hspmd_compiler.strategy.formats.read import pick, read_entries, read_strategy, text_entries
from hspmd_compiler.strategy.write import strategy_text

LINES = 'DP=1\nTP=1\nLAYERS_NUM_LIST="[[2]]"\n'
TRIPLE = '{"hetero_configs": [[1]], "layer_partitions": [[2]]}'
RUN = '{"bucket_sizes": [8, 0], "strategies": [[1, 1, 1]], "layers": 2}'
MESHES = (
    "model:\n  hetero:\n    hetero_process_meshes: [1, 1, 1, 1, 1]\n    hetero_pipeline_layer_split: [2]\n"
)
OWN = "pipelines:\n- {stages: [{devices: [0], layers: 2}], micro_batches: [1]}\n"
ANNOTATION = json.dumps(annotation_json(expand_lines(LINES, Choices(), "")))

TEXTS = {
    Format.STRATEGY: (
        OWN,
        '{"pipelines": [{"stages": [{"devices": "0", "layers": 2}], "micro_batches": [1]}]}',
    ),
    Format.HSPMD_LINES: (LINES, f"# a case\nexport HETERO=true\n{LINES}"),
    Format.HSPMD_CASES: (
        '{"dp": 1, "tp": 1, "layers_num_list": [[2]]}',
        '[{"id": "x", "dp": 1, "tp": 1, "layers_num_list": [[2]], "seq_len_list": null}]',
        '{"strategies": [{"dp": 1, "tp": 1, "layers_num_list": [[2]]}]}',
    ),
    Format.ANNOTATION: (ANNOTATION,),
    Format.HEXISCALE: (
        TRIPLE,
        TRIPLE.replace("_", "-"),
        'python train.py --hetero_configs "[[1]]" --layer_partitions "[[2]]"',
        "torchrun t.py \\\n --hetero-configs [[1]] \\\n --layer-partitions=[[2]]",
    ),
    Format.HYDRAULIS: (
        "[[(1, 1, 1)]]",
        "[(1, 1)]",
        'MULTI_CP_TP_PP_LIST="[[(1,1,1)]]"\n',
        '{"strategies": [{"id": "x", "tp_pp_list": [[1, 1]]}]}',
        '{"note": "tp, pp, count", "pool": {"gpus": 1, "strategies": [[[1, 1, 1]]]}}',
    ),
    Format.HOTSPA: (RUN, f"[{RUN}]"),
    Format.FLAGSCALE: (MESHES,),
}


def test_every_form_has_a_text() -> None:
    assert set(TEXTS) == set(Format)


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, texts in TEXTS.items() for text in texts])
def test_a_text_tells_its_form(form: Format, text: str) -> None:
    """Each of these is one device with two layers."""
    found, entries = text_entries(text, Choices(num_layers=2))
    assert found is form
    stage = entries[0].expand().strategy.pipelines[0].stages[0]
    assert (stage.devices, stage.layers) == ((0,), (0, 2))


def test_triples_are_told_by_format() -> None:
    choices = Choices(num_layers=4)
    _, (pool,) = text_entries("[(1, 2, 1), (1, 1, 2)]", choices, Format.HYDRAULIS)
    assert len(pool.expand().strategy.pipelines) == 2
    _, runs = text_entries("[(1, 2, 1), (1, 1, 2)]", choices, Format.HOTSPA)
    assert [len(run.expand().strategy.pipelines) for run in runs] == [1, 1]


REFUSED: dict[str, tuple[str, Format | None]] = {
    "triples": ("[(1, 2, 1), (1, 1, 2)]", None),
    "lines_as_hexiscale": (LINES, Format.HEXISCALE),
    "list_as_flagscale": ("[[1, 1, 1, 1, 1]]", Format.FLAGSCALE),
    "malformed": ("[(1, 2, ", None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_tells_no_form_is_refused(name: str, expect: Callable[[str, str], None]) -> None:
    text, form = REFUSED[name]
    with pytest.raises(StrategyError) as caught:
        text_entries(text, Choices(num_layers=4), form, "strategy.txt")
    expect(f"strategy_formats/form_{name}", str(caught.value))


def entry(name: str) -> Entry:
    def never() -> Expanded:
        raise AssertionError

    return Entry(name, never)


def test_an_id_or_its_end_picks() -> None:
    entries = [entry("a/case1"), entry("a/case11"), entry("b/case1"), entry("b/case2"), entry("case2")]
    assert pick(entries, "a/case1").id == "a/case1"
    assert pick(entries, "case11").id == "a/case11"
    assert pick(entries, "case2").id == "case2"
    assert pick([entry("")], None).id == ""


@pytest.mark.parametrize("wanted", [None, "case1", "case3"])
def test_an_id_that_picks_none_is_refused(wanted: str | None, expect: Callable[[str, str], None]) -> None:
    entries = [entry("a/case1"), entry("b/case1"), *(entry(f"c/{index}") for index in range(50))]
    with pytest.raises(StrategyError) as caught:
        pick(entries, wanted, "cases.json")
    expect(f"strategy_formats/id_{wanted}", str(caught.value))


CONTEXT_PARALLEL = 'DP=2\nTP=1\nCP_LIST="[1,2]"\nLAYERS_NUM_LIST="[[4],[4],[4]]"\n'


def test_our_own_form_keeps_context_parallelism(tmp_path: Path) -> None:
    given = expand_lines(CONTEXT_PARALLEL, Choices(), "")
    path = tmp_path / "s.json"
    path.write_text(strategy_text(given.strategy))
    form, (read,) = read_entries(path, Choices())
    assert form is Format.STRATEGY
    assert given.strategy.context == (ContextSpec((1, 2)),)
    assert read.expand().strategy == read_strategy(path) == given.strategy


def test_our_own_form_says_its_micro_batches(expect: Callable[[str, str], None]) -> None:
    _, (read,) = text_entries(OWN, Choices(micro_batches=2), at="s.yaml")
    with pytest.raises(StrategyError) as caught:
        read.expand()
    expect("strategy_formats/own_micro_batches", str(caught.value))


@pytest.mark.parametrize("text", [OWN, ANNOTATION, LINES, TRIPLE, MESHES])
def test_layers_are_held_to_the_model_s(text: str) -> None:
    _, (read,) = text_entries(text, Choices(num_layers=3))
    with pytest.raises(StrategyError, match=r"2 (layers|blocks)"):
        read.expand()
