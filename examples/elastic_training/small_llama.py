"""A small Llama in float64, whose sums differ by their order only far behind the point."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS, SEQUENCE = 12, 32
BYTE_VALUES = 256


def build() -> tuple[LlamaForCausalLM, dict[str, torch.Tensor]]:
    """A factory as the compiler takes it: the model, and a batch of any number of samples."""
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=BYTE_VALUES,
        max_position_embeddings=SEQUENCE,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    tokens = torch.zeros(2, SEQUENCE, dtype=torch.int64)
    return LlamaForCausalLM(config).double().train(), {"input_ids": tokens, "labels": tokens.clone()}
