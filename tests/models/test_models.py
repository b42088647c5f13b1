"""MODEL specs: built-in names, HF configs by content, factories of the user; and what is wrong with them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from hspmd_compiler.errors import OptionError, TraceError
from hspmd_compiler.models.builtin_models import BUILTIN
from hspmd_compiler.models.models import ModelSource, load_model, rebuild
from hspmd_compiler.trace.init_record import build_fake

FACTORIES = """
import torch
from torch import nn


def small(width: int = 4, name: str = "1", *, bias=True):
    model = nn.Linear(width, 2, bias=bias)
    model.named = name
    return model, {"x": torch.zeros(2, width)}


def needs(width):
    return nn.Linear(width, 2), {}


def broken():
    return nn.Linear(3, 2).no_such_attribute, {}


def wrong():
    return nn.Linear(3, 2)


def leaves():
    raise SystemExit(3)


NOT_A_FUNCTION = 3
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module in the current folder."""
    name = f"user_models_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FACTORIES)
    (tmp_path / "leaving.py").write_text("raise SystemExit(4)")
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3b", 3.4),
        ("llama-7b", 6.7),
        ("llama-13b", 13.0),
        ("llama-30b", 32.5),
        ("llama-32b", 32.8),
        ("llama-70b", 69.0),
        ("gpt2", 0.124),
        ("gpt-7b", 6.7),
    ],
)
def test_published_sizes(name: str, billions: float) -> None:
    model, inputs = build_fake(load_model(name, {"seq": "32"}).build)
    count = sum(p.numel() for p in model.parameters())
    assert math.isclose(count / 1e9, billions, rel_tol=0.01)
    assert {key: tuple(tensor.shape) for key, tensor in inputs.items()} == {
        "input_ids": (2, 32),
        "labels": (2, 32),
    }


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny", "mlp"])
def test_tiny_models_run_in_training_mode(name: str) -> None:
    model, inputs = load_model(name).build()
    output = model(**inputs)
    loss = output if isinstance(output, torch.Tensor) else output.loss
    assert loss.requires_grad and loss.dim() == 0
    assert model.training
    assert all(m.p == 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))


def test_arguments_change_sizes() -> None:
    args = {"layers": "2", "hidden": "48", "heads": "6", "kv_heads": "3", "vocab": "96", "seq": "16"}
    model, inputs = load_model("llama-tiny", args).build()
    config = model.config
    found = (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.vocab_size,
        inputs["labels"].shape[1],
    )
    assert found == (2, 48, 6, 3, 96, 16)
    assert not config.use_cache


def test_config_by_content(tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_layer": 1,
        "n_embd": 16,
        "n_head": 2,
        "vocab_size": 32,
        "n_positions": 8,
        "attn_pdrop": 0.25,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    for source in (load_model(str(path), {"n_layer": "2"}), load_model(str(tmp_path), {"n_layer": "2"})):
        path_free = json.loads(json.dumps(source.description()))
        assert str(tmp_path) not in json.dumps(path_free)
        model, inputs = rebuild(path_free).build()
        assert (model.config.n_layer, model.config.attn_pdrop) == (2, 0.25)
        assert inputs["input_ids"].shape == (2, 8)


@pytest.mark.parametrize("name", list(BUILTIN))
def test_descriptions_rebuild(name: str) -> None:
    description = load_model(name, {"layers": "3"}).description()
    assert rebuild(json.loads(json.dumps(description))).description() == description


def test_factory(factories: str) -> None:
    source = load_model(f"{factories}:small", {"width": "6", "name": "7", "bias": "false"})
    model, inputs = source.build()
    assert (model.in_features, model.bias, model.named) == (6, None, "7")
    assert inputs["x"].shape == (2, 6)
    again = rebuild(source.description(), trust=True)
    assert isinstance(again, ModelSource) and again.build()[0].in_features == 6


@pytest.mark.parametrize(
    ("spec", "args", "words"),
    [
        (
            "llama-tiny",
            {"layers": "0", "hiden": "3", "seq": "x"},
            ["hiden", "known are layers", "'0'", "'x'"],
        ),
        ("llama-tiny", {"heads": "3"}, ["64 is not a multiple of heads=3", "2 does not divide heads=3"]),
        ("mlp", {"layers": "1"}, ["at least 2"]),
        ("lama-tiny", {}, ["unknown model 'lama-tiny'", "did you mean 'llama-tiny'", "llama-70b"]),
        ("missing.json", {}, ["can't read the model configuration missing.json"]),
        ("no.such.module:make", {}, ["can't import 'no.such.module'", "ModuleNotFoundError"]),
        ("{user}.py:small", {}, ["name the module, not the file", ":FACTORY"]),
        ("leaving:small", {}, ["can't import 'leaving'", "SystemExit 4", "leaving.py:1"]),
        ("{user}:no_such", {}, ["there is no"]),
        ("{user}:NOT_A_FUNCTION", {}, ["is not a callable"]),
        (
            "{user}:small",
            {"hidden": "3", "depth": "4"},
            ["hidden unknown", "depth  unknown", "width, name, bias"],
        ),
        ("{user}:needs", {}, ["width missing"]),
    ],
)
def test_bad_specs(spec: str, args: dict[str, str], words: list[str], factories: str) -> None:
    with pytest.raises(OptionError) as caught:
        load_model(spec.format(user=factories), args)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", ["can't be built", "in broken", "no_such_attribute"]),
        ("wrong", ["returned Linear", "(model, example_inputs)"]),
        ("leaves", ["can't be built", "in leaves", "SystemExit 3"]),
    ],
)
def test_bad_factories(name: str, words: list[str], factories: str) -> None:
    with pytest.raises(TraceError) as caught:
        load_model(f"{factories}:{name}").build()
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("text", ["[]", "{", '{"layers": 3}'])
def test_bad_configs(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(OptionError):
        load_model(str(path))


def test_unknown_config_field(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gpt2", "n_layer": 1}')
    with pytest.raises(OptionError, match=r"n_layr +is not a field") as caught:
        load_model(str(path), {"n_layr": "2", "seq": "-1"})
    assert "'-1'" in str(caught.value)


def test_unknown_model_type(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "no-such-model"}')
    with pytest.raises(TraceError, match="can't be built"):
        load_model(str(path)).build()


BERT = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 32,
    "max_position_embeddings": 8,
}
T5 = {
    "model_type": "t5",
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 1,
    "num_heads": 2,
    "vocab_size": 32,
}


def configured(tmp_path: Path, config: dict[str, object], args: dict[str, str] | None = None) -> ModelSource:
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "pad_token_id": 0, "decoder_start_token_id": 0})
    )
    return load_model(str(tmp_path), {"seq": "4", **(args or {})})


@pytest.mark.parametrize(
    ("config", "name", "labels"),
    [
        (BERT, "BertForMaskedLM", {"labels": torch.zeros(2, 4, dtype=torch.int64)}),
        (BERT, "BertForSequenceClassification", {"labels": torch.zeros(2, dtype=torch.int64)}),
        (BERT | {"num_labels": 1}, "BertForSequenceClassification", {"labels": torch.zeros(2)}),
        (
            BERT | {"num_labels": 3, "problem_type": "multi_label_classification"},
            "BertForSequenceClassification",
            {"labels": torch.zeros(2, 3)},
        ),
        (BERT, "BertLMHeadModel", {"labels": torch.zeros(2, 4, dtype=torch.int64)}),
        (
            BERT,
            "BertForQuestionAnswering",
            {name: torch.zeros(2, dtype=torch.int64) for name in ("start_positions", "end_positions")},
        ),
        (T5, "T5ForConditionalGeneration", {"labels": torch.zeros(2, 4, dtype=torch.int64)}),
    ],
)
def test_the_class_that_a_config_names_is_made(
    config: dict[str, object], name: str, labels: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """With the batch of its task, of which it makes a loss; also from the description."""
    source = configured(tmp_path, config | {"architectures": [name]})
    model, inputs = rebuild(json.loads(json.dumps(source.description()))).build()
    assert type(model).__name__ == name
    assert {key: (value.dtype, value.shape) for key, value in inputs.items() if key != "input_ids"} == {
        key: (value.dtype, value.shape) for key, value in labels.items()
    }
    assert model(**inputs).loss.isfinite()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (BERT, ["bert doesn't name the class that is meant", "BertForMaskedLM", "--arg architectures=NAME"]),
        (BERT | {"architectures": ["BertModel"]}, ["returns hidden states, and no loss"]),
        (BERT | {"architectures": ["BertForPreTraining"]}, ["takes a batch that isn't known here"]),
        (BERT | {"architectures": ["GPT2LMHeadModel"]}, ["of another model type", "one of bert"]),
        (BERT | {"architectures": ["BertForMaskdLM"]}, ["nearest is BertForMaskedLM"]),
        (BERT | {"architectures": ["torch"]}, ["torch   is no class of transformers"]),
        (BERT | {"architectures": ["BertForMaskedLM", "BertModel"]}, ["names several classes"]),
        (BERT | {"architectures": [3]}, ["is not a list of names"]),
        (T5, ["t5 doesn't name the class that is meant", "T5ForConditionalGeneration"]),
    ],
)
def test_a_config_without_a_trainable_class_is_refused(
    config: dict[str, object], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(OptionError) as caught:
        configured(tmp_path, config).build()
    assert [word for word in words if word not in str(caught.value)] == []


def test_another_class_by_argument(tmp_path: Path) -> None:
    source = configured(tmp_path, BERT, {"architectures": "BertForTokenClassification"})
    assert type(source.build()[0]).__name__ == "BertForTokenClassification"
