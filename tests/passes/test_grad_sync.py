"""Gradient reduction over unequal pipelines: every holder receives the sum, each element exactly once."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch
from torch import Tensor

from hspmd_compiler.base.comm_plan import GradBucket
from hspmd_compiler.layout.layout import Axis, Coordinate, Factor, Layout, make_layout
from hspmd_compiler.passes.grad_buckets import (
    GradLayout,
    Term,
    atoms,
    buckets,
    make_holders,
    make_term,
    owned_boxes,
    region,
    shard_boxes,
)
from hspmd_compiler.program.arrays import TorchArrays
from hspmd_compiler.program.buckets import pack_bucket, unpack_bucket
from hspmd_compiler.program.program import Shard
from hspmd_compiler.verify.rules.split_operands import (
    Operand,
    StageMesh,
    any_sets,
    copied_sets,
    cut_sets,
    joined,
    random_pieces,
    scatter,
)

SHAPES = ((6,), (4, 6), (1,), (2, 3, 4), (1, 4))
MIXES = tuple(range(40))


def whole_numbers(shape: tuple[int, ...]) -> Tensor:
    """Their sums are exact, in any order."""
    return torch.randint(-9, 9, shape).double()


def random_mix(seed: int) -> tuple[tuple[int, ...], list[tuple[Layout, Layout, tuple[int, ...]]]]:
    """A shape, and for each stage the layouts of gradient and parameter, and its ranks."""
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    numbers = list(range(15))
    rng.shuffle(numbers)
    stages = []
    for _ in range(rng.randint(1, 3)):
        width = rng.randint(1, 5)
        ranks, numbers = tuple(numbers[:width]), numbers[width:]
        stages.append((*layouts(rng, shape, width), ranks))
    return shape, stages


def layouts(rng: random.Random, shape: tuple[int, ...], width: int) -> tuple[Layout, Layout]:
    """A parameter whole, cut or with copies, and its gradient: alike, as addends, or pending."""
    dim = rng.randrange(len(shape))
    whole = make_layout(tuple((Factor(size),) for size in shape))
    kind = rng.choice(("whole", "cut", "copies", "any"))
    if kind == "whole" or width == 1:
        pending = make_layout(whole.dims, frozenset({Axis.TENSOR}))
        return (pending if rng.random() < 0.5 and width > 1 else whole), whole
    chosen = {"cut": cut_sets, "copies": copied_sets, "any": copied_sets}[kind]
    sets = chosen(rng, shape[dim], width)
    given = any_sets(rng, shape[dim], width) if kind == "any" else sets

    def cut(held: tuple[tuple[tuple[int, int], ...], ...], contrib: bool) -> Layout:
        factor = Factor(shape[dim], Axis.TENSOR, held, contrib)
        return make_layout(tuple((factor,) if i == dim else (Factor(s),) for i, s in enumerate(shape)))

    return cut(given, kind != "cut"), cut(sets, False)


@pytest.mark.parametrize("seed", MIXES)
def test_every_holder_receives_the_sum(seed: int) -> None:
    torch.manual_seed(seed)
    shape, stages = random_mix(seed)
    wanted = torch.zeros(shape, dtype=torch.float64)
    grads: dict[int, Tensor] = {}
    for layout, _, ranks in stages:
        pieces = random_pieces(Operand(shape, whole_numbers), layout, StageMesh(len(ranks)))
        wanted += joined(layout, pieces, "gradient")
        grads |= {ranks[at.rank]: piece for at, piece in pieces.items()}
    found = synchronised(shape, stages, grads)
    for _, held, ranks in stages:
        for index, rank in enumerate(ranks):
            piece = scatter(wanted, held, Coordinate(index, 0))
            assert torch.equal(found[rank], piece), f"rank {rank}: {found[rank]} instead of {piece}"


def synchronised(
    shape: tuple[int, ...],
    stages: list[tuple[Layout, Layout, tuple[int, ...]]],
    grads: dict[int, Tensor],
) -> dict[int, Tensor]:
    """Run all buckets as the executor does."""
    terms = tuple(make_term(layout, ranks) for layout, _, ranks in stages)
    holders = tuple(holder for _, held, ranks in stages for holder in make_holders(held, ranks))
    by_rank = buckets({"w": GradLayout(shape, terms, holders)}, {"w": "float64"})
    arrays = TorchArrays()
    shards = {
        h.rank: Shard("w", "float64", h.view, h.view, shape, shape, shard_boxes(h), (), True, False)
        for h in holders
    }
    synced: dict[int, dict[str, Tensor]] = {
        rank: {"w": torch.full(shard.shape, torch.nan, dtype=torch.float64)} for rank, shard in shards.items()
    }
    numbers = sorted({bucket.id for of in by_rank.values() for bucket in of})
    for number in numbers:
        members = {rank: b for rank, of in by_rank.items() for b in of if b.id == number}
        group = next(iter(members.values())).group
        assert group == tuple(sorted(members)), "every member has its part"
        flat = _sum(arrays, members, grads)
        for rank, bucket in members.items():
            unpack_bucket(arrays, bucket, flat, {"w": shards[rank]}, synced[rank])
    return {rank: held["w"] for rank, held in synced.items()}


def _sum(arrays: TorchArrays, members: dict[int, GradBucket], grads: dict[int, Tensor]) -> Tensor:
    packed = [pack_bucket(arrays, bucket, {"w": grads[rank]}) for rank, bucket in members.items()]
    return torch.stack(packed).sum(0)


@pytest.mark.parametrize("seed", MIXES)
def test_atoms_partition_the_parameter(seed: int) -> None:
    shape, stages = random_mix(seed)
    terms: tuple[Term, ...] = tuple(make_term(layout, ranks) for layout, _, ranks in stages)
    holders = tuple(holder for _, held, ranks in stages for holder in make_holders(held, ranks))
    needed: dict[tuple[int, ...], list[int]] = {}
    for atom in atoms(GradLayout(shape, terms, holders)):
        for box in atom.boxes:
            for point in product(*(range(low, high) for low, high in box)):
                needed.setdefault(point, []).extend(atom.needers)
    assert set(needed) == set(product(*map(range, shape)))
    for point, ranks in needed.items():
        held = [h.rank for h in holders if all(map(_has, h.region, point))]
        assert sorted(ranks) == sorted(held), point


def _has(rows: tuple[tuple[int, int], ...], row: int) -> bool:
    return any(low <= row < high for low, high in rows)


@pytest.mark.parametrize("seed", MIXES)
def test_each_element_has_one_owner(seed: int) -> None:
    """Gradient-norm clipping counts replicated and split pieces once."""
    shape, stages = random_mix(seed)
    holders = tuple(holder for _, held, ranks in stages for holder in make_holders(held, ranks))
    counted = torch.zeros(shape)
    for rank, pairs in owned_boxes(holders).items():
        view = next(h.view for h in holders if h.rank == rank)
        for box, local in pairs:
            counted[tuple(slice(*interval) for interval in box)] += 1
            assert all(high <= size for (_, high), size in zip(local, view, strict=True))
    assert torch.equal(counted, torch.ones(shape))


def test_a_region_of_several_factors() -> None:
    """Rows of three blocks, the same part of each."""
    blocks = make_layout(((Factor(3), Factor(4, Axis.TENSOR, (((0, 3),), ((3, 4),)))),))
    assert region(blocks, 0) == (((0, 3), (4, 7), (8, 11)),)
    assert region(blocks, 1) == (((3, 4), (7, 8), (11, 12)),)
