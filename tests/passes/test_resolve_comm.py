"""Resolved communication against direct slicing: random pairs of layouts, inside a stage and between two.

As operators' conversions are planned without a cost model, and by the price of several ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from hspmd_compiler.base.comm_plan import (
    Combine,
    CommKind,
    CommStep,
    CostModel,
    GatherForm,
    Traffic,
    box_volume,
)
from hspmd_compiler.ir.annotated import CommMarker
from hspmd_compiler.layout.intervals import covers
from hspmd_compiler.layout.layout import Axis, Coordinate, Factor, Layout, make_layout
from hspmd_compiler.layout.refine import refine
from hspmd_compiler.passes.resolve_annotations.price import FlatCost
from hspmd_compiler.passes.resolve_annotations.ways import Method
from hspmd_compiler.passes.resolve_comm import CommResolver
from hspmd_compiler.passes.resolve_layouts import WantedLayouts, plan, plan_text
from hspmd_compiler.program.arrays import TorchArrays
from hspmd_compiler.rules.rules import is_addend
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
from hspmd_compiler.verify.rules.split_operator import answered

from ..rules.rule_cases import normal
from .resolve_annotations.proof import COSTS

SHAPES = ((4, 6), (6,), (2, 3, 4), (1, 5), (4, 4))
BATCH = (((0, 1),), ((1, 2),))
KINDS = ("whole", "cut", "copies", "contrib", "partial", "factor")


def layout_of(rng: random.Random, shape: tuple[int, ...], ranks: int, kind: str) -> Layout:
    dims: list[tuple[Factor, ...]] = [(Factor(size),) for size in shape]
    dim = rng.randrange(len(shape))
    if kind == "partial":
        return make_layout(tuple(dims), frozenset({Axis.TENSOR}))
    if kind == "factor" and shape[dim] % 2 == 0:
        inner = shape[dim] // 2
        dims[dim] = (Factor(2), Factor(inner, Axis.TENSOR, cut_sets(rng, inner, ranks)))
    elif kind in ("cut", "copies", "contrib"):
        chosen = {"cut": cut_sets, "copies": copied_sets, "contrib": any_sets}[kind]
        dims[dim] = (Factor(shape[dim], Axis.TENSOR, chosen(rng, shape[dim], ranks), kind == "contrib"),)
    return make_layout(tuple(dims))


def exchange(steps: dict[int, CommStep], held: dict[int, Tensor]) -> dict[int, Tensor]:
    """Run the steps of all ranks; what is sent matches what is received."""
    arrays = TorchArrays()
    sent = {rank: arrays.cut(step, held[rank]) for rank, step in steps.items() if rank in held}
    for rank, step in steps.items():
        for peer in {piece.peer for piece in step.recvs}:
            leaving = [box for p in steps[peer].sends if p.peer == rank for box in p.boxes]
            arriving = [box for p in step.recvs if p.peer == peer for box in p.boxes]
            assert list(map(box_volume, leaving)) == list(map(box_volume, arriving))
    return {
        rank: arrays.paste(step, {peer: parts[rank] for peer, parts in sent.items() if rank in parts})
        for rank, step in steps.items()
        if step.dst_view is not None
    }


MODELS: tuple[CostModel | None, ...] = (None, *COSTS)
NAMES = ["preferred", "as it is", "bytes", "machines"]


@pytest.mark.parametrize("cost", MODELS, ids=NAMES)
@pytest.mark.parametrize("source_kind", KINDS)
@pytest.mark.parametrize("target_kind", ("whole", "cut", "copies", "factor"))
def test_inside_a_stage(source_kind: str, target_kind: str, cost: CostModel | None) -> None:
    if source_kind == target_kind == "whole":
        return  # the same layout
    rng = random.Random(f"{source_kind} {target_kind}")
    done = 0
    for _ in range(30 if cost is None else 15):
        shape, ranks = rng.choice(SHAPES), rng.choice((2, 3, 5))
        source, target = (layout_of(rng, shape, ranks, kind) for kind in (source_kind, target_kind))
        if source == target or refine(source, target) is None or not holds_all(source):
            continue
        done += 1
        mesh = StageMesh(ranks)
        pieces = random_pieces(Operand(shape, normal), source, mesh)
        value = joined(source, pieces, "source")
        combine = Combine.SUM if is_addend(source) else Combine.COPY
        marker = CommMarker(source, target, combine, 0, 0)
        numbers = tuple(10 - rank for rank in range(ranks))  # ranks need not ascend with the coordinates
        found = {numbers[at.rank]: piece for at, piece in pieces.items()}
        for steps in CommResolver(cost).steps(marker, numbers, 0, "float64"):
            found = answered(steps, found)
        for rank in range(ranks):
            torch.testing.assert_close(found[numbers[rank]], scatter(value, target, Coordinate(rank, 0)))
        check_cheapest(WantedLayouts.of(marker, numbers, (), 0, "float64", cost))
    assert done >= 3


def check_cheapest(wanted: WantedLayouts) -> None:
    """With a cost model nothing that was looked at is cheaper; without one, the preferred way is taken."""
    for part in plan(wanted):
        if wanted.cost is None:
            assert part.method in (Method.ALL_REDUCE, Method.IN_TURN)
        assert all(part.seconds <= way.seconds for way in part.ways if way.seconds is not None)
    assert plan_text(wanted)


def holds_all(layout: Layout) -> bool:
    """Copies leave no element out."""
    cut = layout.cut(ranks=True)
    return cut is None or cut[1].contrib or cut[1].sets is None or covers(cut[1].size, cut[1].sets)


@pytest.mark.parametrize("source_kind", KINDS)
@pytest.mark.parametrize("target_kind", ("whole", "cut", "copies"))
@pytest.mark.parametrize(("batch", "cost"), [(0, None), (1, None), (0, COSTS[1]), (1, COSTS[2])])
def test_between_stages_of_different_width(
    source_kind: str, target_kind: str, batch: int, cost: CostModel | None
) -> None:
    rng = random.Random(f"{source_kind} {target_kind} {batch}")
    done = 0
    for _ in range(20):
        shape = rng.choice(((4, 6), (3, 4), (2, 3, 4)))
        widths = rng.choice(((1, 3), (2, 3), (4, 1), (3, 3)))
        source, target = (
            with_samples(layout_of(rng, shape, width, kind))
            for width, kind in zip(widths, (source_kind, target_kind), strict=True)
        )
        if refine(source, target) is None:
            continue
        done += 1
        pieces = random_pieces(Operand(source.shape, normal), source, StageMesh(widths[0], BATCH))
        value = joined(source, pieces, "source")
        senders, receivers = range(widths[0]), range(7, 7 + widths[1])
        combine = Combine.SUM if is_addend(source) else Combine.COPY
        marker = CommMarker(source, target, combine, 0, 1)
        steps = CommResolver(cost).transfer(marker, tuple(senders), tuple(receivers), batch, "float64")
        found = exchange(steps, {rank: pieces[Coordinate(rank, batch)] for rank in senders})
        for index, rank in enumerate(receivers):
            torch.testing.assert_close(found[rank], scatter(value, target, Coordinate(index, batch)))
        check_cheapest(WantedLayouts.of(marker, senders, receivers, batch, "float64", cost))
        if cost is None and not is_addend(source):
            check_balanced(steps, source, target, widths)
    assert done >= 5


def with_samples(layout: Layout) -> Layout:
    """A first dim of samples, split between two micro-batches."""
    return make_layout(((Factor(2, Axis.BATCH, BATCH),), *layout.dims), layout.partial)


def check_balanced(
    steps: dict[int, CommStep], source: Layout, target: Layout, widths: tuple[int, int]
) -> None:
    """Of a value that every sender has whole, no sender sends everything while another is idle."""
    if source.cut(ranks=True) is not None or target.cut(ranks=True) is not None or widths[0] > widths[1]:
        return
    counts = [len(step.sends) for step in steps.values() if step.src_view is not None]
    assert max(counts) - min(counts) <= 1


def test_equal_requests_share_their_steps() -> None:
    source = make_layout(((Factor(4, Axis.TENSOR, (((0, 2),), ((2, 4),))),),))
    marker = CommMarker(source, make_layout(((Factor(4),),)), Combine.COPY, 0, 0)
    resolver = CommResolver()
    (first,) = resolver.steps(marker, (0, 1), 0, "float32")
    assert resolver.steps(replace(marker), (0, 1), 0, "float32")[0] is first
    (other,) = resolver.steps(marker, (2, 3), 0, "float32")
    assert {step.id for step in first.values()}.isdisjoint(step.id for step in other.values())
    assert {step.kind for step in first.values()} == {CommKind.ALL_GATHER}


def test_kinds_are_those_of_megatron() -> None:
    """A pending sum to whole is an all-reduce, to pieces a reduce-scatter."""
    whole = make_layout(((Factor(4),),))
    pending = make_layout(((Factor(4),),), frozenset({Axis.TENSOR}))
    cut = make_layout(((Factor(4, Axis.SEQUENCE, (((0, 2),), ((2, 4),))),),))
    resolver = CommResolver()

    def kind(source: Layout, target: Layout) -> CommKind:
        combine = Combine.SUM if is_addend(source) else Combine.COPY
        (steps,) = resolver.steps(CommMarker(source, target, combine, 0, 0), (0, 1), 0, "float32")
        return steps[0].kind

    assert kind(pending, whole) is CommKind.ALL_REDUCE
    assert kind(pending, cut) is CommKind.REDUCE_SCATTER
    assert kind(cut, whole) is CommKind.ALL_GATHER


def addends_of_four(length: int) -> WantedLayouts:
    """Overlapping addends of a long dim, needed whole: one step, or a sum at owners and a spread."""
    held = [(0, length * 3 // 4), (length // 4, length), (0, length // 2), (length // 8, length)]
    cut = Factor(length, Axis.TENSOR, tuple((pair,) for pair in held), contrib=True)
    target = make_layout(((Factor(length),),))
    return WantedLayouts(make_layout(((cut,),)), target, (0, 1, 2, 3), (), 0, "float32", planned=False)


def methods(wanted: WantedLayouts) -> set[Method]:
    return {part.method for part in plan(wanted)}


def test_bytes_and_latency_pull_the_choice_apart() -> None:
    """Two steps move less than one; where each step takes long, one is taken. Without a model one is."""
    long = addends_of_four(1 << 24)
    fast, slow = FlatCost(latency=1e-6, bandwidth=1e9), FlatCost(latency=1.0, bandwidth=1e9)
    assert methods(replace(long, cost=fast)) == {Method.RELAY}
    assert methods(replace(long, cost=slow)) == {Method.DIRECT}
    assert methods(replace(addends_of_four(16), cost=fast)) == {Method.DIRECT}
    assert methods(long) == {Method.IN_TURN}


@dataclass(frozen=True)
class OneSlowLink:
    """Links have a latency and a bandwidth of their own; one of them is slow, and reaches nobody near."""

    slow: frozenset[int]

    def unequal_forms_s(
        self, kind: CommKind, group: Sequence[int], sizes: Sequence[float]
    ) -> dict[GatherForm, float]:
        return {}

    def comm_s(self, traffic: Sequence[Traffic]) -> float:
        pairs = [(pair, size) for each in traffic for pair, size in each.volumes.items()]
        pairs += [
            ((one, other), 2 * each.size)
            for each in traffic
            if each.kind is CommKind.ALL_REDUCE
            for one in each.ranks
            for other in each.ranks
            if one != other
        ]
        return max(
            (1e-5 + size * (1.0 if self.slow == {*pair} else 1e-9) for pair, size in pairs), default=0.0
        )

    def near(self, rank: int) -> frozenset[int] | None:
        return frozenset(range(8)) - (self.slow - {rank} if rank in self.slow else frozenset())


@pytest.mark.parametrize("slow", [5, 4])
def test_a_slow_link_is_not_taken(slow: int) -> None:
    """Ranks 5 and 4 have the value, 7 and 6 of the next stage need it: not from `slow` to 7."""
    value = make_layout(((Factor(64),),))
    marker, cost = CommMarker(value, value, Combine.COPY, 0, 1), OneSlowLink(frozenset({slow, 7}))
    steps = CommResolver(cost).transfer(marker, (5, 4), (7, 6), 0, "float32")
    assert [piece.peer for piece in steps[7].recvs] == [9 - slow]
    wanted = WantedLayouts.of(marker, (5, 4), (7, 6), 0, "float32", cost)
    assert all(part.seconds < 1e-4 for part in plan(wanted))


def test_the_text_has_the_price_of_what_is_refused() -> None:
    """Without a cost model the preferred way comes first, though a relay would be cheaper."""
    long = addends_of_four(1 << 24)
    assert plan_text(long) == (
        "all-to-all 7072.4 us; direct exchange 7072.4 us; direct exchange, senders by load 7072.4 us; "
        "relay by needers 3826.9 us; relay by holders 4078.5 us; relay by all 3826.9 us"
    )
    assert plan_text(replace(long, cost=FlatCost(latency=1.0))) == (
        "direct exchange 1007052.4 us; direct exchange, senders by load 1007052.4 us"
    )
