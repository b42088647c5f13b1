"""The survey: every operator and loss people train with is exact under every strategy, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.errors import HspmdError
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

from ..training.equal_to_eager import Case
from . import surveyed_losses, surveyed_operators
from .surveyed_models import SAMPLES, TOKENS, WIDTH, LossModel, Model, Wrapped

ALL, FIRST, SECOND = (0, 2), (0, 1), (1, 2)
MIXED = Strategy(
    (
        PipelineSpec((StageSpec((0, 1), FIRST), StageSpec((2,), SECOND)), (2, 1)),
        PipelineSpec((StageSpec((3,), ALL),), (3,)),
    )
)
STRATEGIES = {
    "tp2": Strategy((PipelineSpec((StageSpec((0, 1), ALL),), (SAMPLES,)),)),
    "dp": Strategy(
        (PipelineSpec((StageSpec((0,), ALL),), (2, 2)), PipelineSpec((StageSpec((1,), ALL),), (1, 1)))
    ),
    "mixed": MIXED,
}
QUICK = (
    "nn.PReLU",
    "nn.ReLU in place",
    "topk",
    "x[mask] = 0.5",
    "w.sort",
)
QUICK_LOSSES = ("cross entropy, 2d, weights, mean", "multilabel margin, mean")
REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "strides": (
        lambda x: x.as_strided((len(x), TOKENS, 7), (TOKENS * 8, 7, 1)),
        "no rule for operator aten.as_strided",
    ),
    "boolean selection": (lambda x: x[x > 0][0].expand(len(x), 1), "an index of the rows' dim"),
}


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def operator(name: str) -> Case:
    make, shape = surveyed_operators.entries()[name]
    batch = {"x": drawn(SAMPLES, TOKENS, WIDTH), "y": drawn(SAMPLES, TOKENS, WIDTH).flip(0)}
    return Case.of(lambda: Model(make, shape), batch)


def loss(name: str) -> Case:
    use, targets = surveyed_losses.entries()[name]
    generator = torch.Generator().manual_seed(2)
    batch = {key: draw(generator) for key, draw in targets.items()}
    return Case.of(lambda: LossModel(use), {"x": drawn(SAMPLES, TOKENS, WIDTH), **batch})


@pytest.mark.parametrize("name", QUICK)
def test_some_operators(name: str) -> None:
    operator(name).check(MIXED)


@pytest.mark.parametrize("name", QUICK_LOSSES)
def test_some_losses(name: str) -> None:
    loss(name).check(MIXED)


@pytest.mark.slow
@pytest.mark.parametrize("name", surveyed_operators.entries())
def test_every_operator(name: str) -> None:
    case = operator(name)
    for strategy in STRATEGIES.values():
        case.check(strategy)


@pytest.mark.slow
@pytest.mark.parametrize("name", surveyed_losses.entries())
def test_every_loss(name: str) -> None:
    case = loss(name)
    for strategy in STRATEGIES.values():
        case.check(strategy)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_for_a_reason(name: str) -> None:
    use, reason = REFUSED[name]
    batch = {"x": drawn(SAMPLES, TOKENS, WIDTH), "y": drawn(SAMPLES, TOKENS, WIDTH)}

    def build() -> nn.Module:
        return Model(lambda: Wrapped(nn.Identity(), lambda m, x: use(m(x))), None)

    with pytest.raises(HspmdError) as caught:
        Case.of(build, batch).check(MIXED)
    assert reason in caught.value.text()
