"""Models that need no source of the user: Llama and GPT-2 of published sizes, and an MLP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import torch
from torch import nn

from ..errors import OptionError

Inputs = dict[str, torch.Tensor]
Made = tuple[nn.Module, Inputs]
SAMPLES = 2


@dataclass(frozen=True, slots=True)
class LlamaSize:
    """HF Llama. kv_heads, if 0: as many as heads. packed: 1 for rows of several documents."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    kv_heads: int = 0
    vocab: int = 32000
    seq: int = 4096
    packed: int = 0

    def clashes(self) -> Iterator[tuple[str, str]]:
        if self.hidden % self.heads:
            yield "hidden", f"{self.hidden} is not a multiple of heads={self.heads}"
        elif (self.hidden // self.heads) % 2:
            yield (
                "hidden",
                f"{self.hidden} / heads={self.heads} is odd; rotary positions need an even head size",
            )
        if self.kv_heads and self.heads % self.kv_heads:
            yield "kv_heads", f"{self.kv_heads} does not divide heads={self.heads}"

    def build(self) -> Made:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.ffn,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads or self.heads,
            vocab_size=self.vocab,
            max_position_embeddings=self.seq,
            attention_dropout=0.0,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
        return LlamaForCausalLM(config).train(), token_inputs(self.seq, self.packed)


@dataclass(frozen=True, slots=True)
class GptSize:
    """HF GPT-2 with tied embedding; every dropout is 0. packed: 1 for rows of several documents."""

    layers: int
    hidden: int
    heads: int
    vocab: int = 50257
    seq: int = 1024
    packed: int = 0

    def clashes(self) -> Iterator[tuple[str, str]]:
        if self.hidden % self.heads:
            yield "hidden", f"{self.hidden} is not a multiple of heads={self.heads}"

    def build(self) -> Made:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            n_embd=self.hidden,
            n_layer=self.layers,
            n_head=self.heads,
            vocab_size=self.vocab,
            n_positions=self.seq,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
        config.loss_type = "ForCausalLM"
        return GPT2LMHeadModel(config).train(), token_inputs(self.seq, self.packed)


@dataclass(frozen=True, slots=True)
class MlpSize:
    """A classifier of plain linear layers."""

    layers: int
    hidden: int
    features: int
    classes: int

    def clashes(self) -> Iterator[tuple[str, str]]:
        if self.layers < 2:
            yield "layers", f"{self.layers}: an MLP has at least 2 linear layers"

    def build(self) -> Made:
        inputs = {
            "x": torch.zeros(SAMPLES, self.features),
            "y": torch.zeros(SAMPLES, dtype=torch.int64),
        }
        return Mlp(self), inputs


class Mlp(nn.Module):
    """Linear layers with ReLU between them, and the cross-entropy of `y`."""

    def __init__(self, size: MlpSize) -> None:
        super().__init__()
        widths = [size.features, *[size.hidden] * (size.layers - 1), size.classes]
        modules: list[nn.Module] = []
        for wide, next_wide in pairwise(widths):
            modules += [nn.Linear(wide, next_wide), nn.ReLU()]
        self.net = nn.Sequential(*modules[:-1])

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x), y)


EXAMPLE_DOCUMENTS = 3
"""Of a row of an example: some end inside."""


def token_inputs(seq: int, packed: int = 0) -> Inputs:
    """Token ids and labels of a language model. packed: positions begin anew, labels are shifted."""
    names = ("input_ids", "labels", "shift_labels") if packed else ("input_ids", "labels")
    inputs = {name: torch.zeros(SAMPLES, seq, dtype=torch.int64) for name in names}
    if packed:
        inputs["position_ids"] = torch.arange(seq).repeat(SAMPLES, 1) % max(seq // EXAMPLE_DOCUMENTS, 1)
    return inputs


DIGITS = 18
"""Sizes have fewer, to be one of a tensor's integers."""

BUILTIN: Mapping[str, LlamaSize | GptSize | MlpSize] = {
    "llama-tiny": LlamaSize(4, 64, 4, 128, kv_heads=2, vocab=256, seq=64),
    "llama-3b": LlamaSize(26, 3200, 32, 8640),
    "llama-7b": LlamaSize(32, 4096, 32, 11008),
    "llama-13b": LlamaSize(40, 5120, 40, 13824),
    "llama-30b": LlamaSize(60, 6656, 52, 17920),
    "llama-32b": LlamaSize(60, 6656, 64, 17920, vocab=50304),
    "llama-70b": LlamaSize(80, 8192, 64, 28672, kv_heads=8),
    "gpt2-tiny": GptSize(4, 64, 4, vocab=256, seq=64),
    "gpt2": GptSize(12, 768, 12),
    "gpt-3b": GptSize(32, 2560, 32, vocab=50304, seq=4096),
    "gpt-7b": GptSize(32, 4096, 32, vocab=50304, seq=4096),
    "gpt-13b": GptSize(40, 5120, 40, vocab=50304, seq=4096),
    "gpt-32b": GptSize(60, 6656, 64, vocab=50304, seq=4096),
    "mlp": MlpSize(4, 64, 32, 16),
}


def builtin_factory(name: str, args: Mapping[str, str]) -> Callable[[], Made]:
    """The factory of a built-in name with some of its numbers changed."""
    size = BUILTIN[name]
    known = [field.name for field in fields(size)]
    bad = [(key, f"unknown; known are {', '.join(known)}") for key in args if key not in known]
    given = {key: text for key, text in args.items() if key in known}
    bad += [
        (key, f"{text!r}: wanted a positive whole number")
        for key, text in given.items()
        if not is_count(text)
    ]
    changes = {key: int(text) for key, text in given.items() if is_count(text)}
    changed = replace(size, **changes)  # type: ignore[arg-type]
    bad += list(changed.clashes())
    if bad:
        raise OptionError(
            f"bad arguments of the model {name}", details=bad, fix="give --arg key=value as above"
        )
    return changed.build


def is_count(text: str) -> bool:
    """Whether a text is a positive whole number that a size may be."""
    return text.isdecimal() and len(text) < DIGITS and int(text) > 0
