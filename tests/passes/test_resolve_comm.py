"""Resolved communication against direct slicing: random pairs of layouts, inside a stage and between two."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hspmd_compiler.annotations.intervals import covers
from hspmd_compiler.annotations.layout import Axis, Coordinate, Factor, Layout, make_layout
from hspmd_compiler.annotations.refine import refine
from hspmd_compiler.artifact.arrays import TorchArrays
from hspmd_compiler.comm_plan import Combine, CommKind, CommStep, box_volume
from hspmd_compiler.graph.annotated import CommMarker
from hspmd_compiler.graph.rules import is_addend
from hspmd_compiler.passes.resolve_comm import CommResolver

from ..rule_cases import normal
from ..sharded_rows import Mesh, Operand, any_sets, copied_sets, cut_sets, joined, random_pieces, scatter

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
    first = next(iter(steps.values()))
    if first.kind is CommKind.ALL_REDUCE:
        return dict.fromkeys(steps, arrays.reduce(list(held.values()), first.combine))
    sent = {rank: arrays.cut(step, held[rank]) for rank, step in steps.items() if rank in held}
    for rank, step in steps.items():
        for piece in step.recvs:
            mine = [b for p in steps[piece.peer].sends if p.peer == rank for b in p.boxes]
            assert [box_volume(b) for b in mine] == [box_volume(b) for b in piece.boxes]
    return {
        rank: arrays.paste(step, {peer: parts[rank] for peer, parts in sent.items() if rank in parts})
        for rank, step in steps.items()
        if step.dst_view is not None
    }


@pytest.mark.parametrize("source_kind", KINDS)
@pytest.mark.parametrize("target_kind", ("whole", "cut", "copies", "factor"))
def test_inside_a_stage(source_kind: str, target_kind: str) -> None:
    if source_kind == target_kind == "whole":
        return  # the same layout
    rng = random.Random(f"{source_kind} {target_kind}")
    done = 0
    for _ in range(30):
        shape, ranks = rng.choice(SHAPES), rng.choice((2, 3, 5))
        source, target = (layout_of(rng, shape, ranks, kind) for kind in (source_kind, target_kind))
        if source == target or refine(source, target) is None or not holds_all(source):
            continue
        done += 1
        mesh = Mesh(ranks)
        pieces = random_pieces(Operand(shape, normal), source, mesh)
        value = joined(source, pieces, "source")
        combine = Combine.SUM if is_addend(source) else Combine.COPY
        marker = CommMarker(source, target, combine, 0, 0)
        numbers = tuple(10 - rank for rank in range(ranks))  # ranks need not ascend with the coordinates
        steps = CommResolver().collective(marker, numbers, 0, "float64")
        found = exchange(steps, {numbers[at.rank]: piece for at, piece in pieces.items()})
        for rank in range(ranks):
            torch.testing.assert_close(found[numbers[rank]], scatter(value, target, Coordinate(rank, 0)))
    assert done >= 5


def holds_all(layout: Layout) -> bool:
    """Copies leave no element out."""
    cut = layout.cut(ranks=True)
    return cut is None or cut[1].contrib or cut[1].sets is None or covers(cut[1].size, cut[1].sets)


@pytest.mark.parametrize("source_kind", ("whole", "cut", "copies", "factor"))
@pytest.mark.parametrize("target_kind", ("whole", "cut", "copies"))
@pytest.mark.parametrize("batch", [0, 1])
def test_between_stages_of_different_width(source_kind: str, target_kind: str, batch: int) -> None:
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
        value = normal(source.shape)
        senders, receivers = range(widths[0]), range(7, 7 + widths[1])
        marker = CommMarker(source, target, Combine.COPY, 0, 1)
        steps = CommResolver().transfer(marker, tuple(senders), tuple(receivers), batch, "float64")
        found = exchange(steps, {rank: scatter(value, source, Coordinate(rank, batch)) for rank in senders})
        for index, rank in enumerate(receivers):
            torch.testing.assert_close(found[rank], scatter(value, target, Coordinate(index, batch)))
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
    first = resolver.collective(marker, (0, 1), 0, "float32")
    assert resolver.collective(replace(marker), (0, 1), 0, "float32") is first
    other = resolver.collective(marker, (2, 3), 0, "float32")
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
        return resolver.collective(CommMarker(source, target, combine, 0, 0), (0, 1), 0, "float32")[0].kind

    assert kind(pending, whole) is CommKind.ALL_REDUCE
    assert kind(pending, cut) is CommKind.REDUCE_SCATTER
    assert kind(cut, whole) is CommKind.ALL_GATHER
