"""More models of `transformers` than the matrix has room for, as tiny as those in it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator

from hspmd_compiler.coverage.model import SAMPLES, Batch, CoveredModel
from hspmd_compiler.coverage.transformers_models import (
    BART,
    CAUSAL,
    CLASSES,
    DECODER,
    FFN,
    HEADS,
    HIDDEN,
    IMAGES,
    LAYERS,
    MASKED,
    NO_DROPOUT,
    ROBERTA,
    SEQ,
    SEQUENCES,
    T5,
    VIT,
    VOCAB,
    WIDTHS,
    Fields,
    FromConfig,
    images,
    padded_tokens,
    tokens,
)

Draw = Callable[[Generator], Batch]
ENCODER: Fields = {**WIDTHS, **NO_DROPOUT, "vocab_size": VOCAB}
SMALL_TABLE: Fields = {**ENCODER, "embedding_size": 12}
GROUPED: Fields = {"num_key_value_heads": HEADS}
NARROW: Fields = {**GROUPED, "head_dim": HIDDEN // HEADS}
QUIET: Fields = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
GPT: Fields = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": HIDDEN, "n_positions": SEQ, "n_inner": FFN}
RELATIVE: Fields = {
    "relative_attention": True,
    "position_buckets": 4,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
DISTIL: Fields = {
    "vocab_size": VOCAB,
    "dim": HIDDEN,
    "hidden_dim": FFN,
    "n_layers": LAYERS,
    "n_heads": HEADS,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "max_position_embeddings": SEQ,
}
PYRAMID: Fields = {
    "image_size": 16,
    "patch_size": 2,
    "hidden_sizes": [6, 9],
    "depths": [1, 1],
    "num_stages": 2,
}

EXPERTS: Fields = {"num_experts_per_tok": 2}
LATENT: Fields = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 10,
    "first_k_dense_replace": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 6,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 6,
}
MAMBA: Fields = {"state_size": 4, "num_heads": 6, "head_dim": 8, "n_groups": 1, "chunk_size": 4}

DECODERS: dict[str, Fields] = {
    "gpt_neox": QUIET,
    "mpt": {
        "d_model": HIDDEN,
        "n_heads": HEADS,
        "n_layers": LAYERS,
        "expansion_ratio": 1,
        "max_seq_len": SEQ,
    },
    "gpt_bigcode": {**GPT, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "falcon": {**QUIET, "new_decoder_architecture": True, "num_kv_heads": HEADS, "alibi": False},
    "stablelm": {**GROUPED, **QUIET},
    "olmo2": GROUPED,
    "granite": GROUPED,
    "smollm3": GROUPED,
    "gemma": {"num_key_value_heads": 1, "head_dim": 8},
    "gemma3_text": {**NARROW, "query_pre_attn_scalar": 8, "sliding_window": 4},
    "phi": {**GROUPED, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "starcoder2": {**GROUPED, "residual_dropout": 0.0, "embedding_dropout": 0.0},
    "nemotron": NARROW,
    "mixtral": {**GROUPED, **EXPERTS, "num_local_experts": 4},
    "qwen3_moe": {**NARROW, **EXPERTS, "num_experts": 4, "moe_intermediate_size": 10},
    "deepseek_v3": {**GROUPED, **EXPERTS, **LATENT},
    "bloom": {**QUIET, "n_layer": LAYERS, "n_head": HEADS},
}
MASKERS: dict[str, Fields] = {
    "distilbert": DISTIL,
    "albert": SMALL_TABLE,
    "electra": SMALL_TABLE,
    "mpnet": {**ENCODER, "max_position_embeddings": SEQ + 2},
    "deberta": ENCODER,
    "deberta-v2": {**ENCODER, **RELATIVE},
    "xlm-roberta": ROBERTA,
}
TRANSLATORS: dict[str, Fields] = {
    "mt5": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "pegasus": BART,
    "marian": BART,
}
PAINTINGS: dict[str, Fields] = {
    "beit": {**VIT, "drop_path_rate": 0.0},
    "dinov2": {**VIT, "mlp_ratio": 1},
    "convnext": {**PYRAMID, "drop_path_rate": 0.0, "num_labels": CLASSES},
}


def classes(generator: Generator) -> Batch:
    """One class per text."""
    return padded_tokens(generator) | {"labels": torch.randint(CLASSES, (SAMPLES,), generator=generator)}


def spans(generator: Generator) -> Batch:
    """The bounds of an answer in each text."""
    asked = {key: value for key, value in padded_tokens(generator).items() if key != "labels"}
    return asked | {"start_positions": torch.tensor([1, 2, 0]), "end_positions": torch.tensor([3, 3, 2])}


def _models(auto_class: str, kinds: dict[str, Fields], batch: Draw = padded_tokens) -> list[CoveredModel]:
    return [CoveredModel(kind, FromConfig(kind, auto_class, fields), batch) for kind, fields in kinds.items()]


def _head(kind: str, task: str, fields: Fields, batch: Draw) -> CoveredModel:
    built = FromConfig(kind, f"AutoModelFor{task}", {**fields, "num_labels": CLASSES})
    return CoveredModel(f"{kind} {task}", built, batch)


MORE_MODELS: tuple[CoveredModel, ...] = (
    *_models(CAUSAL, {kind: {**DECODER, **fields} for kind, fields in DECODERS.items()}),
    *_models(CAUSAL, {"mamba2": {**DECODER, **MAMBA}}, tokens),
    *_models(MASKED, MASKERS),
    *_models(SEQUENCES, TRANSLATORS),
    *_models(IMAGES, PAINTINGS, images),
    _head("bert", "SequenceClassification", ENCODER, classes),
    _head("llama", "SequenceClassification", {**DECODER, "pad_token_id": 0, "loss_type": None}, classes),
    CoveredModel(
        "bert QuestionAnswering", FromConfig("bert", "AutoModelForQuestionAnswering", ENCODER), spans
    ),
)
