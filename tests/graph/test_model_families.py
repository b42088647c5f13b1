"""Other HF families, unmodified: traced without memory, initialised by replay, the same bits as eager."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from hspmd_compiler.artifact.initial import replay
from hspmd_compiler.graph.init_record import record_factory
from hspmd_compiler.graph.ir import LogicalGraph
from hspmd_compiler.graph.tracer import trace
from hspmd_compiler.models import load_model

Check = Callable[[LogicalGraph, nn.Module, dict[str, torch.Tensor]], None]
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


@pytest.mark.slow
@pytest.mark.parametrize("family", list(FAMILIES))
def test_family(
    family: str, llama: tuple[object, dict[str, torch.Tensor]], check_equal: Check, tmp_path: Path
) -> None:
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
