"""The model of the demo: Hugging Face's Llama as it is, with four layers and grouped-query attention."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BYTE_VALUES = 256


def build(layers: int = 4, seq: int = 64) -> tuple[LlamaForCausalLM, dict[str, torch.Tensor]]:
    """A factory as the compiler takes it: the model, and a batch of any number of samples."""
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=BYTE_VALUES,
        max_position_embeddings=seq,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    tokens = torch.zeros(2, seq, dtype=torch.int64)
    return LlamaForCausalLM(config).train(), {"input_ids": tokens, "labels": tokens.clone()}
