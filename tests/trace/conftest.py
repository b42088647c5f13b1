"""Models, and their graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.trace.tracer import trace

Batch = dict[str, torch.Tensor]


def token_batch(samples: int, seq: int, vocab: int) -> Batch:
    """Random tokens; some labels are ignored."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, vocab, (samples, seq), generator=generator)
    labels = ids.clone()
    labels[0, : seq // 2] = -100
    return {"input_ids": ids, "labels": labels}


@pytest.fixture(scope="session")
def llama() -> tuple[nn.Module, Batch]:
    """HF Llama with grouped-query attention; the number of samples is odd and equals no other size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=16,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).train(), token_batch(5, 12, 64)


@pytest.fixture(scope="session")
def gpt2() -> tuple[nn.Module, Batch]:
    """HF GPT-2: tied embedding, fused c_attn, no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=64,
        n_positions=16,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return GPT2LMHeadModel(config).train(), token_batch(5, 12, 64)


class Mlp(nn.Module):
    """Three linear layers with ReLU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x), y)


@pytest.fixture(scope="session")
def mlp() -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    return Mlp(), {"x": torch.randn(5, 6), "y": torch.tensor([0, 3, 1, 2, 0])}


@pytest.fixture(scope="session")
def graphs(
    llama: tuple[nn.Module, Batch], gpt2: tuple[nn.Module, Batch], mlp: tuple[nn.Module, Batch]
) -> dict[str, LogicalGraph]:
    """The three models traced at batch 5, from examples of one sample. Not to be changed."""
    made = {"llama": llama, "gpt2": gpt2, "mlp": mlp}
    return {name: traced(model, batch) for name, (model, batch) in made.items()}


def traced(model: nn.Module, batch: Batch) -> LogicalGraph:
    """At batch 5, from one sample."""
    return trace(model, {name: value[:1] for name, value in batch.items()}, batch=5)
