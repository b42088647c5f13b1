"""Conversions planned by cells, run in lockstep: each rank gets just what the target layout gives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hspmd_compiler.annotations import Split
from hspmd_compiler.base.comm_plan import CostModel
from hspmd_compiler.layout.intervals import Sets
from hspmd_compiler.layout.layout import Axis, Coordinate, Factor, Layout, make_layout
from hspmd_compiler.layout.several_cuts import addends_of, collapsed, is_plain, with_cuts
from hspmd_compiler.passes.resolve_layouts import WantedLayouts, plan
from hspmd_compiler.passes.resolve_rounds import rounds
from hspmd_compiler.program.arrays import TorchArrays
from hspmd_compiler.rules.comm_layouts import _of_samples
from hspmd_compiler.rules.rules import is_addend
from hspmd_compiler.verify.assemble import Assembled, LocalPiece, assemble, index_of, local_view, whole_view
from hspmd_compiler.verify.rules.split_operator import answered

from ..annotations.strategies import splits
from ..by_bytes import by_bytes
from .resolve_annotations.proof import COSTS

QUIET = list(HealthCheck)
TOLERANCE = 1e-12
FACTORS = {2: [(2,)], 3: [(3,)], 4: [(4,), (2, 2)], 6: [(2, 3), (3, 2), (6,)], 8: [(2, 2, 2), (2, 4)]}
BATCHES: list[Sets] = [(), (((0, 3),), ((3, 4),)), (((0, 1),), ((1, 1),), ((1, 4),))]


@dataclass(frozen=True)
class Drawn:
    """Two layouts of one tensor on the ranks of a stage."""

    source: Layout
    target: Layout
    ranks: int
    batch: int


@st.composite
def layouts(draw: st.DrawFn, base: Layout, ranks: int, pending: bool) -> Layout:
    """The base cut by a drawn product of placements, the last of which varies fastest."""
    keys: list[object] = ["D", *(["P", "P"] if pending else []), *range(len(base.shape))]
    chosen = list(dict.fromkeys(draw(st.permutations(keys))))
    cuts: dict[int, Factor] = {}
    addends: list[int] | None = None
    stride = ranks
    for key, parts in zip(chosen, draw(st.sampled_from(FACTORS[ranks])), strict=False):
        stride //= parts
        places = [rank // stride % parts for rank in range(ranks)]
        if key == "P":
            addends = places
        elif isinstance(key, int):
            cuts[key] = draw(factors(base, key, parts, places))
    return with_cuts(base, cuts, addends)


@st.composite
def factors(draw: st.DrawFn, base: Layout, dim: int, parts: int, places: Sequence[int]) -> Factor:
    size, batch = base.shape[dim], base.cut(ranks=False)
    if batch is not None and batch[0] == dim:
        sets = batch[1].sets or ()
        return Factor(size, Axis.BATCH, sets, by_rank=_of_samples(sets, Split(dim, parts), places))
    pieces = draw(splits(dim, parts, size)).pieces(size)
    return Factor(size, Axis.TENSOR, tuple(pieces[place] for place in places))


@st.composite
def pairs(draw: st.DrawFn) -> Drawn:
    """Any two layouts; a settled value does not become a sum."""
    rows = draw(st.sampled_from(BATCHES))
    first = (Factor(4, Axis.BATCH, rows),) if rows else (Factor(draw(st.sampled_from([1, 4]))),)
    rest = [(Factor(size),) for size in draw(st.lists(st.sampled_from([1, 2, 3, 5, 8]), max_size=2))]
    base = make_layout((first, *rest), draw(st.sampled_from([frozenset(), frozenset({Axis.BATCH})])))
    ranks = draw(st.sampled_from(sorted(FACTORS)))
    source = draw(layouts(base, ranks, draw(st.booleans())))
    target = draw(layouts(base, ranks, is_addend(source) and draw(st.booleans())))
    if draw(st.booleans()):
        target = collapsed(target) if not is_plain(target) else target
    return Drawn(source, target, ranks, draw(st.integers(0, max(0, len(rows) - 1))))


def held(layout: Layout, ranks: int, batch: int) -> dict[int, Tensor]:
    """Random local tensors; copies of an element, or of an addend of it, are equal."""
    generator = torch.Generator().manual_seed(0)
    numbers = addends_of(layout, ranks)
    whole = {
        number: torch.randn(whole_view(layout), generator=generator, dtype=torch.float64)
        for number in set(numbers)
    }
    found = {}
    for rank in range(ranks):
        at = Coordinate(rank, batch)
        found[rank] = whole[numbers[rank]][index_of(layout, at)].reshape(layout.local_shape(at))
    return found


def assembled(layout: Layout, tensors: Mapping[int, Tensor], places: Mapping[int, Coordinate]) -> Assembled:
    """The whole value."""
    pieces = []
    for rank, tensor in tensors.items():
        at = places[rank]
        assert tuple(tensor.shape) == layout.local_shape(at)
        pieces.append(LocalPiece(rank, at, layout, tensor.reshape(local_view(layout, at))))
    return assemble(pieces)


def check(drawn: Drawn, cost: CostModel | None = None) -> int:
    """After all rounds ranks hold the value as the target says; copies are equal to the last bit. No other
    way is cheaper.

    Gives the number of rounds.
    """
    wanted = WantedLayouts(
        drawn.source,
        drawn.target,
        tuple(range(drawn.ranks)),
        (),
        drawn.batch,
        "float64",
        planned=True,
        cost=cost,
    )
    for part in plan(wanted):
        assert all(part.seconds <= way.seconds for way in part.ways if way.seconds is not None)
    before = held(drawn.source, drawn.ranks, drawn.batch)
    local = before
    made = rounds(wanted)
    for steps in made:
        assert set(steps) == set(range(drawn.ranks))
        local = answered(steps, local)
    places = {rank: Coordinate(rank, drawn.batch) for rank in before}
    expected, found = assembled(drawn.source, before, places), assembled(drawn.target, local, places)
    assert found.copies == 0
    assert torch.equal(found.covered, expected.covered)
    assert (found.value - expected.value).abs().max() <= TOLERANCE
    return len(made)


@settings(max_examples=100, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(pairs(), st.sampled_from((None, *COSTS)))
def test_pairs(drawn: Drawn, cost: CostModel | None) -> None:
    check(drawn, cost)


@st.composite
def crossings(draw: st.DrawFn) -> tuple[Layout, int, Layout, int]:
    """Any two layouts on the ranks of two stages."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 5, 8]), min_size=1, max_size=3))
    base = make_layout(tuple((Factor(size),) for size in sizes))
    widths = draw(st.sampled_from(sorted(FACTORS))), draw(st.sampled_from(sorted(FACTORS)))
    source = draw(layouts(base, widths[0], draw(st.booleans())))
    return source, widths[0], draw(layouts(base, widths[1], pending=False)), widths[1]


