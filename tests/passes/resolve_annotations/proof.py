"""A plan is run on pieces of a tensor, and what comes out is held against plain slicing of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from hspmd_compiler.annotations import Annotation
from hspmd_compiler.base.comm_plan import CommKind, CostModel, GatherForm, Traffic
from hspmd_compiler.passes.resolve_annotations import Method, Resolution, resolve
from hspmd_compiler.passes.resolve_annotations.moves import StepMove
from hspmd_compiler.passes.resolve_annotations.price import FlatCost, loads_of, ring_bytes, seconds_of
from hspmd_compiler.passes.resolve_annotations.ways import Way

from ...annotations.pieces import piece_of, pieces_of, value_of, whole_tensor
from .converted import convert_in_lockstep

TOLERANCE = 1e-12
NODE = 2


class TwoLevels:
    """Machines of two ranks; a byte between machines costs ten times one inside."""

    def near(self, rank: int) -> frozenset[int]:
        first = rank // NODE * NODE
        return frozenset(range(first, first + NODE))

    def unequal_forms_s(
        self, kind: CommKind, group: Sequence[int], sizes: Sequence[float]
    ) -> dict[GatherForm, float]:
        return {}

    def comm_s(self, traffic: Sequence[Traffic]) -> float:
        busy: dict[tuple[int, bool], float] = {}
        for each in traffic:
            for (sender, receiver), size in each.volumes.items():
                for end in ((sender, True), (receiver, False)):
                    busy[end] = busy.get(end, 0.0) + size * far((sender, receiver))
        reduced = [ring_bytes(len(each.ranks), each.size) * far(each.ranks) for each in traffic]
        return max([*busy.values(), *reduced], default=0.0)


def far(ranks: Sequence[int]) -> float:
    return 1.0 if len({rank // NODE for rank in ranks}) == 1 else 10.0


COSTS: tuple[CostModel, ...] = (FlatCost(), FlatCost(latency=0.0, message=0.0, bandwidth=1.0), TwoLevels())
"""As it is; bytes alone; machines."""


def check_pair(source: Annotation, target: Annotation, shape: tuple[int, ...], cost: CostModel) -> Resolution:
    """Run the plan in lockstep and compare every piece; returns the plan."""
    found = resolve(source, target, shape, "float64", cost=cost)
    whole, pieces = before(source, shape)
    check_pieces(source, target, whole, convert_in_lockstep(found.steps(), pieces))
    return found


@lru_cache(maxsize=16)
def before(source: Annotation, shape: tuple[int, ...]) -> tuple[Tensor, dict[int, Tensor]]:
    """The whole tensor, and what devices hold of it."""
    whole = whole_tensor(shape)
    return whole, pieces_of(source, whole)


def check_every_way(found: Resolution, cost: CostModel) -> None:
    """The ways that were not taken are right too, cost what was said, and not less."""
    whole = whole_tensor(found.shape)
    pieces = pieces_of(found.source, whole)
    element = whole.element_size()
    for place, part in enumerate(found.parts):
        for way in part.ways:
            if way.seconds is None:
                continue
            check_price(way, cost, element)
            assert part.seconds <= way.seconds or part.method is Method.TIERS
            if way.method is not part.method and len(found.parts) == 1 and part.method is not Method.TIERS:
                parts = (*found.parts[:place], replace(part, way=way), *found.parts[place + 1 :])
                steps = replace(found, parts=parts).steps()
                check_pieces(found.source, found.target, whole, convert_in_lockstep(steps, pieces))


def check_price(way: Way, cost: CostModel, element: int) -> None:
    """What a way was said to cost is what its moves cost. Within a tier unrelated ranks move at once, and a
    tier begins when the one before is done: no sooner than ranks could, no later than one after another."""
    moves = way.make()
    together = seconds_of(moves, cost, element)
    if way.method is Method.TIERS:
        assert earliest(moves, cost, element) <= way.seconds * (1 + 1e-9) <= together * (1 + 1e-8)
    else:
        assert way.seconds == pytest.approx(together, rel=1e-9)


def earliest(moves: Sequence[StepMove], cost: CostModel, element: int) -> float:
    """Seconds until all are done, where each begins as soon as its ranks are free."""
    free: dict[int, float] = {}
    for move in moves:
        ranks = set(loads_of((move,), element))
        start = max((free.get(rank, 0.0) for rank in ranks), default=0.0)
        free |= dict.fromkeys(ranks, start + seconds_of((move,), cost, element))
    return max(free.values(), default=0.0)


def check_pieces(source: Annotation, target: Annotation, whole: Tensor, after: Mapping[int, Tensor]) -> None:
    """Copies bit for bit, sums to 1e-12; copies of one sum are equal bit for bit."""
    shape = tuple(whole.shape)
    one_sum = source.is_partial and len({each.alternative for each in source.addends().values()}) == 1
    if target.is_partial or one_sum:
        own = {device: after[device] for device in target.devices}
        for value in value_of(target, own, shape).values():
            assert_close(value, whole)
    if target.is_partial:
        return
    for device in target.devices:
        expected = piece_of(target, device, whole)
        if source.is_partial:
            assert_close(after[device], expected)
        else:
            assert torch.equal(after[device], expected), f"device {device}"


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert not found.numel() or float((found - expected).abs().max()) <= TOLERANCE
