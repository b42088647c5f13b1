"""Properties of moves on clusters with any figures: what is free, what is dual, no detour is cheaper."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.base.comm_plan import CommKind, Traffic
from hspmd_compiler.cluster.cluster import ClusterSpec, DeviceSpec, NodeSpec
from hspmd_compiler.cluster.link import LinkSpec
from hspmd_compiler.cost_models.links import ClusterCost
from hspmd_compiler.synthesizer.machine import SearchMachine, machine_of
from hspmd_compiler.synthesizer.moves import EXCHANGE, GATHER, REDUCE, SCATTER, TypeMove, move
from hspmd_compiler.synthesizer.ratios import vertices
from hspmd_compiler.synthesizer.space.codes import PENDING, REPLICATE, WHOLE, cut_code
from hspmd_compiler.synthesizer.space.cuts import ValueCut

CUTS = (ValueCut(0, 0, 64, 1, 1), ValueCut(1, 1, 64, 1, 1))
ONE, OTHER = cut_code(0, 0, 1), cut_code(1, 0, 1)
SIZE = 1 << 20


def device(speed: float = 1e13) -> DeviceSpec:
    return DeviceSpec("cpu", memory=1 << 34, peaks={"float32": speed}, memory_bandwidth=1e12)


def machine(
    ranks: int, bandwidth: float, latency: float, *, nodes: int = 1, mixed: bool = False
) -> SearchMachine:
    devices = [device(1e13 if place % 2 or not mixed else 3e12) for place in range(ranks // nodes)]
    link = LinkSpec(bandwidth, latency)
    spec = ClusterSpec(tuple(NodeSpec(str(n), tuple(devices), link, link) for n in range(nodes)))
    ratios = vertices([one.peaks["float32"] for one in devices] * nodes) if mixed else ()
    return machine_of(spec, [list(spec.slots)], ratios=[ratios] if ratios else ())


def moved(on: SearchMachine, before: int, after: int) -> TypeMove:
    found = move(on, SIZE, CUTS, before, after, fractions=True)
    assert found is not None
    return found


figures = st.builds(
    machine,
    st.sampled_from([2, 4, 8]),
    st.floats(1e8, 1e12),
    st.floats(1e-8, 1e-4),
    nodes=st.sampled_from([1, 2]),
)


@given(on=figures)
@settings(max_examples=15, deadline=None)
def test_each_collective_goes_back_as_its_dual(on: SearchMachine) -> None:
    """Gather and scatter take as long one way as the other; nothing is free that communicates."""
    pairs = {
        (ONE, WHOLE): (GATHER, SCATTER),
        (ONE, REPLICATE): (GATHER, ""),
        (ONE, OTHER): (EXCHANGE, EXCHANGE),
        (PENDING, ONE): (SCATTER, GATHER),
        (PENDING, WHOLE): (REDUCE, REDUCE),
        (PENDING, REPLICATE): (REDUCE, ""),
        (REPLICATE, WHOLE): ("", REDUCE),
        (REPLICATE, ONE): ("", GATHER),
        (WHOLE, ONE): ("", ""),
        (WHOLE, REPLICATE): ("", ""),
    }
    for (before, after), halves in pairs.items():
        found = moved(on, before, after)
        assert (found.forward, found.backward) == halves
        assert (found.forward_s > 0, found.backward_s > 0) == tuple(map(bool, halves))
    assert moved(on, ONE, WHOLE).seconds == pytest.approx(moved(on, PENDING, ONE).seconds)
    assert move(on, SIZE, CUTS, ONE, PENDING, fractions=True) is None


@given(on=st.builds(machine, st.sampled_from([2, 4, 8]), st.floats(1e8, 1e12), st.floats(1e-8, 1e-4)))
@settings(max_examples=15, deadline=None)
def test_no_detour_is_cheaper_than_the_way(on: SearchMachine) -> None:
    """Inside a node. But one: what is reduced may be scattered first, as a ring does it. Between nodes an
    all-reduce goes around a ring, where other exchanges are priced by what each NIC has to carry."""
    codes = (REPLICATE, WHOLE, ONE, OTHER)
    for before, between, after in product((*codes, PENDING), codes, codes):
        if before in (PENDING, REPLICATE) and after in (WHOLE, REPLICATE):
            continue
        detour = moved(on, before, between).seconds + moved(on, between, after).seconds
        assert moved(on, before, after).seconds <= detour * (1 + 1e-9), (before, between, after)


@given(on=figures, more=st.integers(1, 1 << 20))
@settings(max_examples=15, deadline=None)
def test_more_bytes_take_no_less(on: SearchMachine, more: int) -> None:
    for before, after in product((REPLICATE, PENDING, ONE), (WHOLE, REPLICATE, OTHER)):
        low, high = (move(on, size, CUTS, before, after, fractions=True) for size in (SIZE, SIZE + more))
        assert low is not None
        assert high is not None
        assert low.seconds <= high.seconds


def test_a_reslice_moves_only_what_lies_elsewhere() -> None:
    """From even pieces to proportional ones; a value without a gradient moves forward alone."""
    on = machine(4, 1e9, 1e-6, mixed=True)
    assert len(on.vertices) == 2
    one, other = cut_code(0, 0, 2), cut_code(0, 1, 2)
    resliced = moved(on, one, other)
    assert 0 < resliced.seconds < moved(on, one, cut_code(1, 1, 2)).seconds
    alone = move(on, SIZE, CUTS, one, other, fractions=False)
    assert alone is not None
    assert (alone.forward_s, alone.backward_s) == (resliced.forward_s, 0.0)
    assert moved(on, one, one).seconds == 0.0


@pytest.mark.parametrize(("size", "outer"), [(1, 6), (2, 3), (3, 2), (2, 2)])
def test_sums_over_groups_share_nics(size: int, outer: int) -> None:
    """Pieces of a gradient are summed in several rings at once, as `ClusterCost` prices them."""
    inside, nic = LinkSpec(1e11, 1e-6), LinkSpec(1e10, 5e-6)
    counts = (2, 4) if size * outer == 6 else (2, 2)
    spec = ClusterSpec(
        tuple(NodeSpec(str(n), (device(),) * count, inside, nic) for n, count in enumerate(counts))
    )
    slots = list(spec.slots)
    groups = [slots[at : at + size] for at in range(0, len(slots), size)]
    priced = machine_of(spec, groups)
    cost = ClusterCost(spec, dict(enumerate(slots)))
    rings = [tuple(range(place, len(slots), size)) for place in range(size)]
    for moved_bytes in (1 << 12, 1 << 20, 1 << 24, 1 << 28):
        wanted = cost.comm_s([Traffic(CommKind.ALL_REDUCE, ring, {}, moved_bytes) for ring in rings])
        assert priced.piece_reduces.seconds(moved_bytes) == pytest.approx(wanted, rel=0.02)
