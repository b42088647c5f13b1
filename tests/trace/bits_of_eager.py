"""Graphs compute eager's bits. tests/trace/test_bits.py runs this, in a process where MKL sums in one way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hspmd_compiler.ir.fx_convert import target_of
from hspmd_compiler.ir.graph import LogicalGraph, OriginKind, map_refs
from hspmd_compiler.models.models import load_model
from hspmd_compiler.program.fx.to_fx import rank_module
from hspmd_compiler.program.initial import replay
from hspmd_compiler.trace.init_record import record_factory
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.eager import whole_state
from hspmd_compiler.verify.single_device import single_device_program

from ..program.rank_arguments import rank_arguments
from .conftest import Batch, Mlp, traced
from .test_comm_marker import Marked
from .test_trace import Literals, Partial

Step = tuple[torch.Tensor, dict[str, torch.Tensor]]
SMALL: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "double": lambda: (Mlp().double(), {"x": torch.randn(5, 6).double(), "y": torch.tensor([0, 3, 1, 2, 0])}),
    "literals": lambda: (Literals(), {"x": torch.randn(3, 4)}),
    "parameters without gradient": lambda: (Partial(), {"x": torch.randn(3, 4)}),
    "marked": lambda: (Marked(), {"x": torch.randn(3, 4)}),
}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "head_dim": 8,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES: dict[str, dict[str, object]] = {
    "qwen2": {},
    "qwen3": {},
    "mistral": {},
    "olmo2": {},
    "phi3": {"resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "gemma2": {"attn_implementation": "eager"},
    "gpt_neox": {"hidden_dropout": 0.0, "attention_dropout": 0.0},
    "mixtral": {"num_local_experts": 4, "experts_implementation": "batched_mm"},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0, "attention_dropout": 0.0},
}


def eager_step(model: nn.Module, batch: Batch) -> Step:
    """Loss and gradients by autograd, by parameter name."""
    model.zero_grad()
    output = model(**batch)
    loss = output if isinstance(output, torch.Tensor) else output.loss
    loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return loss.detach(), grads


def traced_step(graph: LogicalGraph, model: nn.Module, batch: Batch) -> Step:
    """Loss and gradients of the graph, run row by row."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values: list[Any] = []
    for row in graph.rows:
        if row.op != "placeholder":
            args, kwargs = (map_refs(given, lambda ref: values[ref.id]) for given in (row.args, row.kwargs))
            values.append(target_of(row.op)(*args, **kwargs))
        elif row.origin.kind is OriginKind.TANGENT:
            values.append(torch.ones((), dtype=row.dtype))
        else:
            given = batch if row.origin.kind is OriginKind.INPUT else tensors
            values.append(given[row.origin.name].detach())
    return values[graph.loss], {p.name: values[p.grad] for p in graph.params.values() if p.grad is not None}


def check_equal(graph: LogicalGraph, model: nn.Module, batch: Batch) -> None:
    """Fails unless the graph, by its rows and as a program of one rank, and eager give the same bits."""
    wanted, wanted_grads = eager_step(model, batch)
    program = single_device_program(graph)
    rank = rank_module(program, 0)(*rank_arguments(program, 0, whole_state(model), batch))
    for loss, grads in (traced_step(graph, model, batch), (rank["loss"], rank["grads"])):
        assert torch.equal(loss, wanted)
        assert grads.keys() == wanted_grads.keys()
        assert [name for name in grads if not torch.equal(grads[name], wanted_grads[name])] == []


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow), "mlp"])
def test_models(name: str, request: pytest.FixtureRequest) -> None:
    model, batch = request.getfixturevalue(name)
    check_equal(traced(model, batch), model, batch)


@pytest.mark.parametrize("name", SMALL)
def test_small_models(name: str) -> None:
    model, batch = SMALL[name]()
    check_equal(trace(model, batch, batch=len(batch["x"])), model, batch)


@pytest.mark.slow
@pytest.mark.parametrize("family", list(FAMILIES))
def test_family(family: str, llama: tuple[nn.Module, Batch], tmp_path: Path) -> None:
    """Other HF families, unmodified: traced without memory, initialised by replay."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family, **SIZES, **FAMILIES[family]}))
    source = load_model(str(path), {"seq": "12"})
    recorded = record_factory(source.build)
    torch.manual_seed(7)
    model, _ = source.build()
    wanted = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found: dict[str, torch.Tensor] = {}
    replay(recorded.init, 7, lambda name, tensor: found.__setitem__(name, tensor.clone()))
    assert [name for name, tensor in wanted.items() if not torch.equal(found[name], tensor)] == []
    graph = trace(recorded.model, recorded.example_inputs, batch=5)
    assert len(graph.layers) == 2
    check_equal(graph, model, llama[1])
