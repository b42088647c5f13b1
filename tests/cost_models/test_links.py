"""Seconds of rings, exchanges and messages: each formula by hand, and NICs that ranks share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.comm_plan import Combine, CommKind, GatherForm, Traffic
from hspmd_compiler.cluster.calibration import Calibration, Fit
from hspmd_compiler.cluster.cluster import ClusterSpec, NodeSlot
from hspmd_compiler.cost_models.links import ClusterCost
from hspmd_compiler.ir.annotated import CommMarker
from hspmd_compiler.layout.layout import Factor, make_layout
from hspmd_compiler.passes.resolve_comm import CommResolver
from tests.cost_models.priced import INSIDE, NIC, cluster, device

MB = 1 << 20
NODE = [device(), device()]


def cost_of(spec: ClusterSpec) -> ClusterCost:
    return ClusterCost(spec, dict(enumerate(spec.slots)))


TWO_NODES = cost_of(cluster(NODE, NODE))


def test_ring_inside_a_node() -> None:
    """2 (n - 1) hops of 1/n of the bytes each."""
    wanted = 2 * 1 * (INSIDE.latency + 64 * MB / 2 / INSIDE.bandwidth)
    assert TWO_NODES.all_reduce_s((0, 1), 64 * MB) == pytest.approx(wanted)


def test_ring_goes_by_its_slowest_link_and_shares_the_nic() -> None:
    alone = 2 * 3 * (NIC.latency + 64 * MB / 4 / NIC.bandwidth)
    assert TWO_NODES.all_reduce_s((0, 1, 2, 3), 64 * MB) == pytest.approx(alone)
    two = 2 * (NIC.latency + 2 * 64 * MB / 2 / NIC.bandwidth)
    assert TWO_NODES.all_reduce_s((0, 2), 64 * MB, rings=2) == pytest.approx(two)


def test_few_bytes_go_by_a_tree() -> None:
    many = cost_of(cluster(*[[device()]] * 8))
    assert many.all_reduce_s(range(8), 16) == pytest.approx(2 * 3 * NIC.latency, rel=1e-2)


@given(size=st.integers(1, 1 << 30), members=st.integers(2, 4), rings=st.integers(1, 8))
def test_more_bytes_and_more_rings_take_no_less(size: int, members: int, rings: int) -> None:
    group = tuple(range(members))
    assert TWO_NODES.all_reduce_s(group, size + 1, rings) >= TWO_NODES.all_reduce_s(group, size, rings)
    assert TWO_NODES.all_reduce_s(group, size, rings + 1) >= TWO_NODES.all_reduce_s(group, size, rings)


def test_messages_of_a_node_share_its_nic() -> None:
    """Two ranks of one node each send to another node: the NIC carries both."""
    both = TWO_NODES.messages_s({(0, 2): 32.0 * MB, (1, 3): 32.0 * MB})
    assert both[0, 2] == pytest.approx(NIC.latency + 64 * MB / NIC.bandwidth)
    assert TWO_NODES.messages_s({(0, 2): 32.0 * MB})[0, 2] == pytest.approx(NIC.seconds(32 * MB))
    assert TWO_NODES.messages_s({(0, 1): 32.0 * MB})[0, 1] == pytest.approx(INSIDE.seconds(32 * MB))


def test_exchange_takes_as_long_as_its_busiest_end() -> None:
    volumes = {(0, 1): 8.0 * MB, (2, 1): 4.0 * MB, (3, 1): 4.0 * MB}
    found = TWO_NODES.exchange_s((0, 1, 2, 3), volumes, CommKind.ALL_TO_ALL)
    assert found == pytest.approx(NIC.latency + 8 * MB / INSIDE.bandwidth + 8 * MB / NIC.bandwidth)
    assert TWO_NODES.exchange_s((0, 1), {(0, 0): 8.0 * MB}, CommKind.ALL_TO_ALL) == 0


def test_forms_of_an_unequal_gather() -> None:
    """Padding pays for the largest piece n times, broadcasts for each piece once."""
    equal = TWO_NODES.unequal_forms_s(CommKind.ALL_GATHER, (0, 1), (MB, MB))
    uneven = TWO_NODES.unequal_forms_s(CommKind.ALL_GATHER, (0, 1, 2, 3), (64 * MB, 0, 0, 0))
    assert equal[GatherForm.PADDED] <= equal[GatherForm.BROADCASTS]
    assert uneven[GatherForm.BROADCASTS] < uneven[GatherForm.PADDED]
    assert set(equal) == set(GatherForm)


def test_what_goes_on_at_once_shares_nics() -> None:
    rings = [Traffic(CommKind.ALL_REDUCE, pair, {}, 64 * MB) for pair in ((0, 2), (1, 3))]
    together, alone = TWO_NODES.comm_s(rings), TWO_NODES.comm_s(rings[:1])
    assert together == pytest.approx(NIC.latency + 128 * MB / NIC.bandwidth)
    assert alone < together
    assert TWO_NODES.comm_s([]) == 0


def test_near_are_the_ranks_of_the_node() -> None:
    assert TWO_NODES.near(0) == {0, 1}
    assert cost_of(cluster(NODE)).near(0) is None
    assert hash(TWO_NODES) == hash(TWO_NODES)


def test_without_a_nic_the_best_link_is_shared() -> None:
    spec = cluster(NODE, NODE, link=NIC)
    bare = replace(spec, nodes=tuple(replace(node, nic=None) for node in spec.nodes))
    volumes = {(0, 2): 32.0 * MB, (1, 3): 32.0 * MB}
    assert cost_of(bare).messages_s(volumes) == pytest.approx(TWO_NODES.messages_s(volumes))


@pytest.mark.parametrize("nodes", [((5, 7), (4, 6)), ((5, 6), (4, 7))])
def test_a_plan_asks_a_cluster(nodes: tuple[tuple[int, int], ...]) -> None:
    """Ranks 5 and 4 have the value, 7 and 6 of the next stage need it: each from the one on its node."""
    slots = {rank: NodeSlot(node, at) for node, ranks in enumerate(nodes) for at, rank in enumerate(ranks)}
    cost = ClusterCost(cluster(NODE, NODE), slots)
    value = make_layout(((Factor(1 << 20),),))
    marker = CommMarker(value, value, Combine.COPY, 0, 1)
    steps = CommResolver(cost).transfer(marker, (5, 4), (7, 6), 0, "float32")
    for sender, receiver in nodes:
        assert [piece.peer for piece in steps[receiver].recvs] == [sender]


def measured(**more: object) -> ClusterCost:
    fits: dict[str, object] = {"operators": {}, "exchange": {}, "collectives": {}, **more}
    update, fixed = Fit(0.0), 0.0
    calibration = Calibration(
        "2026-01-01",
        "2",
        "cpu",
        1,
        update=update,
        instruction_s=fixed,
        platform_bytes=0,
        sends="async",
        **fits,
    )  # type: ignore[arg-type]
    return cost_of(replace(cluster(NODE, NODE), calibration=calibration))


def test_measured_collectives_stand_for_groups_of_their_size_and_place() -> None:
    fit = Fit(1e-3, 0.0, 1e-9)
    cost = measured(collectives={"all_reduce:2:one_node": fit})
    assert cost.all_reduce_s((0, 1), MB) == pytest.approx(1e-3 + MB * 1e-9)
    assert cost.all_reduce_s((0, 2), MB) == TWO_NODES.all_reduce_s((0, 2), MB)


def test_gradient_buckets_have_a_measurement_of_their_own() -> None:
    """They are sent from memory that is new in each step; without one they are as any other sum."""
    plain, new = Fit(1e-3, 0.0, 1e-9), Fit(1e-3, 0.0, 3e-9)
    cost = measured(collectives={"all_reduce:2:one_node": plain, "gradient:2:one_node": new})
    assert cost.gradient_s((0, 1), MB) == pytest.approx(1e-3 + MB * 3e-9)
    assert cost.gradient_s((0, 1), MB, rings=2) == pytest.approx(1e-3 + MB * 6e-9)
    assert cost.all_reduce_s((0, 1), MB) == pytest.approx(1e-3 + MB * 1e-9)
    assert cost.gradient_s((0, 2), MB) == TWO_NODES.all_reduce_s((0, 2), MB)
    without = measured(collectives={"all_reduce:2:one_node": plain})
    assert without.gradient_s((0, 1), MB) == without.all_reduce_s((0, 1), MB)
    assert cost.gradient_s((0,), MB) == cost.gradient_s((0, 1), 0) == 0.0


def test_a_group_of_another_size_scales_as_a_ring() -> None:
    cost = measured(collectives={"all_reduce:2:across": Fit(1e-3, 0.0, 1e-9)})
    assert cost.all_reduce_s((0, 1, 2, 3), MB) == pytest.approx(3e-3 + MB * 1.5e-9)


def test_measured_exchanges_go_by_what_a_member_sends() -> None:
    """A calibration counts the bytes that a member sends to others."""
    fit = Fit(0.0, 0.0, 1e-9)
    cost = measured(collectives={"all_gather:2:one_node": fit, "all_to_all:2:one_node": fit})
    assert cost.ring_pass_s((0, 1), MB) == pytest.approx(MB * 1e-9)
    volumes = {(0, 0): 8.0 * MB, (0, 1): 2.0 * MB, (1, 0): 1.0 * MB}
    assert cost.exchange_s((0, 1), volumes, CommKind.ALL_TO_ALL) == pytest.approx(2 * MB * 1e-9)


def test_measured_messages() -> None:
    cost = measured(exchange={"send": Fit(1e-4, 0.0, 2e-9)})
    assert cost.message_s(0, 1, MB) == pytest.approx(1e-4 + MB * 2e-9)
