"""Rows and fx graphs convert both ways without loss."""

from __future__ import annotations

import pytest
import torch

from hspmd_compiler.errors import TraceError
from hspmd_compiler.graph.fx_convert import from_fx, target_of, to_fx
from hspmd_compiler.graph.ir import LogicalGraph, Ref


@pytest.mark.parametrize("name", ["llama", "gpt2", "mlp"])
def test_there_and_back(name: str, graphs: dict[str, LogicalGraph]) -> None:
    graph = graphs[name]
    module = to_fx(graph)
    module.graph.lint()
    assert from_fx(module) == graph


def test_a_rewritten_fx_graph_comes_back(graphs: dict[str, LogicalGraph]) -> None:
    graph = graphs["mlp"]
    module = to_fx(graph)
    relu = next(n for n in module.graph.nodes if n.target is torch.ops.aten.relu.default)
    with module.graph.inserting_after(relu):
        twice = module.graph.call_function(torch.ops.aten.mul.Tensor, (relu, 2.0))
    twice.meta["val"] = relu.meta["val"]
    relu.replace_all_uses_with(twice, delete_user_cb=lambda user: user is not twice)
    changed = from_fx(module)
    added = next(row for row in changed.rows if row.op == "aten.mul.Tensor")
    assert changed.rows[added.id - 1].op == "aten.relu.default"
    assert added.args == (Ref(added.id - 1), 2.0)
    assert len(changed.rows) == len(graph.rows) + 1
    assert changed.loss == graph.loss + 1


def test_a_foreign_fx_graph_is_refused() -> None:
    with pytest.raises(TraceError, match="was not made by to_fx"):
        from_fx(torch.fx.symbolic_trace(torch.nn.ReLU()))


def test_targets() -> None:
    assert target_of("aten.mm.default") is torch.ops.aten.mm.default
    assert target_of("hspmd.comm.default") is torch.ops.hspmd.comm.default
