"""One block traced in place of many: rows as in a trace of the whole model, or that trace itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from hspmd_compiler.errors import TraceError
from hspmd_compiler.models.builtin_models import builtin_factory
from hspmd_compiler.models.models import load_model
from hspmd_compiler.options import Capture
from hspmd_compiler.trace.blocks.trace_step import trace_step
from hspmd_compiler.trace.tracer import trace
from tests.quick import quick_are
from tests.trace.template_models import MODELS, Stack

Made = tuple[nn.Module, dict[str, torch.Tensor]]
BATCH = {"x": torch.zeros(2, 4), "y": torch.zeros(2, dtype=torch.int64)}
EXPANDED = {
    "plain": "3 of 6 blocks of blocks",
    "two stacks": "3 of 6 blocks of blocks, 3 of 8 blocks of more",
    "a list per block": "4 of 6 blocks of blocks",
    "batch norm": "3 of 6 blocks of blocks",
    "in place": "3 of 6 blocks of blocks",
    "two values": "3 of 6 blocks of blocks",
    "cache": "3 of 6 blocks of blocks",
    "dropout": "3 of 6 blocks of blocks",
    "width by place": "4 of 6 blocks of blocks",
    "buffers of other numbers": "3 of 6 blocks of blocks",
    "one is evaluated": "4 of 6 blocks of blocks",
    "one is frozen": "4 of 6 blocks of blocks",
    "one has a hook": "4 of 6 blocks of blocks",
    "the first is given to all": "5 of 12 blocks of blocks",
    "two classes in turn": "4 of 8 blocks of blocks",
    "two of one, one of another": "4 of 9 blocks of blocks",
    "one class after another": "4 of 8 blocks of blocks",
    "other classes at the ends": "4 of 9 blocks of blocks",
    "any order": "5 of 12 blocks of blocks",
    "two orders of two values": "9 of 18 blocks of blocks",
    "frozen up to a block": "8 of 18 blocks of blocks",
}
WHOLE = {
    "one is skipped": "of other values in block 5",
    "one is scaled": "aten.mul.Tensor in place of aten.native_layer_norm.default outside the blocks",
    "one without gradient": "aten.native_layer_norm_backward.default of other values in block 5",
    "one is detached": "aten.detach.default in place of",
    "one whole number": "aten.mul.Tensor of other values in block 4",
    "one is marked": "hspmd.comm.default in place of",
    "place in math": "aten.div.Tensor of other values in block 2",
    "place in a tensor": "constant of other values in block 2",
    "depth in math": "aten.div.Tensor of other values outside the blocks",
    "drop path rates": "no list of the model has blocks that are alike",
    "one layer in all places": "no list of the model has blocks that are alike",
    "a shared parameter": "blocks.0.up.weight is shared",
    "shared with the head": "blocks.3.down.weight is shared",
    "u-net": "aten.add.Tensor in place of",
    "the first is kept": "lies between blocks",
    "stack of all": "aten.stack.default reads an inner block",
    "auxiliary loss": "lies between blocks",
    "two values swapped": "of other values in block 3",
    "adapters": "lies between blocks",
    "frozen half": "reads other values of the block after it",
    "by number": "its forward takes blocks by number",
    "reads its device": "RuntimeError: no numbers here",
    "literal by place": "aten.mul.Tensor lies between blocks",
    "two have other hooks": "aten.mul.Tensor of other values in block 2",
    "the third is given to all": "reads other values of the block after it",
    "a tie across classes": "blocks.2.norm.weight is shared",
    "one of a class is scaled": "aten.mul.Tensor in place of aten.native_layer_norm.default outside",
}

QUICK = (
    *("plain", "cache", "width by place", "one is frozen", "one is skipped", "place in a tensor"),
    *("a shared parameter", "stack of all", "reads its device", "the first is given to all", "any order"),
)
"""Of each way to be expanded, and of each kind of reason why the whole model is traced."""


def test_every_model_is_expected() -> None:
    assert EXPANDED.keys() | WHOLE.keys() == MODELS.keys()


@pytest.mark.parametrize("name", quick_are(MODELS, QUICK))
def test_rows_are_those_of_the_whole_trace(name: str) -> None:
    model = MODELS[name]()
    whole = trace(copy.deepcopy(model), BATCH, batch=5)
    found = trace_step(model, BATCH, batch=5)
    if name in EXPANDED:
        assert found.how.startswith(f"{EXPANDED[name]}, which stand for all")
    else:
        assert found.how.startswith("the whole model, since ")
        assert WHOLE[name] in found.how
    assert found.graph.rows == whole.rows
    assert found.graph == whole
    assert list(found.graph.params) == list(whole.params)
    assert list(found.graph.mutated) == list(whole.mutated)


def test_three_of_sixty_layers_are_traced() -> None:
    factory = builtin_factory("llama-32b", {"seq": "64"})
    found = trace_step(factory, batch=4)
    assert found.how.startswith("3 of 60 blocks of model.layers")
    assert len(found.graph.layers) == 60 and len(found.graph.rows) > 13_000


def test_the_users_model_stays_as_it_is() -> None:
    model = Stack()
    before = {name: id(value) for name, value in (*model.named_modules(), *model.named_parameters())}
    trace_step(model, BATCH, batch=5)
    after = {name: id(value) for name, value in (*model.named_modules(), *model.named_parameters())}
    assert before == after
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_full_capture_traces_all() -> None:
    found = trace_step(Stack(), BATCH, batch=5, capture=Capture.FULL)
    assert found.how == "the whole model, as asked for"


class Shuffled(nn.Module):
    """Features in an order of each step's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, torch.randperm(8)]


