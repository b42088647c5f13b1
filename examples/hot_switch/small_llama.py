"""The model of the example: Hugging Face's Llama as it is, small enough for eight ranks of one machine."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS = 4
HEADS = 8
BYTE_VALUES = 256


def build(longest: int = 256) -> tuple[LlamaForCausalLM, dict[str, torch.Tensor]]:
    """A factory as the compiler takes it; `longest` tokens at most."""
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        vocab_size=BYTE_VALUES,
        max_position_embeddings=longest,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    return LlamaForCausalLM(config).train(), tokens(longest)


def tokens(length: int) -> dict[str, torch.Tensor]:
    """A batch of sequences of this length, of any number of samples."""
    ids = torch.zeros(2, length, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids.clone()}
