"""What people give to the Python API and what it says of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import HspmdError, OptionError, RunError, TraceError
from hspmd_compiler.runtime.batches.data import BatchShape, FactoryData

PLAN = {"pipelines": [{"stages": [{"devices": [0], "layers": 2}], "micro_batches": [2]}]}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


INPUTS = {"x": torch.zeros(2, 4)}


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: hspmd.compile(Net(), (torch.zeros(2, 4),), strategy=PLAN), TraceError, "inputs are a tuple"),
        (lambda: hspmd.compile(Net(), {}, strategy=PLAN), TraceError, "there are no example inputs"),
        (lambda: hspmd.compile(None, INPUTS, strategy=PLAN), OptionError, "the model is a NoneType"),
        (lambda: hspmd.compile(Net(), INPUTS, strategy=None), OptionError, "the strategy is a NoneType"),
        (lambda: hspmd.compile("lama-tiny", strategy=PLAN), OptionError, "did you mean 'llama-tiny'"),
        (
            lambda: hspmd.compile(torch.compile(Net()), INPUTS, strategy=PLAN),
            TraceError,
            "the model is what torch.compile made",
        ),
        (
            lambda: hspmd.compile(Net(), INPUTS, strategy=PLAN).verify(
                values=True, batch=(torch.zeros(2, 4),)
            ),
            OptionError,
            "a batch is a Tensor",
        ),
    ],
)
def test_mistakes_are_told(call: Callable[[], object], kind: type[HspmdError], words: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert words in str(caught.value)


def test_a_name_and_an_optimizers_name_are_enough() -> None:
    plan = {"pipelines": [{"stages": [{"devices": [0], "layers": 4}], "micro_batches": [2]}]}
    program = hspmd.compile("mlp", strategy=plan, optimizer="sgd")
    assert program.verify(values=True).values is not None


def test_batches_of_a_loader_that_are_no_dicts() -> None:
    data = FactoryData(lambda: iter([[torch.zeros(2, 4)]]), BatchShape(2, {"x": ((2, 4), "float32")}))
    with pytest.raises(RunError, match="a batch is a list") as caught:
        next(iter(data))
    assert "{'x': x, 'y': y}" in caught.value.fix
