"""An artifact is data: nothing that it names is imported or called, unless the user says so."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import Artifact, load
from hspmd_compiler.artifact.write import write
from hspmd_compiler.cli.main import main
from hspmd_compiler.errors import ArtifactError, HspmdError, OptionError
from hspmd_compiler.models.models import load_model, rebuild
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

ONE = Strategy((PipelineSpec((StageSpec((0,), (0, 2)),), (2,)),))
MODULE = """
import pathlib

import torch
from torch import nn

pathlib.Path({mark!r}).touch()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def build():
    return Net(), {{"x": torch.zeros(2, 4)}}
"""


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """An artifact whose manifest names a module of the user, and the file that its import leaves."""
    home, mark = tmp_path / "home", tmp_path / "imported"
    home.mkdir()
    (home / "foreign_model.py").write_text(MODULE.format(mark=str(mark)))
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", [*sys.path])
    program = hspmd.compile(load_model("foreign_model:build"), strategy=ONE)
    program.save(tmp_path / "artifact")
    assert program.verify(values=True).values is not None
    del sys.modules["foreign_model"]
    mark.unlink()
    yield tmp_path / "artifact", mark
    sys.modules.pop("foreign_model", None)


def described(artifact: Artifact, model: object) -> Artifact:
    return replace(artifact, manifest=replace(artifact.manifest, model=model))


def test_a_factory_is_not_imported_on_the_word_of_a_manifest(
    named: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, mark = named
    for flag in ("--values", "--rows"):
        assert main(["verify", str(directory), flag]) == 2
        told = capsys.readouterr().err
        assert "foreign_model:build" in told and "--model" in told and "--trust-model" in told
    assert not mark.exists() and "foreign_model" not in sys.modules
    assert main(["verify", str(directory), "--values", "--model", "foreign_model:build"]) == 0
    assert mark.exists()


def test_what_the_user_trusts_is_imported(named: tuple[Path, Path]) -> None:
    directory, mark = named
    assert main(["verify", str(directory), "--values", "--trust-model"]) == 0
    assert mark.exists()
    assert main(["verify", str(directory), "--trust-model", "--model", "mlp"]) == 2


def test_code_in_the_folder_of_an_artifact_is_never_imported(
    named: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where the user trusts the name, stands in the folder, or has it on Python's path."""
    directory, mark = named
    home = Path("foreign_model.py").resolve()
    home.rename(directory / "foreign_model.py")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", str(home.parent))])
    monkeypatch.chdir(directory)
    for extra in (["--trust-model"], ["--model", "foreign_model:build"]):
        assert main(["verify", ".", "--values", *extra]) == 2
    monkeypatch.syspath_prepend(str(directory))
    assert main(["verify", ".", "--values", "--trust-model"]) == 2
    assert "lies in an artifact" in capsys.readouterr().err
    assert main(["run", ".", "--data", "foreign_model:build", "--steps", "1"]) == 2
    assert not mark.exists()


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "factory", "name": "os:system", "args": {"command": "touch MARK"}},
        {"kind": "builtin", "name": "os:system", "args": {"command": "touch MARK"}},
        {"kind": "hf-config", "name": "os:system", "args": {"command": "touch MARK"}},
        {"kind": "other", "name": "os:system", "args": {"command": "touch MARK"}},
        {"kind": "builtin", "name": "mlp", "args": {"layers": "99999999999"}},
        {"kind": "builtin", "name": "mlp", "args": {"hidden": "99999999999"}},
        {"kind": "builtin", "name": "mlp", "args": {"hidden": "9" * 5000}},
        {"kind": "builtin", "name": "llama-tiny", "args": {"layers": "999999999"}},
        {"kind": "builtin", "name": "mlp", "args": {"hidden": 8}},
        {"kind": "live", "name": "os:system", "args": {}},
        {"kind": ["factory"], "name": {}, "args": []},
        ["os:system"],
        None,
    ],
    ids=lambda model: str(model)[:40],
)
def test_a_doctored_description_is_refused(model: object, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = json.dumps(model).replace("MARK", str(mark))
    right = hspmd.compile(load_model("mlp", {"layers": "2"}), strategy=ONE).artifact
    write(tmp_path / "artifact", described(right, json.loads(text)))
    with pytest.raises(HspmdError) as error:
        hspmd.api.verify(load(tmp_path / "artifact"), values=True)
    assert error.value.exit_code == 2 and not mark.exists()


CONFIG: dict[str, object] = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "vocab_size": 8}
CONFIG |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 4}


@pytest.mark.parametrize(
    "extra",
    [
        {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}},
        {"trust_remote_code": True},
        {"use_kernels": True},
        {"kernel_config": {"RMSNorm": "kernels-community/layer_norm:LlamaRMSNorm"}},
        {"attn_implementation": "kernels-community/flash-attn3"},
        {"_attn_implementation": "somebody/kernel@main:forward"},
        {"_attn_implementation_internal": "flash_attention_2"},
        {"attn_implementation": {"": "sdpa", "text_config": "kernels-community/flash-attn3"}},
        {"experts_implementation": "kernels-community/moe"},
        {"text_config": {"vision": [{"attn_implementation": "kernels-community/flash-attn3"}]}},
        {"backbone_config": {"use_pretrained_backbone": True}},
    ],
    ids=str,
)
def test_a_config_that_names_code_is_refused(extra: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | extra))
    with pytest.raises(OptionError, match="names code") as error:
        load_model(str(path))
    key = next(iter(extra))
    assert key in str(error.value)
    with pytest.raises(OptionError, match="names code"):
        rebuild({"kind": "hf-config", "name": "llama", "args": {}, "config": CONFIG | extra})


def test_a_kernel_is_no_argument_of_a_config_either(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"attn_implementation": "sdpa"}))
    assert load_model(str(path)).config is not None
    with pytest.raises(OptionError, match="names code"):
        load_model(str(path), {"attn_implementation": "somebody/kernel"})


def test_a_local_factory_is_known_where_it_was_compiled() -> None:
    def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
        return load_model("mlp", {"layers": "2"}).build()

    program = hspmd.compile(build, strategy=ONE)
    assert program.verify(values=True).values is not None
    assert program.verify(values=True, model=build).values is not None
    with pytest.raises(ArtifactError, match="factory"):
        hspmd.api.verify(program.artifact, values=True)
