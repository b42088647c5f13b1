"""Gradients that every rank of a stage forms of gathered factors, instead of summing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hspmd_compiler import comm
from hspmd_compiler.base.comm_plan import CommKind
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.program.boxes import volume
from hspmd_compiler.program.program import Program
from hspmd_compiler.strategy.strategy import (
    GradientForm,
    LayoutWish,
    Override,
    PipelineSpec,
    StageSpec,
    Strategy,
)

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
        x = comm(x, self.layout) if self.layout else x
        x = self.norm(x + self.down(torch.relu(self.up(x)))) @ self.matrix
        return functional.cross_entropy(self.tied(self.tied(x)).mean(1), y)


@cache
def case(layout: str) -> Case:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, TOKENS, WIDTH, generator=generator)
    anchors = None if layout else ("x",)
    return Case.of(lambda: Net(layout), {"x": x, "y": torch.arange(SAMPLES) % 4}, anchors)


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


def gathered_shapes(program: Program, rank: int = -1) -> list[tuple[int, ...]]:
    """What a rank gathers of tokens."""
    steps = [step for step in program.ranks[rank].comms if step.kind is CommKind.ALL_GATHER]
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


def test_pipelines_sum_what_their_stages_formed() -> None:
    """One addend a pipeline, not one a rank; micro-batches of several sizes, each with its own factors."""
    strategy = Strategy(
        (
            PipelineSpec((StageSpec((0, 1), (0, 1)),), (3, 2)),
            PipelineSpec((StageSpec((2,), (0, 1)),), (2, 1)),
        ),
        overrides=(WHOLE, *FACTORS),
    )
    program = case("[0,1 | 2] <S0x2 | R> hetero=0").check(strategy)
    assert givers(program, "up.weight") == [0, 2]
    assert givers(program, "norm.weight") == [0, 1, 2]
    assert {shape[0] for shape in gathered_shapes(program, rank=0)} == {2, 3}


def test_a_rank_that_computes_nothing_stores_all() -> None:
    """HAP's parameter holder: no samples, and the state, gradients and parameters of all."""
    program = case("[0,1,2] <S0(5,3,0)>").check(one_stage(WHOLE, *FACTORS, zero=3, weights=(0, 0, 1)))
    stored = [sum(volume(shard.kept) for shard in own.shards if shard.zero) for own in program.ranks]
    assert stored[:2] == [0, 0]
    assert stored[2] == sum(grad.numel() for grad in case("[0,1,2] <S0(5,3,0)>").eager.grads.values())


def givers(program: Program, name: str) -> list[int]:
    """Ranks that give an addend of a parameter's gradient."""
    return [
        own.rank
        for own in program.ranks
        for bucket in own.grad_buckets
        if any(piece.param == name and piece.src_boxes for piece in bucket.pieces)
    ]


@pytest.mark.parametrize(("sizes", "layout"), [((4, 4), "S0(2,1,1)"), ((4, 3, 1), "S0x3")])
def test_several_micro_batches_gather_each_their_factors(sizes: tuple[int, ...], layout: str) -> None:
    """Also one that has fewer samples than ranks, and no marker in the model but a layout in the strategy."""
    strategy = one_stage(WHOLE, *FACTORS)
    strategy = replace(
        strategy,
        pipelines=(replace(strategy.pipelines[0], micro_batches=sizes),),
        layouts=(LayoutWish("x", layout),),
    )
    program = case("").check(strategy)
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


@pytest.mark.parametrize("up", [0, 1, None])
@pytest.mark.parametrize("down", [0, 1, None])
def test_factors_beside_split_parameters_change_the_sum_or_are_refused(
    up: int | None, down: int | None
) -> None:
    """Ranks that split a weight or its input may have no addends of its gradient, so nothing is replaced."""

    def hold(name: str, split: int | None, gradient: GradientForm | None = None) -> Override:
        return Override(name, split=split, duplicate=split is None, gradient=gradient)

    plain = case(UNEVEN).check(one_stage(WHOLE, hold("up.weight", up), hold("down.weight", down)))
    for name, beside in (("up.weight", hold("down.weight", down)), ("down.weight", hold("up.weight", up))):
        split = up if name == "up.weight" else down
        strategy = one_stage(WHOLE, beside, hold(name, split, GradientForm.FACTORS))
        try:
            program = case(UNEVEN).check(strategy)
        except StrategyError as error:
            assert error.what == "gradient: factors changes nothing"
        else:
            assert summed(plain) - summed(program) == {name}


def test_factors_over_pipelines_are_refused(expect: Callable[[str, str], None]) -> None:
    """And told how to say the same; said so, factors are gathered, of unequal shares of samples too."""
    strategy = Strategy(
        tuple(PipelineSpec((StageSpec((rank,), (0, 1)),), (size,)) for rank, size in enumerate((5, 1, 2))),
        overrides=(factors("up"),),
    )
    with pytest.raises(StrategyError) as caught:
        case("").check(replace(strategy, layouts=(LayoutWish("x", "D"),)))
    expect("passes/factors_over_pipelines", str(caught.value))
    together = replace(one_stage(WHOLE, factors("up")), layouts=(LayoutWish("x", "S0(5,1,2)"),))
    assert not summed(case("").check(together)) & {"up.weight", "up.bias"}
