"""Which layers a strategy counts: through all lists, in the order in which the model registers them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hspmd_compiler as hspmd
from hspmd_compiler.cli.main import main
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.trace.tracer import trace

WIDTH, CLASSES = 6, 3


def tower() -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))


class Towers(nn.Module):
    """Two lists side by side; the one that is registered last runs first."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = tower(), tower()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for own in self.first:
            x = own(x).tanh()
        for other in self.second:
            z = other(z + x).tanh()
        return nn.functional.cross_entropy(self.head(z), y)


class Alone(nn.Module):
    """No list of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(x), y)


class Numbered(nn.Module):
    """Layers in a dict whose keys are numbered, enough of them that one may be traced for all."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({f"block{i}": nn.Linear(WIDTH, WIDTH) for i in range(5)})
        self.parts = nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "head": nn.Linear(WIDTH, CLASSES)})

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.blocks.values():
            x = layer(x).tanh()
        return nn.functional.cross_entropy(self.parts["head"](self.parts["norm"](x)), y)


def batch(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(3, WIDTH) for name in names} | {"y": torch.zeros(3, dtype=torch.int64)}


def towers() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return Towers(), batch("x", "z")


def alone() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return Alone(), batch("x")


def test_trace_prints_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", f"{__name__}:towers"]) == 0
    shown = capsys.readouterr().out
    for number, path in enumerate(("second.0", "second.1", "first.0", "first.1")):
        assert f"{number}  {path}\n" in shown
    assert main(["trace", f"{__name__}:alone"]) == 0
    assert "0  the whole model: it has no list of several layers\n" in capsys.readouterr().out


def test_a_list_that_runs_before_the_one_registered_before_it() -> None:
    stages = (StageSpec((0,), (0, 1)), StageSpec((1, 2), (1, 3)), StageSpec((3,), (3, 4)))
    strategy = Strategy((PipelineSpec(stages, (2, 1)),))
    hspmd.compile(*towers(), strategy=strategy).verify(values=True)


def test_a_model_without_layers_is_not_cut_in_stages() -> None:
    stages = (StageSpec((0,), (0, 1)), StageSpec((1,), (1, 2)))
    with pytest.raises(StrategyError, match="one value breaks a rule") as raised:
        hspmd.compile(*alone(), strategy=Strategy((PipelineSpec(stages, (2, 1)),)))
    assert "1 + 1 = 2 layers: the model has 1, every pipeline runs all" in raised.value.text()


def test_a_numbered_dict_holds_layers_and_one_of_names_does_not() -> None:
    stages = (StageSpec((0,), (0, 2)), StageSpec((1,), (2, 5)))
    model = Numbered()
    compiled = hspmd.compile(model, batch("x"), strategy=Strategy((PipelineSpec(stages, (2, 1)),)))
    compiled.verify(values=True)
    graph = trace(model, batch("x"), batch=3)
    assert graph.layers == tuple(f"blocks.block{i}" for i in range(5))
