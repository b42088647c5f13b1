"""With a home, a model's step is proved to be a weighted sum of its steps on parts of a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.proved_loss import LossKind, ProvedLabels, ProvedLoss
from hspmd_compiler.errors import VerifyError
from hspmd_compiler.verify.reference import Reference
from hspmd_compiler.verify.switching.parts_of_batch import prove_parts
from tests.bundles.samples import STRATEGIES

Loss = Callable[[Tensor, Tensor], Tensor]


class Layers(nn.Module):
    """A few layers and a loss of their output."""

    def __init__(self, loss: Loss, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(layers))
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.loss(x, y)


def reference(loss: Loss) -> Reference:
    torch.manual_seed(0)
    return Reference(lambda: Layers(loss), {k: v.clone() for k, v in Layers(loss).state_dict().items()}, None)


def batch(samples: int) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return {key: torch.randn(samples, 6, generator=drawn) for key in ("x", "y")}


def contrasted(x: Tensor, y: Tensor) -> Tensor:
    """Each sample against all others: no sum over parts."""
    return nn.functional.cross_entropy(x @ y.T, torch.arange(len(x), device=x.device))


def test_weights_are_found() -> None:
    """Shares of samples in a mean, 1 in a sum."""
    mean = prove_parts(reference(nn.functional.mse_loss), batch(6), draws=False)
    assert mean.samples == (2, 4) and mean.weights == pytest.approx((2 / 6, 4 / 6))
    total = prove_parts(reference(lambda x, y: (x - y).square().sum()), batch(6), draws=False)
    assert total.weights == pytest.approx((1.0, 1.0)) and total.error < 1e-10


def test_samples_that_look_at_others_are_refused(expect: Callable[[str, str], None]) -> None:
    with pytest.raises(VerifyError) as caught:
        prove_parts(reference(contrasted), batch(6), draws=False)
    expect("cli/parts_refused", str(caught.value))


def test_what_can_not_be_asked_is_told() -> None:
    one = prove_parts(reference(nn.functional.mse_loss), batch(1), draws=False)
    assert one.to_json() == {"left_out": "a batch has one sample"}
    drawn = prove_parts(reference(nn.functional.mse_loss), batch(6), draws=True)
    assert "random numbers" in str(drawn.rendered())


def test_a_bundle_with_a_home_is_asked() -> None:
    torch.manual_seed(0)
    inputs = {"x": torch.zeros(2, 6), "y": torch.zeros(2, 6)}
    strategies = {name: STRATEGIES[name] for name in ("narrow", "deep")}
    model = Layers(nn.functional.mse_loss, layers=4)
    bundle = hspmd.compile_bundle(model, inputs, strategies=strategies, home="narrow", switch=())
    report = bundle.verify(values=True).to_json()
    assert report["parts"]["samples"] == [2, 2]
    assert report["parts"]["weights"] == pytest.approx([0.5, 0.5])
    assert bundle.loss == ProvedLoss(LossKind.SAMPLES) and report["parts"]["loss"] == "a mean over samples"


def labelled(samples: int) -> dict[str, Tensor]:
    return {"x": batch(samples)["x"], "y": torch.arange(samples) % 6}


def test_numbers_are_those_of_the_proved_kind(expect: Callable[[str, str], None]) -> None:
    """Some labels of the first part don't count: shares of samples are other weights than those of labels."""
    counted = ProvedLoss(LossKind.LABELS, ProvedLabels("y", -100, 0))
    found = prove_parts(reference(nn.functional.cross_entropy), labelled(9), draws=False, loss=counted)
    assert found.samples == (3, 6) and found.weights == pytest.approx((2 / 8, 6 / 8))
    with pytest.raises(VerifyError) as caught:
        prove_parts(
            reference(lambda x, y: nn.functional.cross_entropy(x, y, reduction="sum")),
            labelled(9),
            draws=False,
            loss=counted,
        )
    expect("cli/parts_of_another_kind", str(caught.value))
