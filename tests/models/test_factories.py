"""What people give as a factory: what is compiled, what the manifest calls it, what a later proof says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.api import verify
from hspmd_compiler.artifact.store import load
from hspmd_compiler.cli.main import main
from hspmd_compiler.errors import ArtifactError, TraceError
from hspmd_compiler.models.models import rebuild, source_of_factory

PLAN = {"pipelines": [{"stages": [{"devices": [0], "layers": 2}], "micro_batches": [2]}]}
Made = tuple[nn.Module, dict[str, Tensor]]


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.functional.mse_loss(x, y)


def build(width: int = 4, how: str = "plain") -> Made:
    return Net(width), {"x": torch.zeros(2, width), "y": torch.zeros(2, width)}


class Maker:
    """Makes models in all the ways in which an object can."""

    def __call__(self) -> Made:
        return build()

    def make(self) -> Made:
        return build()

    @staticmethod
    def plain() -> Made:
        return build()


HERE = "tests.models.test_factories"
NAMES: dict[str, tuple[Callable[..., Made], str, str, dict[str, str]]] = {
    "function": (build, "factory", f"{HERE}:build", {}),
    "static": (Maker.plain, "factory", f"{HERE}:Maker.plain", {}),
    "partial": (
        functools.partial(build, 6, how="1"),
        "factory",
        f"{HERE}:build",
        {"width": "6", "how": "1"},
    ),
    "partial of a tensor": (
        functools.partial(build, how=torch.zeros(2)),  # type: ignore[arg-type]
        "nameless",
        f"functools.partial of {HERE}:build",
        {},
    ),
    "lambda": (lambda: build(), "nameless", f"{HERE}:<lambda>", {}),
    "object": (Maker(), "nameless", f"an object of {HERE}:Maker", {}),
    "method": (Maker().make, "nameless", f"{HERE}:Maker.make", {}),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_factory_is_known_by_its_name_where_it_has_one(name: str) -> None:
    factory, kind, spec, args = NAMES[name]
    source = source_of_factory(factory)
    assert source.description() == {"kind": kind, "name": spec, "args": args}
    if kind == "factory":
        again = rebuild(source.description(), trust=True).build()
        assert again[1]["x"].shape == factory()[1]["x"].shape


def test_a_lambda_is_compiled_and_proved_here_and_later_by_another_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = hspmd.compile(lambda: build(), strategy=PLAN)
    assert program.verify(values=True).values is not None
    program.save(tmp_path / "made")
    for trust in (False, True):
        with pytest.raises(ArtifactError, match="a factory without an importable name") as caught:
            verify(load(tmp_path / "made"), values=True, trust_model=trust)
        assert "--model own_module:factory" in caught.value.fix
    assert main(["verify", str(tmp_path / "made"), "--values", "--model", f"{HERE}:build"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("batch", [tuple, list, lambda pair: pair[0]])
def test_a_batch_without_names_is_told_the_names(batch: Callable[..., object]) -> None:
    with pytest.raises(TraceError) as caught:
        hspmd.compile(lambda: (Net(4), batch((torch.zeros(2, 4),) * 2)), strategy=PLAN)  # type: ignore[arg-type,return-value]
    assert caught.value.fix == "return model, {'x': ..., 'y': ...}"
    with pytest.raises(TraceError) as caught:
        hspmd.compile(Net(4), batch((torch.zeros(2, 4),) * 2), strategy=PLAN)  # type: ignore[arg-type]
    assert caught.value.fix == "pass example_inputs={'x': ..., 'y': ...}"