def test_an_error_of_the_model_is_told_as_ever() -> None:
    with pytest.raises(TraceError, match="draws random numbers"):
        trace_step(Stack(lambda _: nn.Sequential(nn.Linear(8, 8), Shuffled())), BATCH, batch=5)


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "head_dim": 8,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES: dict[str, tuple[int, dict[str, object]]] = {
    "llama": (3, {}),
    "llama tied": (3, {"tie_word_embeddings": True}),
    "qwen3": (3, {}),
    "qwen3 windows": (4, {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}),
    "gemma2": (4, {"attn_implementation": "eager", "sliding_window": 4}),
    "gemma3_text": (4, {"num_hidden_layers": 12, "sliding_window": 4}),
    "mixtral": (3, {"num_local_experts": 4}),
    "mixtral auxiliary loss": (
        6,
        {"num_local_experts": 4, "experts_implementation": "batched_mm", "output_router_logits": True},
    ),
    "opt": (3, {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0, "attention_dropout": 0.0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", list(FAMILIES))
def test_causal_family(family: str, tmp_path: Path) -> None:
    traced, changes = FAMILIES[family]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family.split()[0], **SIZES, **changes}))
    _check_family(load_model(str(path), {"seq": "12"}).build, traced)


@pytest.mark.slow
@pytest.mark.parametrize("inverse_scale", [False, True])
def test_gpt2(inverse_scale: bool) -> None:
    def build() -> Made:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            n_embd=32,
            n_layer=6,
            n_head=4,
            vocab_size=64,
            n_positions=16,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            use_cache=False,
            scale_attn_by_inverse_layer_idx=inverse_scale,
        )
        return GPT2LMHeadModel(config).train(), _tokens()

    _check_family(build, 6 if inverse_scale else 3)


@pytest.mark.slow
def test_bert() -> None:
    def build() -> Made:
        from transformers import BertConfig, BertForMaskedLM

        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        sizes = {"num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 64}
        config = BertConfig(hidden_size=32, intermediate_size=48, **sizes, **dropout)
        return BertForMaskedLM(config).train(), _tokens()

    _check_family(build, 3)


@pytest.mark.slow
def test_vit() -> None:
    def build() -> Made:
        from transformers import ViTConfig, ViTForImageClassification

        sizes = {"num_hidden_layers": 6, "num_attention_heads": 4, "image_size": 16, "patch_size": 8}
        config = ViTConfig(hidden_size=32, intermediate_size=48, num_labels=5, **sizes)
        images = {"pixel_values": torch.zeros(2, 3, 16, 16), "labels": torch.zeros(2, dtype=torch.int64)}
        return ViTForImageClassification(config).train(), images

    _check_family(build, 3)


@pytest.mark.slow
def test_experts_in_every_second_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "program_search"))
    from models import bert_moe

    sizes = {"hidden": 16, "heads": 2, "ffn": 24, "vocab": 40, "seq": 8, "devices": 2}
    _check_family(lambda: bert_moe(layers=7, **sizes), 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("t5", "3 of 5 blocks of encoder.block, 3 of 5 blocks of decoder.block"),
        ("bart", "3 of 5 blocks of model.encoder.layers, 3 of 6 blocks of model.decoder.layers"),
    ],
)
def test_encoder_and_decoder(kind: str, how: str) -> None:
    def build() -> Made:
        from transformers import AutoConfig, AutoModelForSeq2SeqLM

        sizes = {"num_layers": 5, "encoder_layers": 5, "decoder_layers": 6, "d_kv": 8, "vocab_size": 64}
        widths = {"d_model": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_heads": 4}
        config = AutoConfig.for_model(kind, **sizes, **widths, decoder_start_token_id=0, use_cache=False)
        return AutoModelForSeq2SeqLM.from_config(config).train(), _tokens()

    found = trace_step(build, batch=5)
    whole = trace_step(build, batch=5, capture=Capture.FULL)
    assert found.graph == whole.graph
    assert found.how.startswith(how)


def _tokens() -> dict[str, torch.Tensor]:
    return {name: torch.zeros(2, 12, dtype=torch.int64) for name in ("input_ids", "labels")}


def _check_family(build: Callable[[], Made], traced: int) -> None:
    """Expanded and whole traces are equal; `traced` blocks of all were traced."""
    found = trace_step(build, batch=5)
    whole = trace_step(build, batch=5, capture=Capture.FULL)
    assert found.graph == whole.graph
    depth = len(whole.graph.layers)
    is_whole = traced == depth
    assert found.how.startswith("the whole model" if is_whole else f"{traced} of {depth} blocks of ")
