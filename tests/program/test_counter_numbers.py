"""Random numbers by position: their distributions, their ranges in every type, and pieces of the whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import erf, exp, sqrt

import pytest
import torch
from torch import Tensor

from hspmd_compiler.program.kernels.counter_numbers import (
    EXPONENTIAL,
    INTEGER,
    KINDS,
    NORMAL,
    UNIFORM,
    random_numbers,
    whole_numbers,
)
from hspmd_compiler.program.kernels.counter_random import FactorPart, key_tensor

COUNT = 200_000
KOLMOGOROV = 2.0
"""Of the largest distance times the root of the count; more has a chance of 0.0007."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def drawn(kind: str, seed: int = 0, operator: int = 0, step: int = 0) -> Tensor:
    dtype = torch.int64 if kind == INTEGER else torch.float64
    return whole_numbers(key_tensor((seed, step, 0)), operator, kind, (COUNT,), dtype)


DISTRIBUTIONS: dict[str, Callable[[float], float]] = {
    UNIFORM: lambda x: x,
    NORMAL: lambda x: (1 + erf(x / sqrt(2))) / 2,
    EXPONENTIAL: lambda x: 1 - exp(-x),
    INTEGER: lambda x: x / 2**63,
}


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_distributed_as_they_should(kind: str) -> None:
    """No number of them below some bound is far from what it should be."""
    for operator in range(2):
        ordered = drawn(kind, operator=operator).sort().values[:: COUNT // 2000]
        wanted = torch.tensor([DISTRIBUTIONS[kind](float(x)) for x in ordered], dtype=torch.float64)
        found = torch.arange(len(ordered), dtype=torch.float64) * (COUNT // 2000) / COUNT
        assert float((wanted - found).abs().max()) * sqrt(COUNT) < KOLMOGOROV


@pytest.mark.parametrize(
    ("kind", "mean", "variance"), [(UNIFORM, 1 / 2, 1 / 12), (NORMAL, 0, 1), (EXPONENTIAL, 1, 1)]
)
def test_mean_and_variance(kind: str, mean: float, variance: float) -> None:
    numbers = drawn(kind)
    assert abs(float(numbers.mean()) - mean) < 5 * sqrt(variance / COUNT)
    assert float(numbers.var()) == pytest.approx(variance, rel=0.03)


def test_neighbours_operators_steps_and_seeds_are_independent() -> None:
    numbers = drawn(NORMAL)
    others = [
        drawn(NORMAL, 1),
        drawn(NORMAL, 0, 1),
        drawn(NORMAL, 0, 0, 1),
        numbers.roll(1),
        numbers.roll(64),
    ]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([numbers, other]))[0, 1])) < 5 / sqrt(COUNT)
    assert torch.equal(numbers, drawn(NORMAL))


PINNED = {
    UNIFORM: [0.3544, 0.1757, 0.4666],
    NORMAL: [-0.3733, -0.9317, -0.08385],
    EXPONENTIAL: [1.037, 1.739, 0.7623],
}
"""Of seed 7, step 3, operator 5: a resumed run continues with the numbers of an older version."""


@pytest.mark.parametrize("kind", PINNED)
def test_numbers_stay_as_they_are(kind: str) -> None:
    numbers = whole_numbers(key_tensor((7, 3, 0)), 5, kind, (3,), torch.float64)
    assert numbers.tolist() == pytest.approx(PINNED[kind], rel=1e-3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_ends_of_the_range(dtype: torch.dtype) -> None:
    """The least and the greatest hash: below one, finite, and above zero."""
    bits = torch.tensor([0, -1, 1 << 62, -(1 << 63)])
    uniform, normal, exponential = (KINDS[kind](bits, dtype=dtype) for kind in (UNIFORM, NORMAL, EXPONENTIAL))
    assert bool((uniform >= 0).all() and (uniform < 1).all())
    assert bool(normal.isfinite().all()) and float(normal[0]) == -float(normal[1])
    assert bool(
        (exponential > 0).all() and exponential.isfinite().all() and exponential.log().isfinite().all()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_types_hold_the_same_numbers(kind: str) -> None:
    """So that a proof in double precision speaks of the program in single precision."""
    make = partial(whole_numbers, key_tensor((0, 0, 0)), 0, kind, (1000,))
    wide, narrow = make(dtype=torch.float64), make(dtype=torch.float32)
    assert torch.allclose(wide, narrow.double(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_piece_is_that_of_the_whole(kind: str) -> None:
    dtype = torch.int64 if kind == INTEGER else torch.float64
    whole = whole_numbers(key_tensor((5, 9, 0)), 2, kind, (6, 4, 9), dtype)
    parts = [FactorPart(6, ((0, 2),), 1), FactorPart(4, ((0, 1), (2, 4))), FactorPart(9, ((3, 7),))]
    piece = random_numbers(key_tensor((5, 9, 3)), 2, kind, parts, dtype, "cpu")
    assert torch.equal(piece, whole[3:5][:, [0, 2, 3], 3:7].flatten())
