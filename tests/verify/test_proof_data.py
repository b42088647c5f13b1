"""What a proof steps on: drawn like the model's example, or given; and where eager itself isn't finite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.api import CompiledProgram
from hspmd_compiler.errors import OptionError, RunError, VerifyError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.artifact import STEPS
from hspmd_compiler.verify.proof_data import given_to, made_for
from hspmd_compiler.verify.random_batch import draw_batch

SAMPLES, WIDTH = 4, 8
SGD = OptimizerConfig(OptimizerName.SGD, lr=0.01)
PLAN = {
    "pipelines": [
        {"stages": [{"devices": [0, 1], "layers": 2}], "micro_batches": [2, 1]},
        {"stages": [{"devices": [2], "layers": 2}], "micro_batches": [1]},
    ]
}


class Prices(nn.Module):
    """Reads the logarithm of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, price: Tensor, y: Tensor) -> Tensor:
        x = torch.log(price)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(x, y)


class Root(Prices):
    """Zero under a root that a torch.where leaves out: finite forward, no numbers in backward."""

    def forward(self, price: Tensor, y: Tensor) -> Tensor:
        x = self.layers[1](self.layers[0](y)) * 0
        return torch.where(x > 0, x.sqrt(), x).square().mean() + price.square().mean()


def compiled(model: nn.Module, price: Tensor) -> CompiledProgram:
    inputs = {"price": price, "y": torch.randn(len(price), WIDTH)}
    return hspmd.compile(model, inputs, strategy=PLAN, optimizer=SGD)


def positive(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(SAMPLES, WIDTH, generator=generator) + 0.1 for name in ("price", "y")}


def test_inputs_are_drawn_in_the_range_of_an_example_without_negative_ones() -> None:
    report = compiled(Prices(), torch.rand(3, WIDTH) + 0.1).verify(values=True)
    told = json.loads(json.dumps(report.to_json()))["inputs"]
    assert told["price"].startswith("evenly from the example's range: 0.1")
    assert told["y"].startswith("of a normal distribution: -")
    page = StringIO()
    Console(file=page, width=120).print(report.rendered())
    assert "input price  evenly from the example's range: 0.1" in page.getvalue()


def test_eager_that_is_not_finite_is_told_with_its_place() -> None:
    """That is no wrong program; with data that the model is made for the same one is proved."""
    program = compiled(Prices(), torch.zeros(3, WIDTH))
    with pytest.raises(VerifyError, match=r"eager's own loss \(nan\) of step 1 is not finite") as caught:
        program.verify(values=True)
    error = caught.value
    assert "x = torch.log(price)" in error.at[0] and ("first", "log in the model, forward") in error.details
    assert any(name == "input price" and "normal" in text for name, text in error.details)
    assert "--data" in error.fix and "batch=" in error.fix
    report = program.verify(values=True, rows=True, batch=positive())
    assert dict(report.inputs)["price"].startswith("given: 0.1")


def test_gradients_that_are_no_numbers_are_told_with_their_place() -> None:
    with pytest.raises(VerifyError, match=r"gradient of layers\.\d\.\w+ of step 1 is not finite") as caught:
        compiled(Root(), torch.rand(3, WIDTH)).verify(values=True)
    assert "x.sqrt()" in caught.value.at[0] and "backward" in dict(caught.value.details)["first"]


def test_batches_are_taken_in_turn_and_held_to_the_program() -> None:
    program = compiled(Prices(), torch.rand(3, WIDTH))
    several = [positive(seed) for seed in range(STEPS + 2)]
    assert given_to(program.artifact.program, iter(several), STEPS) == several[:STEPS]
    assert program.verify(values=True, batch=several[:2]).values is not None
    with pytest.raises(RunError, match="a batch doesn't fit the program"):
        program.verify(values=True, batch={"price": torch.ones(3, WIDTH), "y": torch.ones(SAMPLES, WIDTH)})
    with pytest.raises(OptionError, match="gives no batch"):
        program.verify(values=True, batch=[])


class Classes(nn.Module):
    """Integers as places in another tensor, compared, as numbers; and truth values as fractions."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, label: Tensor, kind: Tensor, kept: Tensor) -> Tensor:
        logits = self.head(x).log_softmax(-1) * (kind.float() + 1).unsqueeze(-1)
        picked = logits.gather(-1, label.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        return -(picked * (label != 2) * kept).mean()


def test_integers_and_truth_values_take_all_values_that_they_can() -> None:
    examples = {
        "x": torch.zeros(2, WIDTH),
        "label": torch.zeros(2, dtype=torch.int64),
        "kind": torch.zeros(2, dtype=torch.int64),
        "kept": torch.tensor([0.0, 1.0]),
    }
    graph = trace(Classes(), examples, batch=60)
    drawn = draw_batch(graph, examples, torch.Generator().manual_seed(0))
    assert {name: each.how for name, each in drawn.items()} == {
        "x": "of a normal distribution",
        "label": "indexes below 5",
        "kind": "zeros and ones",
        "kept": "values of the example",
    }
    values = {name: set(each.values.flatten().tolist()) for name, each in drawn.items() if name != "x"}
    assert values == {"label": set(range(5)), "kind": {0, 1}, "kept": {0.0, 1.0}}


def batches(batch_size: int) -> Iterator[dict[str, Tensor]]:
    yield positive()


def breaking(batch_size: int) -> Iterator[dict[str, Tensor]]:
    raise ValueError("no such file")


def nothing() -> None:
    pass


def test_a_factory_gives_batches_as_to_a_run() -> None:
    program = compiled(Prices(), torch.rand(3, WIDTH)).artifact.program
    (found,) = made_for(program, f"{__name__}:batches", STEPS)
    assert torch.equal(found["price"], positive()["price"])
    for name, words in (("breaking", "ValueError no such file"), ("nothing", "TypeError 'NoneType'")):
        with pytest.raises(RunError, match="factory fails") as caught:
            made_for(program, f"{__name__}:{name}", STEPS)
        assert words in str(caught.value)
