"""Recurrent layers that drop between them train like eager with the same masks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.ir.own_names import RANDOM_MASK
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy

from ..training.equal_to_eager import Case

WIDTH, TOKENS, SAMPLES = 4, 3, 4
FORMS: dict[str, dict[str, object]] = {
    "batch first": {"batch_first": True, "num_layers": 3},
    "both ways": {"bidirectional": True, "num_layers": 2},
}
QUICK = (("LSTM", "both ways"),)
STRATEGY = Strategy((P((S((0, 1), (0, 1)),), (2, 1)), P((S((2,), (0, 1)),), (1,))))


class Recurrent(nn.Module):
    """One of torch's recurrent stacks, and a loss of its outputs."""

    def __init__(self, kind: str, **options: object) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(WIDTH, WIDTH, **options)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first = self.rnn.batch_first
        value, _ = self.rnn(x if first else x.transpose(0, 1))
        value = value if first else value.transpose(0, 1)
        return nn.functional.mse_loss(value.sum(-1), y)


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (SAMPLES, TOKENS, WIDTH), "y": (SAMPLES, TOKENS)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def masks(case: Case) -> int:
    return [row.op for row in case.graph.rows].count(RANDOM_MASK)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param(kind, form, marks=() if (kind, form) in QUICK else pytest.mark.slow, id=f"{form}-{kind}")
        for kind in ("LSTM", "GRU", "RNN")
        for form in FORMS
    ],
)
def test_layers_drop(kind: str, form: str) -> None:
    options = FORMS[form]
    case = Case.of(lambda: Recurrent(kind, dropout=0.5, **options), batch())
    assert masks(case) == int(str(options["num_layers"])) - 1
    case.check(STRATEGY)


def test_projected_states_drop() -> None:
    case = Case.of(lambda: Recurrent("LSTM", dropout=0.5, num_layers=2, proj_size=2), batch())
    assert masks(case) == 1
    case.check(STRATEGY)


def test_no_mask_where_nothing_is_dropped() -> None:
    for model in (
        Recurrent("GRU", num_layers=2),
        Recurrent("GRU", dropout=0.5, num_layers=2).eval(),
    ):
        assert masks(Case.of(lambda model=model: model, batch())) == 0  # type: ignore[misc]
