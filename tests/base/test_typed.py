"""The one reader: all values that don't fit at once, nothing converted, no other failure for any content."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.artifact import value_layouts
from hspmd_compiler.artifact.json_text import fingerprint
from hspmd_compiler.artifact.manifest import OWN_HASH, describe, manifest_from_json, manifest_to_json
from hspmd_compiler.artifact.value_layouts import PlacedValue, ValueLayouts
from hspmd_compiler.base.typed import AtLeast, Called, Either, Misfits, ValueRule, Wanted, read
from hspmd_compiler.cluster.form import cluster_from
from hspmd_compiler.errors import HspmdError
from hspmd_compiler.layout.layout import Axis, Factor, make_layout
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.init_program import from_json as read_init
from hspmd_compiler.program.program import Program
from hspmd_compiler.strategy.form import strategy_from


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    pair: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Outer:
    count: Annotated[int, AtLeast(1)]
    even: Annotated[int, ValueRule(lambda n: n % 2 == 0, "an even number")] = 0
    share: float = 1.0
    flag: bool = False
    colour: Colour = Colour.RED
    inner: tuple[Inner, ...] = ()
    either: Annotated[Inner | int, Either((dict,), Inner, int)] = 0
    numbers: Annotated[tuple[int, ...], Called("a list of numbers")] = ()
    whole: Annotated[tuple[int, ...], Wanted("a list of whole numbers")] = ()
    table: dict[str, int] = field(default_factory=dict)


def told(value: object) -> dict[str, str]:
    with pytest.raises(Misfits) as caught:
        read(Outer, value)
    return {each.path: each.wanted for each in caught.value.found}


def test_a_value_is_read_by_its_type_hints() -> None:
    made = read(
        Outer, {"count": 2, "inner": [{"name": "a", "pair": [1, 2]}], "either": {"name": "b"}, "share": 1}
    )
    assert made == Outer(2, inner=(Inner("a", (1, 2)),), either=Inner("b"))


def test_all_that_does_not_fit_is_told_at_once() -> None:
    inner = [3, {"pair": [1]}, {"name": 1, "pair": [1, 2, 3], "nam": 2}]
    wrong = {
        "count": 0,
        "even": 3,
        "flag": 1,
        "colour": "green",
        "inner": inner,
        "either": {},
        "table": {"a": "b"},
    }
    assert told(wrong | {"numbers": 3, "whole": [1, "x"], "share": "1"}) == {
        "count": "an integer of at least 1",
        "even": "an even number",
        "share": "a number",
        "flag": "true or false",
        "colour": "one of red, blue",
        "inner[0]": "a mapping with the keys name, pair",
        "inner[1].name": "missing: this key is required",
        "inner[1].pair": "a list of 2",
        "inner[2].name": "a text",
        "inner[2].pair": "a list of 2",
        "inner[2].nam": "unknown",
        "either.name": "missing: this key is required",
        "numbers": "a list of numbers",
        "whole": "a list of whole numbers",
        "table.a": "an integer",
    }
    assert told({"count": 1, "numbers": [1, "x"]}) == {"numbers[1]": "an integer"}


def test_keys_of_any_name_are_told_where_they_stand() -> None:
    names = ["<first>", "<x>", "[key]", ""]
    assert told({"count": 1, **dict.fromkeys(names, 1)}) == dict.fromkeys(
        ["<first>", "<x>", "[key]", ""], "unknown"
    )
    assert told({"count": 1, "table": dict.fromkeys(names, "a")}).keys() == {
        f"table.{name}" for name in names
    }
    either = {"name": "a", "<first>": 1, "[key]": 1}
    assert told({"count": 1, "either": either}).keys() == {"either.<first>", "either.[key]"}


@pytest.mark.parametrize("count", ["2", 2.0, True, None, [2], float("nan"), 1 << 63, {2}])
def test_nothing_is_converted(count: object) -> None:
    assert told({"count": count}).keys() == {"count"}


CLUSTER = {
    "version": 1,
    "nodes": [
        {"address": "a", "devices": [{"ids": "0", "count": 1, "kind": "cuda", "memory": 8}, {"ids": "3-4"}]}
    ],
    "link": {"bandwidth": 1.0, "latency": 0},
    "links": [{"between": ["a", "b"], "bandwidth": 2}],
}
STRATEGY = {
    "pipelines": [
        {
            "stages": [{"devices": "0-1", "layers": 2}],
            "micro_batches": {"count": 2, "size": 1},
            "recompute": "full",
        },
        {
            "stages": [{"devices": [2], "layers": [0, 2]}],
            "micro_batches": [1],
            "recompute": [{"layers": [0, 1], "kind": "full"}],
        },
    ],
    "overrides": [{"match": "a", "tp": 1}],
    "device_kinds": {"0": "cpu"},
}
INIT = {
    "finals": {"w": 0},
    "steps": [
        {"op": "reseed", "args": [(1 << 64) - 1]},
        {"op": "aten.ones.default", "args": [[2]], "outs": [0], "done": ["w"], "frees": [0]},
    ],
}
FACTOR = Factor(4, Axis.TENSOR, (((0, 2),), ((2, 4),)))
LAYOUTS = ValueLayouts(
    [0], {(0, 0): [PlacedValue(1, 2, make_layout(((FACTOR,), (Factor(3),)), frozenset()))]}
)
DESCRIBED = describe({"tokens": 1 << 80}, None, OptimizerConfig(), Program(0, 0, {}, {}, {}, [], []), None)
MANIFEST = manifest_to_json(replace(DESCRIBED, device_kinds=("cpu",)))


def read_manifest(value: Any) -> object:
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key != OWN_HASH}
        value[OWN_HASH] = fingerprint(value)
    return manifest_from_json(value, "manifest.json")


READERS: list[tuple[Any, Callable[[Any], object]]] = [
    (CLUSTER | {"links": []}, cluster_from),
    (STRATEGY, strategy_from),
    (INIT, read_init),
    (json.loads(json.dumps(LAYOUTS.to_json())), value_layouts.from_json),
    (MANIFEST, read_manifest),
    (OptimizerConfig(max_grad_norm=float("inf")).to_json(), OptimizerConfig.from_json),
]


@pytest.mark.parametrize(("content", "reader"), READERS)
def test_what_is_whole_is_read(content: Any, reader: Callable[[Any], object]) -> None:
    assert reader(deepcopy(content)) is not None


def test_layouts_come_back_the_same() -> None:
    assert value_layouts.from_json(json.loads(json.dumps(LAYOUTS.to_json()))) == LAYOUTS


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["0-3", "inf", "full", "cuda", 1 << 70, {"<first>": 1, "[key]": {}}]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["count", "size", "name", "layers", "kind"]), inner, max_size=2)
    ),
    max_leaves=5,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(value, key), *places(item)]]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_content_is_read_or_refused(data: st.DataObject) -> None:
    content, reader = data.draw(st.sampled_from(READERS))
    changed = {"": deepcopy(content)}
    for _ in range(data.draw(st.integers(1, 2))):
        owner, key = data.draw(st.sampled_from(places(changed)))
        kind = data.draw(st.integers(0, 5))
        if kind == 0:
            owner.pop(key)
        elif kind == 1 and isinstance(owner, dict):
            owner[data.draw(st.sampled_from(["<first>", "[key]", "x"]))] = deepcopy(data.draw(VALUES))
        else:
            owner[key] = deepcopy(data.draw(VALUES))
        if "" not in changed:
            return
    with suppress(HspmdError):
        reader(changed[""])
