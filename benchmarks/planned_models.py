"""Nine models to plan for, in full size and shrunken: as many layers, heads and experts, but narrow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "program_search"))
import models as search_models

Inputs = dict[str, Tensor]
Made = tuple[nn.Module, Inputs]
Fields = dict[str, object]
Factory = Callable[[], Made]
FACTORIES = {"VGG19": "vgg19", "ViT": "vit", "BERT-Base": "bert", "BERT-MoE": "bert_moe"}
CAUSAL, IMAGES = "AutoModelForCausalLM", "AutoModelForImageClassification"
ALL_TOKENS = "all_tokens"
SAMPLES = 2
"""Of an example; a plan says how many a step has."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model by its factories. batch: samples of a planned step."""

    name: str
    full: Factory
    small: Factory
    batch: int

    @property
    def file_name(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())


def _of_search(name: str, shrunken: Fields) -> PlannedModel:
    """One of HAP's four, whose sizes are the published ones."""
    factory = getattr(search_models, FACTORIES[name])
    full, small = (partial(factory, batch=SAMPLES, **sizes) for sizes in ({}, shrunken))
    return PlannedModel(name, full, small, 256)


def _of_transformers(
    name: str,
    kind: tuple[str, str],
    fields: Fields,
    shrunken: Fields,
    inputs: tuple[Inputs, Inputs],
    batch: int,
) -> PlannedModel:
    """kind: the configuration's and the class. inputs: of the model in full size, and of the shrunken one."""
    full = partial(_build, *kind, fields, inputs[0])
    small = partial(_build, *kind, {**fields, **shrunken}, inputs[1])
    return PlannedModel(name, full, small, batch)


def _build(kind: str, auto_class: str, fields: Fields, inputs: Inputs) -> Made:
    import transformers
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(ALL_TOKENS, experts_on_all_tokens)
    config = transformers.AutoConfig.for_model(kind, **fields)
    return getattr(transformers, auto_class).from_config(config).train(), inputs


def experts_on_all_tokens(experts: nn.Module, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """What Mixtral's experts compute, by the library's interface for such: each on all tokens, weighted.

    The library's own forms sort the tokens of all samples, which data parallelism can't split, or copy an
    expert's matrices for each token.
    """
    shares = (nn.functional.one_hot(chosen, experts.num_experts) * weights.unsqueeze(-1)).sum(1)
    gate, up = torch.einsum("td,efd->tef", x, experts.gate_up_proj).chunk(2, dim=-1)
    made = torch.einsum("tef,edf->ted", experts.act_fn(gate) * up, experts.down_proj)
    return (made * shares.unsqueeze(-1)).sum(1)


def tokens(length: int) -> Inputs:
    return {name: torch.zeros(SAMPLES, length, dtype=torch.int64) for name in ("input_ids", "labels")}


def images(side: int) -> Inputs:
    return {
        "pixel_values": torch.zeros(SAMPLES, 3, side, side),
        "labels": torch.zeros(SAMPLES, dtype=torch.int64),
    }


NARROW: Fields = {"hidden": 24, "ffn": 48}
SHORT: Fields = {"vocab": 40, "seq": 8}
DECODER: Fields = {"use_cache": False, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
PLANNED_MODELS = (
    _of_search("VGG19", {"channels": 4, "ffn": 32}),
    _of_search("ViT", {**NARROW, "image": 8}),
    _of_search("BERT-Base", {**NARROW, **SHORT}),
    _of_search("BERT-MoE", {**NARROW, **SHORT}),
    _of_transformers(
        "Llama, grouped queries",
        ("llama", CAUSAL),
        {
            **DECODER,
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "vocab_size": 32000,
        },
        {"hidden_size": 32, "intermediate_size": 44, "vocab_size": 40},
        (tokens(512), tokens(8)),
        64,
    ),
    _of_transformers(
        "ResNet-50",
        ("resnet", IMAGES),
        {"num_labels": 1000},
        {"embedding_size": 4, "hidden_sizes": [16, 32, 64, 128], "num_labels": 8},
        (images(224), images(64)),
        256,
    ),
    _of_transformers(
        "ViT-Base/16",
        ("vit", IMAGES),
        {"num_labels": 1000},
        {"hidden_size": 24, "intermediate_size": 48, "image_size": 32, "num_labels": 8},
        (images(224), images(32)),
        256,
    ),
    _of_transformers(
        "T5-Base",
        ("t5", "AutoModelForSeq2SeqLM"),
        {
            "d_model": 768,
            "d_kv": 64,
            "d_ff": 3072,
            "num_layers": 12,
            "num_heads": 12,
            "decoder_start_token_id": 0,
            "use_cache": False,
        },
        {"d_model": 24, "d_kv": 2, "d_ff": 48, "vocab_size": 40},
        (tokens(128), tokens(8)),
        128,
    ),
    _of_transformers(
        "Mixtral",
        ("mixtral", CAUSAL),
        {
            **DECODER,
            "hidden_size": 512,
            "intermediate_size": 1792,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "num_local_experts": 8,
            "experts_implementation": ALL_TOKENS,
            "vocab_size": 32000,
        },
        {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 40},
        (tokens(256), tokens(8)),
        64,
    ),
)
