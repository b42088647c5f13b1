"""Numbers of plans by hand, and what a cluster tells of links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hspmd_compiler.cluster.cluster import ClusterSpec, DeviceSpec, LinkBetween, NodeSpec
from hspmd_compiler.cluster.link import LinkSpec
from hspmd_compiler.program.switch_plan import Move, StatePart, SwitchClass, SwitchPlan, SwitchScope
from hspmd_compiler.switching.links import SwitchLinks, links_of
from hspmd_compiler.switching.totals import RankLoad, SwitchAmount, totals

LINKS = SwitchLinks((0, 0, 1, 1), (1.0, 1.0), 2.0, (4.0, 8.0))
"""Seconds a byte: 1 inside nodes, 2 for a rank that sends to another, 4 and 8 for NICs."""


def one_class(elements: int, holders: tuple[int, ...], needers: tuple[int, ...], *moves: Move) -> SwitchClass:
    part = StatePart("w", (elements,), (((0, elements),),))
    return SwitchClass(("value", "exp_avg"), 8, holders, needers, (part,), moves)


def test_numbers_of_a_plan() -> None:
    kept = one_class(10, (0, 1), (1, 2, 3), Move(0, 2, 0, 10), Move(2, 3, 0, 10, is_relay=True))
    near = one_class(3, (0,), (0, 1), Move(0, 1, 0, 3))
    found = totals(SwitchPlan("A", "B", SwitchScope.STATE, (kept, near)), LINKS)
    assert found.local == SwitchAmount(10 + 3, 104)
    assert found.intra_node == SwitchAmount(10 + 3, 104)
    assert found.inter_node == SwitchAmount(10, 80)
    assert found.inter_node_bound_bytes == 80
    assert found.busiest_sender == RankLoad(0, 104)
    assert found.busiest_receiver == RankLoad(2, 80)
    assert found.messages == 3
    assert found.seconds == 80 * 8, "the NIC by which it enters"
    assert (
        totals(SwitchPlan("A", "B", SwitchScope.STATE, (kept,)), replace(LINKS, is_told=False)).seconds
        is None
    )


def test_a_plan_that_moves_nothing() -> None:
    found = totals(SwitchPlan("A", "A", SwitchScope.STATE, (one_class(4, (0,), (0,)),)), LINKS)
    assert (found.busiest_sender, found.messages, found.seconds) == (RankLoad(-1, 0), 0, 0.0)


def node(address: str, *ids: int, nic: float | None = 1e9, link: float | None = 1e10) -> NodeSpec:
    devices = tuple(DeviceSpec(id=number) for number in ids)
    spec = [None if figure is None else LinkSpec(figure) for figure in (link, nic)]
    return NodeSpec(address, devices, link=spec[0], nic=spec[1])


def test_links_of_a_cluster() -> None:
    """Devices are found by their ids; a node is as slow inside as its slowest pair of devices."""
    slow = LinkBetween(("b/0", "b/1"), LinkSpec(5e9))
    cluster = ClusterSpec((node("a", 0, 4), node("b", 1, 2), node("c", 9)), LinkSpec(2e9), (slow,))
    links = links_of(cluster, (0, 1, 2, 4))
    assert links == SwitchLinks((0, 1, 1, 0), (1e-10, 2e-10, 0.0), 5e-10, (1e-9, 1e-9, 1e-9))


@pytest.mark.parametrize(
    ("nic", "link", "told"), [(None, 1e10, False), (1e9, None, False), (1e9, 1e10, True)]
)
def test_figures_that_are_not_told_are_assumed(nic: float | None, link: float | None, told: bool) -> None:
    cluster = ClusterSpec((node("a", 0, 1, nic=nic, link=link), node("b", 2, 3, nic=nic, link=link)))
    links = links_of(cluster, (0, 1, 2, 3))
    assert links.is_told is told
    assert all(links.near_s + links.nic_s)
    alone = links_of(ClusterSpec((node("a", 0, 1, nic=None),)), (0, 1))
    assert alone.is_told, "one node needs no NIC"
    assert links_of(None, (5, 6)).nodes == (0, 0)
