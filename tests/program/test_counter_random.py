"""Random masks by position: the published generator, statistics, and pieces that are those of the whole."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from hspmd_compiler.program.kernels import counter_random
from hspmd_compiler.program.kernels.counter_random import (
    GOLDEN,
    WORDS,
    FactorPart,
    Stream,
    key_tensor,
    mixed,
    random_mask,
    signed,
    whole_mask,
)

SHAPE = (40, 50, 60)
SIGMAS = 5
PUBLISHED = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
"""First numbers of SplitMix64 from the seed 1234567, as its authors' C code prints them."""


def drawn(seed: int = 0, operator: int = 0, step: int = 0, keep: float = 0.9) -> Tensor:
    return whole_mask(key_tensor((seed, step, 0)), operator, keep, SHAPE, torch.float64)


def test_numbers_are_those_of_splitmix64() -> None:
    counters = torch.arange(1, 5) * signed(GOLDEN) + 1234567
    assert [number % WORDS for number in mixed(counters).tolist()] == PUBLISHED


BITS = ["00000100", "00110110", "01100001", "11000011"]
"""Of the mask of shape [4, 8] that keeps half, seed 7, step 3, operator 5."""


def test_masks_stay_as_they_are() -> None:
    """A resumed run continues with the masks of an older version: these bits may not change."""
    mask = whole_mask(key_tensor((7, 3, 0)), 5, 0.5, (4, 8), torch.int64)
    assert ["".join(map(str, row)) for row in mask.tolist()] == BITS


@pytest.mark.parametrize("keep", [0.9, 0.5, 0.1, 0.999])
def test_the_mean_is_the_probability(keep: float) -> None:
    mask = drawn(keep=keep)
    spread = (keep * (1 - keep) / mask.numel()) ** 0.5
    assert abs(float(mask.mean()) - keep) < SIGMAS * spread
    for dim in range(3):
        lines = mask.mean(dim=[other for other in range(3) if other != dim])
        count = mask.numel() // len(lines)
        assert float((lines - keep).abs().max()) < SIGMAS * (keep * (1 - keep) / count) ** 0.5


def test_everything_and_nothing() -> None:
    assert bool(drawn(keep=1.0).all())
    assert not bool(drawn(keep=0.0).any())


def correlation(first: Tensor, second: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])


def test_operators_steps_seeds_and_places_are_independent() -> None:
    mask = drawn(keep=0.5)
    others = [drawn(seed=1), drawn(seed=-1), drawn(operator=1), drawn(step=1), drawn(1, 1), drawn(0, 1, 1)]
    shifted = [mask.roll(1, dim) for dim in range(3)] + [mask.flatten().roll(64).view(SHAPE)]
    bound = SIGMAS / mask.numel() ** 0.5
    for other in (*others, *shifted):
        assert abs(correlation(mask, other)) < bound
    assert torch.equal(mask, drawn(keep=0.5))


def test_seed_operator_and_step_are_no_sum() -> None:
    keys = [(0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0)]
    streams = [Stream.of(*key) for key in keys]
    assert len({stream.start for stream in streams}) == len({s.stride for s in streams}) == len(keys)
    assert all(stream.stride % 2 for stream in streams)


@pytest.mark.parametrize("block", [1, 7, 1 << 15])
def test_a_piece_is_that_of_the_whole(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any intervals of any factors, and the samples of a micro-batch counted from its first one."""
    monkeypatch.setattr(counter_random, "CPU_BLOCK", block)
    rng = random.Random(0)
    whole = whole_mask(key_tensor((5, 9, 0)), 2, 0.6, (6, 4, 9), torch.bool)
    for _ in range(20):
        first, count = rng.randrange(5), rng.randint(0, 2)
        held = [sorted(rng.sample(range(size + 1), 4)) for size in (4, 9)]
        inner = [((a, b), (c, d)) for a, b, c, d in held]
        parts = [FactorPart(6, ((0, count),), 1), FactorPart(4, inner[0]), FactorPart(9, inner[1])]
        piece = random_mask(key_tensor((5, 9, first)), 2, 0.6, parts, torch.bool, "cpu")
        rows = whole[first : first + count]
        columns = [torch.cat([torch.arange(low, high) for low, high in of]) for of in inner]
        wanted = rows.index_select(1, columns[0]).index_select(2, columns[1])
        assert torch.equal(piece, wanted.flatten())


def test_samples_inside_a_longer_factor() -> None:
    """Samples and tokens seen as one dim: a sample has several elements of it."""
    whole = whole_mask(key_tensor((0, 0, 0)), 0, 0.5, (6 * 4, 5), torch.bool)
    parts = [FactorPart(24, ((0, 8),), 4), FactorPart(5, ((1, 3),))]
    piece = random_mask(key_tensor((0, 0, 3)), 0, 0.5, parts, torch.bool, "cpu")
    assert torch.equal(piece, whole[12:20, 1:3].flatten())
