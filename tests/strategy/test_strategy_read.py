"""Strategies in JSON and YAML: equal both ways, stable, and every bad value in one error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.check import check
from hspmd_compiler.strategy.formats.read import read_strategy, read_text
from hspmd_compiler.strategy.strategy import (
    GradientForm,
    Override,
    PipelineSpec,
    Recompute,
    RecomputeKind,
    ScheduleKind,
    StageSpec,
    Strategy,
)
from hspmd_compiler.strategy.write import TextForm, strategy_text, write_strategy

FORM = {
    "version": 1,
    "name": "two unequal pipelines",
    "pipelines": [
        {
            "stages": [{"devices": [0, 1], "layers": [0, 3]}, {"devices": [2], "layers": 1}],
            "micro_batches": [4, 4, 2],
            "recompute": [
                {"layers": [0, 2], "kind": "full", "every": 2},
                {"layers": [2, 4], "kind": "selective"},
            ],
        },
        {
            "stages": [{"devices": "3-5,8", "layers": 4, "shares": [3, 1, 1, 0]}],
            "micro_batches": [{"count": 2, "size": 3}, 1],
            "recompute": "full",
        },
    ],
    "accumulation": 2,
    "schedule": "gpipe",
    "sequence_parallel": True,
    "zero": 2,
    "bucket_bytes": 0,
    "overrides": [
        {"match": "*.mlp", "tp": 2},
        {"match": "wte", "split": 1, "shares": [2, 1]},
        {"match": "head", "duplicate": True, "gradient": "factors"},
    ],
    "device_kinds": {"0": "cpu", "8": "cuda"},
}
STRATEGY = Strategy(
    pipelines=(
        PipelineSpec(
            (StageSpec((0, 1), (0, 3)), StageSpec((2,), (3, 4))),
            (4, 4, 2),
            (Recompute((0, 2), RecomputeKind.FULL, 2), Recompute((2, 4), RecomputeKind.SELECTIVE)),
        ),
        PipelineSpec(
            (StageSpec((3, 4, 5, 8), (0, 4), (3, 1, 1, 0)),),
            (3, 3, 1),
            (Recompute((0, 4), RecomputeKind.FULL),),
        ),
    ),
    accumulation=2,
    schedule=ScheduleKind.GPIPE,
    sequence_parallel=True,
    overrides=(
        Override("*.mlp", tp=2),
        Override("wte", split=1, shares=(2, 1)),
        Override("head", duplicate=True, gradient=GradientForm.FACTORS),
    ),
    device_kinds=((0, DeviceKind.CPU), (8, DeviceKind.CUDA)),
    name="two unequal pipelines",
    zero=2,
    bucket_bytes=0,
)
BAD_FORM = {
    "version": 2,
    "nam": "x",
    "pipelines": [
        {
            "stages": [
                {"devices": [0, 1], "layers": [0, 2], "share": [1]},
                {"devices": [0, True], "layers": 0},
                {"devices": [3], "layers": [2, 3, 4]},
            ],
            "micro_batches": [4, 0, "2"],
            "recompute": "all",
        },
        {
            "stages": [
                {"devices": "6-5", "layers": 3, "shares": [3, 1, 0]},
                {"devices": [7, 8], "layers": [4, 6], "shares": ["a"]},
            ],
            "micro_batches": {"count": 0, "size": 4},
            "recompute": [{"layers": 2, "kind": "full"}, {"layers": [1], "kind": 1}, {"every": "x"}, 3],
        },
        {"stages": [{"devices": [9], "layers": "x"}], "microbatches": [1]},
        {"stages": "none", "micro_batches": [1]},
        7,
    ],
    "accumulation": 0,
    "schedule": "2f2b",
    "sequence_parallel": 1,
    "zero": "1",
    "bucket_bytes": "25 MB",
    "overrides": [{"match": "*..mlp", "tp": 1}, {"tp": "two"}, {"match": 3, "duplicate": "yes"}],
    "device_kinds": {"0": "gpu", "x": "cpu"},
}


def test_the_documented_form_is_read() -> None:
    assert read_strategy(FORM) == STRATEGY
    assert read_strategy(json.dumps(FORM)) == STRATEGY


def test_a_written_strategy_is_pinned(expect: Callable[[str, str], None]) -> None:
    expect("strategy/written_json", strategy_text(STRATEGY))
    expect("strategy/written_yaml", strategy_text(STRATEGY, TextForm.YAML))


@pytest.mark.parametrize("name", ["s.json", "s.yaml", "s.yml", "s"])
def test_a_file_reads_back_equal(tmp_path: Path, name: str) -> None:
    write_strategy(STRATEGY, tmp_path / name)
    assert read_strategy(tmp_path / name) == STRATEGY
    assert read_strategy(str(tmp_path / name)) == STRATEGY
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_defaults_need_not_be_written() -> None:
    text = "pipelines:\n- stages: [{devices: [0], layers: 2}]\n  micro_batches: [1]\n"
    strategy = read_strategy(text)
    assert strategy == Strategy((PipelineSpec((StageSpec((0,), (0, 2)),), (1,)),))
    assert strategy.schedule is ScheduleKind.ONE_F_ONE_B


@st.composite
def sound_strategies(draw: st.DrawFn) -> Strategy:
    """Any Strategy that breaks no rule, on up to nine devices."""
    devices, zero = draw(st.permutations(range(9))), draw(st.integers(0, 3))
    layers = draw(st.integers(3, 6))
    pipelines = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.sets(st.integers(1, layers - 1), max_size=1)))
        stages = []
        for low, high in zip([0, *cuts], [*cuts, layers], strict=True):
            count = draw(st.integers(1, 2)) if len(devices) > 6 else 1
            held, devices = tuple(devices[:count]), devices[count:]
            shares = draw(st.none() | st.tuples(*[st.integers(1, 4)] * count))
            stored = draw(st.none() | st.tuples(*[st.integers(0, 4)] * count)) if zero else None
            stages.append(StageSpec(held, (low, high), shares, stored))
        sizes = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
        kind = draw(st.sampled_from(RecomputeKind))
        every = draw(st.integers(1, 3)) if kind is RecomputeKind.FULL else 1
        remade = draw(st.sampled_from([(), (Recompute((0, layers - 1), kind, every),)]))
        pipelines.append(PipelineSpec(tuple(stages), sizes, remade))
    kinds = tuple((d, draw(st.sampled_from(DeviceKind))) for d in sorted(pipelines[0].devices))
    override = Override(
        draw(st.sampled_from(["mlp", "a.*", "é 'b'", "yes", "0"])), split=draw(st.integers(0, 2))
    )
    return Strategy(
        tuple(pipelines),
        accumulation=draw(st.integers(1, 3)),
        schedule=draw(st.sampled_from(ScheduleKind)),
        sequence_parallel=draw(st.booleans()),
        overrides=draw(st.sampled_from([(), (override,)])),
        device_kinds=draw(st.sampled_from([(), kinds])),
        zero=zero,
        name=draw(st.sampled_from(["", "1", "true", "a: b", "# c", "ü"])),
    )


@settings(max_examples=60, deadline=None)
@given(sound_strategies())
def test_any_strategy_reads_back_equal(strategy: Strategy) -> None:
    check(strategy)
    for form in TextForm:
        text = strategy_text(strategy, form)
        again = read_text(text)
        assert again == strategy
        assert strategy_text(again, form) == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from(["0-2", "x", "1f1b", ""]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [*FORM, "stages", "devices", "layers", "shares", "micro_batches", "count", "size"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=100, deadline=None)
def test_no_form_fails_in_another_way(form: object) -> None:
    try:
        strategy = read_text(json.dumps(form), json_only=True)
    except StrategyError:
        return
    check(strategy)


def message(source: object, at: str = "strategy.json") -> str:
    with pytest.raises(StrategyError) as caught:
        read_text(source if isinstance(source, str) else json.dumps(source), at=at)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_every_bad_value_is_listed(expect: Callable[[str, str], None]) -> None:
    expect("strategy/bad_form", message(BAD_FORM))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("malformed_json", '{"pipelines": [\n  {"stages": [}\n]}'),
        ("malformed_yaml", "pipelines: []\nname: [\n"),
        ("tab_in_yaml", "pipelines:\n\t- stages: 3\n"),
        ("repeated_json", '{"pipelines": [], "name": "a", "pipelines": []}'),
        ("repeated_yaml", "name: a\npipelines: []\nname: b\n"),
        ("list_as_yaml_key", "? [1, 2]\n: 3\npipelines: &a [*a]\n"),
        ("number_too_long", '{"accumulation": ' + "1" * 5000 + "}"),
        ("nested_too_deep", '{"pipelines": ' + "[" * 100_000 + "}"),
        ("no_mapping", "[1, 2]"),
        ("empty_text", ""),
        ("empty_form", "{}"),
    ],
)
def test_a_bad_text_is_refused(name: str, text: str, expect: Callable[[str, str], None]) -> None:
    expect(f"strategy/{name}", message(text, at="strategy.txt"))


def test_a_json_file_is_json_only(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text("pipelines: []\n")
    with pytest.raises(StrategyError, match=r"malformed JSON.*\n.*s.json, line 1, column 1"):
        read_strategy(path)


def test_a_file_that_cant_be_read(tmp_path: Path) -> None:
    with pytest.raises(StrategyError, match=r"can't read the strategy .*No such file"):
        read_strategy(tmp_path / "absent.json")
    with pytest.raises(StrategyError, match=r"can't read the strategy"):
        read_strategy(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StrategyError, match="byte 0 is not UTF-8"):
        read_strategy(tmp_path / "bytes")
    with pytest.raises(StrategyError, match="can't write"):
        write_strategy(STRATEGY, tmp_path / "absent" / "s.json")
