"""Bags of embeddings: exact where every sample is a row of ids, refused in words where bags have starts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.errors import RuleMissing

from ..survey.test_broken_before import EVERYWHERE
from ..training.equal_to_eager import Case

ROWS, WIDTH, SAMPLES, LENGTH = 9, 6, 4, 3


class Bags(nn.Module):
    """The sum, mean or maximum of the rows of a bag; weighted: by numbers that a layer computes."""

    def __init__(self, mode: str, padding: int | None, weighted: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, WIDTH, mode=mode, padding_idx=padding)
        self.weights = nn.Linear(LENGTH, LENGTH) if weighted else None
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, ids: Tensor, given: Tensor, y: Tensor) -> Tensor:
        weights = None if self.weights is None else self.weights(given).sin()
        x = self.bag(ids, per_sample_weights=weights)
        for layer in self.layers:
            x = x + layer(x).tanh()
        return nn.functional.cross_entropy(x, y)


def batch() -> dict[str, Tensor]:
    """The first bag is padding alone, the second has an id twice."""
    ids = torch.tensor([[2, 2, 2], [5, 5, 2], [0, 3, 8], [1, 5, 7]])
    return {"ids": ids, "given": torch.arange(12.0).reshape(SAMPLES, LENGTH) / 7, "y": torch.arange(SAMPLES)}


@pytest.mark.parametrize(
    ("mode", "padding", "weighted"),
    [("sum", None, False), ("sum", 2, True), ("mean", 2, False), ("max", None, False), ("max", 2, False)],
)
def test_bags_of_one_length(mode: str, padding: int | None, weighted: bool) -> None:
    program = Case.of(lambda: Bags(mode, padding, weighted), batch()).check(EVERYWHERE)
    kernels = {row.op for shared in program.classes.values() for part in shared.segments for row in part.rows}
    assert "hspmd.vocab_embedding" in kernels


class Flat(Bags):
    """Bags one after another, by where they start."""

    def forward(self, ids: Tensor, given: Tensor, y: Tensor) -> Tensor:
        x = self.bag(ids.flatten(), given[:, 0].long())
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.cross_entropy(x, y)


def test_bags_by_their_starts_mix_samples() -> None:
    flat = batch() | {"given": torch.arange(SAMPLES)[:, None] * 3.0}
    case = Case.of(lambda: Flat("sum", None, False), flat)
    with pytest.raises(RuleMissing, match="_embedding_bag") as caught:
        case.check(EVERYWHERE)
    assert "give bags as rows, ids of shape [samples, length]" in caught.value.fix
    assert any("self.bag(ids.flatten()" in line for line in caught.value.at)
