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
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.ir.graph_json import decode, encode


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
        (
            _set_row(0, "prims.mul.default"),
            '"prims.mul.default"\n  wanted an operator of aten or hspmd',
        ),
        (_set_row(0, "aten.os.system('x').default"), "wanted an operator"),
        (_set_row(0, 3), "[0]\n  found  3\n  wanted a text"),
        (_set_row(1, [{"ref": 10_000}]), "found  10000\n  wanted aten.relu.default reads an earlier value"),
        (_set_row(1, [{"ref": -1}]), "[1][0].ref\n  found  -1"),
        (_set_row(1, [{"dtype": "load"}]), 'found  "load"\n  wanted a dtype of torch'),
        (_set_row(1, [{"module": "os"}]), "one key of ref, dtype, memory_format, float"),
        (_set_row(3, ["float33", 4]), 'found  "float33"\n  wanted a dtype of torch'),
        (_set_row(3, ["float32", "4"]), '[3][1]\n  found  "4"\n  wanted an integer'),
        (_set_row(5, 17), "found  17\n  wanted one of 3 layers"),
        (_set_row(6, 1000), "[6]\n  found  1000\n  wanted an entry of modules"),
        (_set_row(7, "sideways"), '[7]\n  found  "sideways"\n  wanted one of f, b'),
        (_set("loss", 10_000), "loss\n  found  10000\n  wanted one of"),
        (_set("loss", None), "loss\n  found  null\n  wanted an integer"),
        (_set("rows", None), "rows\n  found  null\n  wanted a list"),
        (_set("params", [["w"]]), 'params[0]\n  found  ["w"]\n  wanted a list of 10'),
        (_set("mutated", {"b": "3"}), 'mutated.b\n  found  "3"\n  wanted an integer'),
        (_set("layers", [1]), "layers[0]\n  found  1\n  wanted a text"),
    ],
)
def test_damage_is_named(change: Callable[[dict[str, Any]], None], word: str, graph: LogicalGraph) -> None:
    data = copy.deepcopy(json.loads(json.dumps(encode(graph))))
    change(data)
    with pytest.raises(ArtifactError) as caught:
        decode(data)
    assert word in str(caught.value)


def test_not_an_object() -> None:
    with pytest.raises(ArtifactError, match="wanted a mapping with the keys batch, loss"):
        decode([1])
