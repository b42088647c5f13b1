"""Random values of an operator's operands, and random ways in which ranks and micro-batches hold them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from ...base.comm_plan import Interval
from ...layout.intervals import Sets, at_local, union
from ...layout.layout import Axis, Coordinate, Factor, Layout, make_layout
from ..assemble import LocalPiece, assemble, index_of, local_view, whole_view

TOLERANCE = 1e-10
Locals = dict[Coordinate, Tensor]
Random = random.Random


@dataclass(frozen=True)
class StageMesh:
    """The ranks of one stage, and the rows of each micro-batch."""

    ranks: int
    batch: Sets = ()

    @property
    def coordinates(self) -> list[Coordinate]:
        """All of them, micro-batch by micro-batch."""
        return [Coordinate(r, d) for d in range(max(1, len(self.batch))) for r in range(self.ranks)]


@dataclass(frozen=True)
class Operand:
    """An input of the operators under test. make: random values of a shape.

    sample: the dim of the samples, None where the operand has none. linear: it may be given as
    addends. pure: computed from inputs alone.
    """

    shape: tuple[int, ...]
    make: Callable[[tuple[int, ...]], Tensor]
    sample: int | None = 0
    linear: bool = True
    pure: bool = False


def cut_sets(rng: Random, size: int, ranks: int) -> Sets:
    """Consecutive pieces with random bounds, some empty, sometimes inside each of two blocks."""
    blocks = 2 if size % 2 == 0 and size >= 4 and rng.random() < 0.3 else 1
    inner = size // blocks
    bounds = [0, *sorted(rng.randint(0, inner) for _ in range(ranks - 1)), inner]
    return tuple(
        union((low + b * inner, high + b * inner) for b in range(blocks)) for low, high in pairwise(bounds)
    )


def any_sets(rng: Random, size: int, ranks: int) -> Sets:
    """For each rank one or two random intervals."""

    def interval() -> tuple[int, int]:
        low, high = sorted((rng.randint(0, size), rng.randint(0, size)))
        return low, high

    return tuple(union(interval() for _ in range(rng.randint(1, 2))) for _ in range(ranks))


def copied_sets(rng: Random, size: int, ranks: int) -> Sets:
    """A cover of the dim with overlaps."""
    pairs = zip(cut_sets(rng, size, ranks), any_sets(rng, size, ranks), strict=True)
    return tuple(union((*own, *more)) for own, more in pairs)


def shared_samples(rng: Random, size: int, mesh: StageMesh) -> Factor:
    """Each micro-batch divided among the ranks, on its own; sometimes with copies."""
    found: list[list[Interval]] = [[] for _ in range(mesh.ranks)]
    for held in mesh.batch:
        pieces = rng.choice((cut_sets, copied_sets))(rng, sum(b - a for a, b in held), mesh.ranks)
        for rows, piece in zip(found, pieces, strict=True):
            rows += at_local(held, piece)
    return Factor(size, Axis.BATCH, mesh.batch, by_rank=tuple(map(union, found)))


def random_layout(rng: Random, operand: Operand, mesh: StageMesh, split_batch: bool) -> Layout:
    """Whole, cut, with copies, with addends, or a pending sum; the samples split where there are any."""
    dims = [(Factor(size),) for size in operand.shape]
    partial: set[Axis] = set()
    sample = operand.sample if split_batch else None
    if sample is not None:
        dims[sample] = (Factor(operand.shape[sample], Axis.BATCH, mesh.batch),)
    elif operand.linear and mesh.batch and rng.random() < 0.1:
        partial.add(Axis.BATCH)
    free = [dim for dim in range(len(dims)) if dim != sample]
    modes = ["whole", "cut", "cut", "copies"] if free else ["whole"]
    modes += ["partial"] if operand.linear else []
    modes += ["contrib"] if operand.linear and free else []
    modes += ["samples", "samples"] if sample is not None else []
    mode = rng.choice(modes)
    if mode == "samples" and sample is not None:
        dims[sample] = (shared_samples(rng, operand.shape[sample], mesh),)
    elif mode == "partial":
        partial.add(Axis.TENSOR)
    elif mode != "whole":
        dim = rng.choice(free)
        axis = rng.choice((Axis.TENSOR, Axis.TENSOR, Axis.SEQUENCE))
        chosen = {"cut": cut_sets, "copies": copied_sets, "contrib": any_sets}[mode]
        sets = chosen(rng, operand.shape[dim], mesh.ranks)
        dims[dim] = (Factor(operand.shape[dim], axis, sets, mode == "contrib"),)
    return make_layout(tuple(dims), frozenset(partial))


def scatter(value: Tensor, layout: Layout, at: Coordinate) -> Tensor:
    """What a coordinate holds of a whole value."""
    local = value.reshape(whole_view(layout))[index_of(layout, at)]
    return local.expand(local_view(layout, at)).reshape(layout.local_shape(at)).clone()


def random_pieces(operand: Operand, layout: Layout, mesh: StageMesh) -> Locals:
    """Local tensors of a layout: copies are equal, addends are not."""
    over_batch = Axis.BATCH in layout.partial or layout.cut(ranks=False) is not None
    cut = layout.cut(ranks=True)
    adds = Axis.TENSOR in layout.partial or (cut is not None and cut[1].contrib)
    pieces: Locals = {}
    wholes: dict[tuple[int, int], Tensor] = {}
    for at in mesh.coordinates:
        key = (at.batch if over_batch else 0, at.rank if adds else 0)
        if key not in wholes:
            wholes[key] = operand.make(operand.shape)
        pieces[at] = scatter(wholes[key], layout, at)
    return pieces


def lying_anyhow(rng: Random, value: Tensor) -> Tensor:
    """Equal numbers that lie elsewhere in memory, dims in another order: a piece seldom lies as the whole."""
    order = rng.sample(range(value.dim()), value.dim())
    sizes = [value.shape[dim] for dim in order]
    room = value.new_zeros(value.numel() + 1)[rng.randint(0, 1) :][: value.numel()]
    back = [order.index(dim) for dim in range(value.dim())]
    return room.view(sizes).permute(back).copy_(value)


def joined(layout: Layout, pieces: Locals, what: str) -> Tensor:
    """The whole value; copies agree and every element has a holder."""
    found = assemble([LocalPiece(at.rank, at, layout, tensor) for at, tensor in pieces.items()])
    assert found.copies < TOLERANCE, f"{what}: copies differ by {found.copies} in {layout}"
    assert not found.missing, f"{what}: {found.missing} elements without a holder in {layout}"
    return found.value
