"""At the edge: lengths of 63 bits, no elements, a thousand devices, ranks far apart, links that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import HealthCheck, given, settings

from hspmd_compiler.annotations import Annotation, DeviceGroup
from hspmd_compiler.base.comm_plan import CommKind, GatherForm, Traffic
from hspmd_compiler.cluster.cluster import ClusterSpec, DeviceSpec, LinkBetween, NodeSlot, NodeSpec
from hspmd_compiler.cluster.link import LinkSpec
from hspmd_compiler.passes.resolve_annotations import Method, resolve, text_of

from ...annotations.pairs import Pair, pairs
from .proof import check_every_way, check_pair

CLUSTER = ClusterSpec(
    nodes=tuple(
        NodeSpec(address, (DeviceSpec(),) * count, LinkSpec(bandwidth, 1e-6))
        for address, count, bandwidth in (("a", 1, 1e9), ("b", 3, 3e11), ("c", 5, 6e10), ("d", 24, 9e11))
    ),
    link=LinkSpec(1e9, 5e-6),
    links=(LinkBetween(("a", "b"), LinkSpec(4e10, 2e-6)), LinkBetween(("c", "d"), LinkSpec(1e7, 5e-5))),
)
STRIDE, FIRST = 7, 3


class ClusterCost:
    """Every link moves at its own rate, and all of them at once; ranks are numbered with gaps."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        self.node = {FIRST + STRIDE * place: node for place, (node, _) in enumerate(cluster.slots)}

    def near(self, rank: int) -> frozenset[int]:
        return frozenset(other for other, node in self.node.items() if node == self.node[rank])

    def unequal_forms_s(
        self, kind: CommKind, group: Sequence[int], sizes: Sequence[float]
    ) -> dict[GatherForm, float]:
        return {}

    def comm_s(self, traffic: Sequence[Traffic]) -> float:
        sizes: dict[tuple[int, int], int] = {}
        for each in traffic:
            for (sender, receiver), size in each.volumes.items():
                ends = (self.node[sender], self.node[receiver])
                sizes[ends] = sizes.get(ends, 0) + size
        reduced = (
            2 * self._seconds(self.node[one], self.node[other], each.size)
            for each in traffic
            if each.kind is CommKind.ALL_REDUCE
            for one, other in pairwise((*each.ranks, each.ranks[0]))
        )
        return max([*(self._seconds(*ends, size) for ends, size in sizes.items()), *reduced], default=0.0)

    def _seconds(self, first: int, second: int, size: int) -> float:
        link = self.cluster.path(NodeSlot(first, 0), NodeSlot(second, 1))
        assert link is not None
        return link.seconds(size)


def with_gaps(annotation: Annotation) -> Annotation:
    groups = (tuple(FIRST + STRIDE * device for device in group) for group in annotation.groups)
    return replace(annotation, groups=tuple(map(DeviceGroup, groups)))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(pairs())
def test_links_that_differ(pair: Pair) -> None:
    """Ranks far apart, on machines of unequal size and links."""
    source, target, shape = pair
    cost = ClusterCost(CLUSTER)
    found = check_pair(with_gaps(source), with_gaps(target), shape, cost)
    check_every_way(found, cost)
    assert text_of(found)


def test_lengths_of_63_bits() -> None:
    """Bytes are counted exactly, where a machine word would overflow."""
    length = 2**63 - 1
    found = resolve("[0,1]  <S0x2>", "[0,1]  <Dx2>", (length, 2**62), "float64")
    more, less = (length + 1) // 2 * 2**62 * 8, length // 2 * 2**62 * 8
    assert (found.loads()[0].sent, found.loads()[1].sent) == (more, less)


def test_a_thousand_devices() -> None:
    """A gradient of eight parts, summed over pipelines of which every other one splits in four."""
    groups = [range(first, first + 8) for first in range(0, 1024, 8)]
    devices = " | ".join(",".join(map(str, group)) for group in groups)
    states = " | ".join(["S0x8", "S0x4 Dx2"] * 64)
    source, target = (f"[{devices}]  <{states}>  hetero={key}" for key in ("partial", "dup"))
    found = resolve(source, target, (8192, 8192), "bfloat16")
    assert {part.method for part in found.parts} == {Method.RELAY}
    assert [len(part.devices) for part in found.parts] == [256] * 4
    assert 0 < found.seconds < max(way.seconds for part in found.parts for way in part.ways if way.seconds)


def test_no_elements_and_scalars() -> None:
    """An empty tensor moves nothing; a scalar is summed by whoever needs it."""
    for pair in (("[0,1,2]  <Px3>", "[0,1,2]  <Dx3>"), ("[0,1,2]  <S0x3>", "[3,4]  <S1x2>")):
        assert not resolve(*pair, (0, 5)).loads()
    scalar = resolve("[0,1,2]  <Px3>", "[3]  <R>", (), "float32")
    assert {rank: (load.sent, load.received) for rank, load in scalar.loads().items()} == {
        0: (4, 0),
        1: (4, 0),
        2: (4, 0),
        3: (0, 12),
    }
