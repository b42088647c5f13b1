"""Gradients that every rank of a stage forms of gathered factors, instead of summing them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hspmd_compiler import comm
from hspmd_compiler.base.comm_plan import CommKind
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.program.program import Program
from hspmd_compiler.strategy.strategy import GradientForm, Override, PipelineSpec, StageSpec, Strategy

from .equal_to_eager import Case

SAMPLES, TOKENS, WIDTH = 8, 3, 6
WHOLE = Override("**", duplicate=True)
UNEVEN = "[0,1,2] <S0(5,1,2)>"


class Net(nn.Module):
    """Linear layers over tokens, a norm, a product without a layer, and a table that is read twice."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.up, self.down = nn.Linear(WIDTH, 10), nn.Linear(10, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.matrix = nn.Parameter(torch.zeros(WIDTH, 4))
        self.tied = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = comm(x, self.layout)
        x = self.norm(x + self.down(torch.relu(self.up(x)))) @ self.matrix
        return functional.cross_entropy(self.tied(self.tied(x)).mean(1), y)


@cache
def case(layout: str) -> Case:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, TOKENS, WIDTH, generator=generator)
    return Case.of(lambda: Net(layout), {"x": x, "y": torch.arange(SAMPLES) % 4})


def one_stage(*overrides: Override, zero: int = 0, weights: tuple[int, ...] | None = None) -> Strategy:
    stage = StageSpec((0, 1, 2), (0, 1), zero_shares=weights)
    return Strategy((PipelineSpec((stage,), (SAMPLES,)),), overrides=overrides, zero=zero)


def factors(match: str) -> Override:
    return Override(match, duplicate=True, gradient=GradientForm.FACTORS)


FACTORS = (factors("up"), factors("down"), factors("matrix"))


def summed(program: Program) -> set[str]:
    """Parameters of whose gradients ranks sum addends."""
    buckets = [bucket for own in program.ranks for bucket in own.grad_buckets]
    return {piece.param for bucket in buckets if len(bucket.group) > 1 for piece in bucket.pieces}


def gathered_shapes(program: Program) -> list[tuple[int, ...]]:
    """What the last rank gathers of tokens."""
    steps = [step for step in program.ranks[-1].comms if step.kind is CommKind.ALL_GATHER]
    return [step.dst_shape for step in steps if step.dst_shape is not None and len(step.dst_shape) == 3]


def test_factors_are_gathered_and_gradients_are_not_summed() -> None:
    """Of samples cut 5, 1, 2; a bias takes the gradient of its output that the weight has gathered."""
    plain = case(UNEVEN).check(one_stage(WHOLE))
    assert summed(plain) == set(case(UNEVEN).eager.grads)
    assert not gathered_shapes(plain)
    program = case(UNEVEN).check(one_stage(WHOLE, *FACTORS))
    assert summed(program) == {"norm.weight", "norm.bias", "tied.weight", "tied.bias"}
    widths = [WIDTH, 10, 10, WIDTH, WIDTH]  # the gradient behind `matrix` is gathered before it is spread
    assert sorted(gathered_shapes(program)) == sorted((SAMPLES, TOKENS, width) for width in widths)


@pytest.mark.parametrize("zero", [1, 3])
def test_owners_keep_their_part(zero: int) -> None:
    """Each rank has the whole gradient, so nothing of it moves to who stores it."""
    program = case(UNEVEN).check(one_stage(WHOLE, *FACTORS, zero=zero, weights=(2, 0, 3)))
    assert summed(program) == {"norm.weight", "norm.bias", "tied.weight", "tied.bias"}


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("not_products", one_stage(WHOLE, factors("**"))),
        ("no_samples_cut", one_stage(Override("up", gradient=GradientForm.FACTORS))),
    ],
)
def test_other_gradients_are_refused(
    name: str, strategy: Strategy, expect: Callable[[str, str], None]
) -> None:
    layout = UNEVEN if name == "not_products" else "[0,1,2] <Dx3>"
    with pytest.raises(StrategyError) as caught:
        case(layout).check(strategy)
    expect(f"passes/factors_{name}", str(caught.value))


def test_factors_over_pipelines_are_refused(expect: Callable[[str, str], None]) -> None:
    strategy = Strategy(
        tuple(PipelineSpec((StageSpec((rank,), (0, 1)),), (4,)) for rank in range(2)),
        overrides=(factors("up"),),
    )
    with pytest.raises(StrategyError) as caught:
        case("[0 | 1] <R | R> hetero=0").check(strategy)
    expect("passes/factors_over_pipelines", str(caught.value))
