"""Tracing an unmodified model: names, ties, layers, places. tests/trace/test_bits.py compares numbers."""

from __future__ import annotations

import math
import resource

import pytest
import torch
from torch import nn

from hspmd_compiler.ir.graph import LogicalGraph, OriginKind, Phase, row_inputs
from hspmd_compiler.models.builtin_models import builtin_factory
from hspmd_compiler.trace.tracer import trace

Made = tuple[nn.Module, dict[str, torch.Tensor]]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mlp"])
def test_rows_are_positions_and_read_earlier_ones(name: str, graphs: dict[str, LogicalGraph]) -> None:
    graph = graphs[name]
    assert [row.id for row in graph.rows] == list(range(len(graph.rows)))
    assert all(i < row.id for row in graph.rows for i in row_inputs(row))
    used = {i for row in graph.rows for i in row_inputs(row)}
    used |= {graph.loss, *(p.grad for p in graph.params.values() if p.grad is not None)}
    assert [r.op for r in graph.rows if r.id not in used and r.op != "placeholder"] == []


@pytest.mark.parametrize("name", ["llama", "gpt2", "mlp"])
def test_names_are_the_users(
    name: str, graphs: dict[str, LogicalGraph], request: pytest.FixtureRequest
) -> None:
    model, batch = request.getfixturevalue(name)
    params = graphs[name].params
    assert [p.name for p in params.values() if not p.is_buffer] == [n for n, _ in model.named_parameters()]
    assert [p.name for p in params.values() if p.is_buffer] == [n for n, _ in model.named_buffers()]
    assert list(graphs[name].inputs) == list(batch)
    assert all(i.shape == tuple(batch[n].shape) for n, i in graphs[name].inputs.items())


def test_tied_weights_are_one_row(graphs: dict[str, LogicalGraph]) -> None:
    graph = graphs["gpt2"]
    tied = graph.params["transformer.wte.weight"]
    assert tied.aliases == ("transformer.wte.weight", "lm_head.weight")
    users = [row for row in graph.rows if tied.row in row_inputs(row)]
    assert {row.module for row in users} == {"transformer.wte", "lm_head"}
    assert tied.grad is not None and graph.rows[tied.grad].op == "aten.add.Tensor"
    names = [row.origin.name for row in graph.rows if row.origin.kind is OriginKind.PARAM]
    assert "lm_head.weight" not in names


def test_layers(graphs: dict[str, LogicalGraph]) -> None:
    assert graphs["llama"].layers == ("model.layers.0", "model.layers.1", "model.layers.2")
    assert graphs["gpt2"].layers == ("transformer.h.0", "transformer.h.1")
    assert graphs["mlp"].layers == ("net.0", "net.2", "net.4")


@pytest.mark.parametrize("phase", list(Phase))
def test_layers_of_a_llama_have_equal_rows(phase: Phase, graphs: dict[str, LogicalGraph]) -> None:
    rows = [r for r in graphs["llama"].rows if r.phase is phase and r.op != "placeholder"]
    first, second, third = ([r.op for r in rows if r.layer == layer] for layer in range(3))
    assert first == second == third
    order = [row.layer for row in rows if row.layer is not None]
    assert order == sorted(order, reverse=phase is Phase.BACKWARD)


def test_parameters_lie_in_their_layer(graphs: dict[str, LogicalGraph]) -> None:
    graph = graphs["llama"]
    assert graph.rows[graph.params["model.layers.1.mlp.up_proj.weight"].row].layer == 1
    assert graph.rows[graph.params["model.norm.weight"].row].layer is None


def test_where_is_package_relative(graphs: dict[str, LogicalGraph]) -> None:
    places = [row.where for row in graphs["llama"].rows if row.op != "placeholder"]
    assert all(place.startswith("transformers/") for place in places)
    assert any("  in LlamaAttention.forward  " in place and "self.q_proj" in place for place in places)
    places = [row.where for row in graphs["mlp"].rows if row.op != "placeholder"]
    assert {place.split(":")[0] for place in places} == {"conftest.py"}


def test_default_devices_and_assertions_are_gone(graphs: dict[str, LogicalGraph]) -> None:
    for graph in graphs.values():
        assert not any({"device", "pin_memory", "layout"} & row.kwargs.keys() for row in graph.rows)
        assert not any("_assert" in row.op for row in graph.rows)


def test_model_is_untouched(mlp: Made) -> None:
    model, batch = mlp
    before = {name: (id(p), p.clone()) for name, p in model.named_parameters()}
    trace(model, batch, batch=3)
    after = {name: (id(p), p) for name, p in model.named_parameters()}
    assert before.keys() == after.keys()
    assert all(i == after[n][0] and torch.equal(p, after[n][1]) for n, (i, p) in before.items())


def test_factory_and_live_model_give_the_same_graph(mlp: Made) -> None:
    model, batch = mlp
    assert trace(lambda: (type(model)(), batch), batch=4) == trace(model, batch, batch=4)


def test_a_model_converted_in_its_factory(mlp: Made) -> None:
    model, batch = mlp
    wide = {"x": batch["x"].double(), "y": batch["y"]}
    graph = trace(lambda: (type(model)().double(), wide), batch=5)
    assert {p.dtype for p in graph.params.values()} == {torch.float64}


def test_large_models_take_no_memory() -> None:
    """A layer of this model has 0.8 GB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = trace(builtin_factory("llama-7b", {"layers": "2", "seq": "64"}), batch=3)
    assert sum(math.prod(p.shape) for p in graph.params.values()) > 6e8
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 5e5


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x)).sum()


def test_mutated_buffers_are_listed() -> None:
    graph = trace(_Counting(), {"x": torch.ones(2, 4)}, batch=4)
    assert graph.mutated.keys() == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert all(graph.rows[row].op != "placeholder" for row in graph.mutated.values())


class Literals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)
        self.steps = torch.arange(4.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = self.out(x) * torch.tensor([[1.5, 1.5, 2.0, -0.0]]) + self.steps
        return (scaled * torch.tensor(0.25) * torch.tensor([True, False, False, True])).sum()


def test_literal_tensors_become_operators() -> None:
    graph = trace(Literals(), {"x": torch.randn(3, 4)}, batch=3)
    assert {"aten.full.default", "aten.arange.start_step"} <= {row.op for row in graph.rows}


class Partial(nn.Module):
    """One parameter is never used, one only without gradient, one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare, self.held, self.frozen = (nn.Linear(4, 4, bias=False) for _ in range(4))
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            held = self.held(x)
        return (self.frozen(self.used(x)) * held).mean()


def test_parameters_that_eager_leaves_without_gradient() -> None:
    graph = trace(Partial(), {"x": torch.randn(3, 4)}, batch=3)
    assert [p.name for p in graph.params.values() if p.grad is None] == [
        "spare.weight",
        "held.weight",
        "frozen.weight",
    ]
    assert not graph.params["frozen.weight"].trainable
