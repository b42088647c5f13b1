"""Models of `transformers`, unmodified, of 2 layers (encoder and decoder each) and of tiny odd sizes.

3 heads, 20 wide feed-forwards and 30 words divide unevenly by 2, 3 or both. Dropout is off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from .model import SAMPLES, Batch, CoveredModel

PACKAGE = "transformers"
HIDDEN, HEADS, FFN, LAYERS, VOCAB, SEQ = 24, 3, 20, 2, 30, 6
IMAGE, PATCH, CHANNELS, CLASSES = 8, 4, 3, 5
MEL_BINS = 8
IGNORE = -100
FIRST_WORD = 3
"""Smaller ids are padding and bounds of a sentence."""
Fields = Mapping[str, object]

CAUSAL = "AutoModelForCausalLM"
MASKED = "AutoModelForMaskedLM"
SEQUENCES = "AutoModelForSeq2SeqLM"
SPEECH = "AutoModelForSpeechSeq2Seq"
IMAGES = "AutoModelForImageClassification"

NO_BOUNDS: Fields = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "use_cache": False}
WIDTHS: Fields = {
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": SEQ,
}
NO_DROPOUT: Fields = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DECODER: Fields = {**WIDTHS, **NO_BOUNDS, "vocab_size": VOCAB, "loss_type": "ForCausalLM"}
GPT2: Fields = {
    **NO_BOUNDS,
    "n_embd": HIDDEN,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "vocab_size": VOCAB,
    "n_positions": SEQ,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "loss_type": "ForCausalLM",
}
VIT: Fields = {**WIDTHS, **NO_DROPOUT, "image_size": IMAGE, "patch_size": PATCH, "num_labels": CLASSES}
T5: Fields = {
    "d_model": HIDDEN,
    "d_kv": HIDDEN // HEADS,
    "d_ff": FFN,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "vocab_size": VOCAB,
    "dropout_rate": 0.0,
    "use_cache": False,
    "decoder_start_token_id": 0,
}
BART: Fields = {
    "d_model": HIDDEN,
    **{f"{side}_layers": LAYERS for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": FFN for side in ("encoder", "decoder")},
    "vocab_size": VOCAB,
    "max_position_embeddings": SEQ,
    "dropout": 0.0,
    "use_cache": False,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
ROBERTA: Fields = {
    **WIDTHS,
    **NO_DROPOUT,
    "vocab_size": VOCAB,
    "max_position_embeddings": SEQ + 2,
    "pad_token_id": 1,
}
OPT: Fields = {
    "ffn_dim": FFN,
    "word_embed_proj_dim": HIDDEN,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
WHISPER: Fields = {
    **BART,
    "num_mel_bins": MEL_BINS,
    "max_source_positions": SEQ,
    "max_target_positions": SEQ,
}


@dataclass(frozen=True, slots=True)
class FromConfig:
    """Builds a model from its `model_type`, the name of its auto class and fields of its configuration."""

    kind: str
    auto_class: str
    fields: Fields

    def __call__(self) -> nn.Module:
        import transformers

        config = transformers.AutoConfig.for_model(self.kind, **self.fields)
        model: nn.Module = getattr(transformers, self.auto_class).from_config(config)
        return model.train()


def tokens(generator: Generator) -> Batch:
    """Token ids and labels; every sample ignores another number of labels at its end."""
    ids = torch.randint(FIRST_WORD, VOCAB, (SAMPLES, SEQ), generator=generator)
    return {"input_ids": ids, "labels": ids.masked_fill(~_kept(), IGNORE)}


def padded_tokens(generator: Generator) -> Batch:
    """Token ids, labels, and a mask of samples that are padded to the right."""
    return tokens(generator) | {"attention_mask": _kept().to(torch.int64)}


def images(generator: Generator) -> Batch:
    """Pixels, and the class of each image."""
    pixels = torch.randn(SAMPLES, CHANNELS, IMAGE, IMAGE, generator=generator)
    return {"pixel_values": pixels, "labels": torch.randint(CLASSES, (SAMPLES,), generator=generator)}


def speech(generator: Generator) -> Batch:
    """Mel features, two frames per position, and labels."""
    features = torch.randn(SAMPLES, MEL_BINS, 2 * SEQ, generator=generator)
    return {"input_features": features, "labels": tokens(generator)["labels"]}


def _kept() -> Tensor:
    lengths = SEQ - torch.arange(SAMPLES)
    return torch.arange(SEQ) < lengths[:, None]


def _model(
    name: str, kind: str, auto_class: str, fields: Fields, batch: Callable[[Generator], Batch] = tokens
) -> CoveredModel:
    return CoveredModel(name, FromConfig(kind, auto_class, fields), batch, needs=(PACKAGE,))


def _decoder(
    name: str, kind: str, batch: Callable[[Generator], Batch] = tokens, **fields: object
) -> CoveredModel:
    return _model(name, kind, CAUSAL, {**DECODER, **fields}, batch)


TRANSFORMERS_MODELS: tuple[CoveredModel, ...] = (
    _decoder("Llama", "llama"),
    _decoder("Llama, grouped queries, mask", "llama", padded_tokens, num_key_value_heads=1),
    _decoder("Mistral", "mistral", padded_tokens, num_key_value_heads=1, head_dim=8, sliding_window=4),
    _model("GPT-2", "gpt2", CAUSAL, GPT2),
    _decoder("OPT", "opt", padded_tokens, **OPT),
    _model("BERT", "bert", MASKED, {**WIDTHS, **NO_DROPOUT, "vocab_size": VOCAB}, padded_tokens),
    _model("RoBERTa", "roberta", MASKED, ROBERTA, padded_tokens),
    _model("ViT", "vit", IMAGES, VIT, images),
    _decoder("Qwen2", "qwen2", num_key_value_heads=1),
    _decoder("Qwen3", "qwen3", num_key_value_heads=3, head_dim=8),
    _decoder("Gemma 2", "gemma2", num_key_value_heads=3, head_dim=8, query_pre_attn_scalar=8),
    _decoder("Phi-3", "phi3", num_key_value_heads=3, resid_pdrop=0.0, embd_pdrop=0.0),
    _model("T5", "t5", SEQUENCES, T5, padded_tokens),
    _model("BART", "bart", SEQUENCES, BART, padded_tokens),
    _model("Whisper", "whisper", SPEECH, WHISPER, speech),
)
