"""A logical graph survives JSON, and damaged JSON is refused."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hspmd_compiler.errors import ArtifactError
from hspmd_compiler.graph.graph_json import decode, encode
from hspmd_compiler.graph.ir import LogicalGraph


@pytest.mark.parametrize("name", ["llama", "gpt2", "mlp"])
def test_there_and_back(name: str, graphs: dict[str, LogicalGraph]) -> None:
    graph = graphs[name]
    text = json.dumps(encode(graph), allow_nan=False)
    assert decode(json.loads(text)) == graph


@pytest.fixture
def graph(graphs: dict[str, LogicalGraph]) -> LogicalGraph:
    return copy.deepcopy(graphs["mlp"])


def test_literals(graph: LogicalGraph) -> None:
    row = next(row for row in graph.rows if row.op == "aten.relu.default")
    literals = (math.inf, -math.inf, torch.bfloat16, torch.channels_last, (1, (2.5, None)), True, "text")
    row.args = (*row.args, *literals)
    again = decode(json.loads(json.dumps(encode(graph), allow_nan=False)))
    assert again.rows[row.id].args[1:] == literals


def test_an_argument_that_is_no_data_is_refused(graph: LogicalGraph) -> None:
    graph.rows[-1].args = (object(),)
    with pytest.raises(ArtifactError, match="can't be stored"):
        encode(graph)


def _row(data: dict[str, Any], op: str) -> list[Any]:
    found: list[Any] = next(row for row in data["rows"] if row[0] == op)
    return found


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data[path] = value

    return change


def _set_row(place: int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        _row(data, "aten.relu.default")[place] = value

    return change


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (_set_row(0, "prims.mul.default"), "operator 'prims.mul.default' is not allowed"),
        (_set_row(0, "aten.os.system('x').default"), "is not allowed"),
        (_set_row(0, 3), "3 is not a str"),
        (_set_row(1, [{"ref": 10_000}]), "reads %10000"),
        (_set_row(1, [{"ref": -1}]), "reads %-1"),
        (_set_row(1, [{"dtype": "load"}]), "'load' is no dtype"),
        (_set_row(1, [{"module": "os"}]), "unknown kind 'module'"),
        (_set_row(3, ["float33", 4]), "'float33' is no dtype"),
        (_set_row(3, ["float32", "4"]), "'4' is not a int"),
        (_set_row(5, 17), "layer 17 of 3"),
        (_set_row(6, 1000), "list index out of range"),
        (_set_row(7, "sideways"), "'sideways' is not a valid Phase"),
        (_set("loss", 10_000), "names row 10000"),
        (_set("loss", None), "None is not a int"),
        (_set("rows", None), "None is not a list"),
        (_set("params", [["w"]]), "not enough values"),
        (_set("mutated", {"b": "3"}), "'3' is not a int"),
        (_set("layers", [1]), "1 is not a str"),
    ],
)
def test_damage_is_named(change: Callable[[dict[str, Any]], None], word: str, graph: LogicalGraph) -> None:
    data = copy.deepcopy(json.loads(json.dumps(encode(graph))))
    change(data)
    with pytest.raises(ArtifactError) as caught:
        decode(data)
    assert word in str(caught.value)


def test_not_an_object() -> None:
    with pytest.raises(ArtifactError, match="not a JSON object"):
        decode([1])