@settings(max_examples=80, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(crossings(), st.sampled_from((None, *COSTS)))
def test_from_stage_to_stage(drawn: tuple[Layout, int, Layout, int], cost: CostModel | None) -> None:
    """Several cuts, sums with copies, and other numbers of ranks: in one step, at the least price."""
    source, ranks, target, receivers = drawn
    ends = tuple(range(ranks)), tuple(range(ranks, ranks + receivers))
    wanted = WantedLayouts(source, target, *ends, 0, "float64", planned=True, cost=cost)
    before, arrays = held(source, ranks, 0), TorchArrays()
    (steps,) = rounds(wanted)
    sent = {rank: arrays.cut(steps[rank], tensor) for rank, tensor in before.items()}
    found = {
        rank: arrays.paste(steps[rank], {peer: own[rank] for peer, own in sent.items() if rank in own})
        for rank in wanted.places
    }
    value = assembled(source, before, {rank: Coordinate(rank, 0) for rank in before})
    after = assembled(target, found, wanted.places)
    assert after.copies <= TOLERANCE
    assert (after.value - value.value).abs().max() <= TOLERANCE
    for part in plan(wanted):
        assert all(part.seconds <= way.seconds for way in part.ways if way.seconds is not None)


def test_pairs_in_several_rounds() -> None:
    taken: Counter[int] = Counter()

    @settings(max_examples=150, deadline=None, suppress_health_check=QUIET, derandomize=True)
    @given(pairs())
    def several(drawn: Drawn) -> None:
        taken[check(drawn)] += 1

    with by_bytes():
        several()
    assert taken[2] > 3


@pytest.mark.slow
@settings(max_examples=4_000, deadline=None, suppress_health_check=QUIET, database=None)
@given(pairs(), st.sampled_from((None, *COSTS)))
def test_many_pairs(drawn: Drawn, cost: CostModel | None) -> None:
    check(drawn, cost)
