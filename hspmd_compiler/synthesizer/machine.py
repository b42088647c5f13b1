"""The machines of a search as prices: seconds of exchanges by bytes, rates of devices, memory.

Ranks are two nested groups: `ranks` inner ones hold pieces of values; outer groups, one pipeline each, hold
samples. Prices are closed forms of `ClusterCost`: what each kind of exchange takes for the bytes of the whole
value, all groups at once, by the ratio vectors that say the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf

from ..base.comm_plan import CommKind, Traffic
from ..base.devices import DeviceKind, family_of
from ..cluster.cluster import ClusterSpec, DeviceSpec, NodeSlot
from ..cluster.completed import completed_cluster
from ..cost_models.compute import DeviceRates
from ..cost_models.links import ClusterCost
from ..cost_models.steps.figures import check_ranks
from ..cost_models.steps.shared_hosts import stretches

Shares = tuple[float, ...]
SMALL_BYTES, LARGE_BYTES = 1 << 12, 1 << 30
"""Where closed forms are read off as straight lines."""
_HUGE = (1 << 40, 1 << 41)
"""Bytes of which a NIC that several rings share takes longest, if it does of any."""
ALIKE = 1e-6


@dataclass(frozen=True, slots=True)
class LinkPrice:
    """Seconds of one kind of exchange. lines: (fixed, per byte). least: whether the least of them holds, or
    the greatest. shared: the line of the NIC that has most to carry, below which nothing is."""

    lines: tuple[tuple[float, float], ...] = ()
    least: bool = False
    shared: tuple[float, float] = (0.0, 0.0)

    def seconds(self, size_bytes: float) -> float:
        """Of so many bytes; nothing is free."""
        if not self.lines or not size_bytes:
            return 0.0
        found = [fixed + per_byte * size_bytes for fixed, per_byte in self.lines]
        fixed, per_byte = self.shared
        return max(min(found) if self.least else max(found), fixed + per_byte * size_bytes)

    def half(self) -> LinkPrice:
        """Of a sum's scatter alone, or of its gather."""
        lines = tuple((fixed / 2, per_byte / 2) for fixed, per_byte in self.lines)
        fixed, per_byte = self.shared
        return LinkPrice(lines, self.least, (fixed / 2, per_byte / 2))


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank. shares: of a value by each ratio vector. batch: the part of the samples that its group has.
    capacity_bytes: of memory that a step may use."""

    rates: DeviceRates
    shares: Shares
    batch: float
    capacity_bytes: float = inf


@dataclass(frozen=True, slots=True)
class SearchMachine:
    """vertices: ratio vectors of the inner ranks. lanes: ranks that differ.

    gathers, scatters: by vertex, of the bytes of the whole value; exchanges: from one to another, of another
    dim; reslices: of the same dim. reduces: of a sum over the inner ranks. all_reduces: of gradients over all
    ranks; piece_reduces: of a piece over the groups; param_gathers: of a parameter from all ranks.
    """

    ranks: int
    vertices: tuple[Shares, ...]
    lanes: tuple[Lane, ...]
    gathers: tuple[LinkPrice, ...] = ()
    scatters: tuple[LinkPrice, ...] = ()
    exchanges: tuple[tuple[LinkPrice, ...], ...] = ()
    reslices: tuple[tuple[LinkPrice, ...], ...] = ()
    reduces: LinkPrice = LinkPrice()
    outer: int = 1
    all_reduces: LinkPrice = LinkPrice()
    piece_reduces: LinkPrice = LinkPrice()
    param_gathers: LinkPrice = LinkPrice()
    micro_batches: int = 1

    @property
    def batch(self) -> float:
        """The largest part of the samples that a group has in one micro-batch."""
        return max(lane.batch for lane in self.lanes) / self.micro_batches


def machine_of(
    cluster: ClusterSpec,
    groups: Sequence[Sequence[NodeSlot]],
    *,
    ratios: Sequence[Shares] = (),
    batches: Sequence[float] = (),
    micro_batches: int = 1,
    dtypes: Sequence[str] = ("float32",),
    usable: float = 0.95,
) -> SearchMachine:
    """Groups of as many devices each, one pipeline a group.

    ratios: weights of a group's ranks; none: equal ones. batches: weights of the groups; none: equal ones.
    dtypes: that products are computed in. usable: of a device's memory. Raises EstimateError that lists all
    figures which the cluster lacks.
    """
    slots = dict(enumerate(slot for group in groups for slot in group))
    count = len(groups[0])
    whole = completed_cluster(cluster, list(slots.values()), dtypes).cluster
    rates = _rates(whole, slots)
    check_ranks(whole, slots, rates, dtypes)
    vertices = tuple(map(_normal, ratios or [(1.0,) * count]))
    return SearchMachine(
        ranks=count,
        vertices=vertices,
        lanes=tuple(dict.fromkeys(_lanes(rates, vertices, _normal(batches or [1.0] * len(groups)), usable))),
        outer=len(groups),
        micro_batches=micro_batches,
        **_prices(  # type: ignore[arg-type]
            ClusterCost(whole, slots), len(groups), vertices
        ),
    )


def _normal(weights: Sequence[float]) -> Shares:
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def _rates(cluster: ClusterSpec, slots: Mapping[int, NodeSlot]) -> dict[int, DeviceRates]:
    """One object for devices that are alike. Ranks that share processors are slower by a closed form."""
    made: dict[str, DeviceRates] = {}

    def rates(device: DeviceSpec) -> DeviceRates:
        key = repr(device)
        if key not in made:
            family = family_of(device.kind or DeviceKind.CPU.value)
            made[key] = DeviceRates.of(device, family, cluster.calibration)
        return made[key]

    devices = {rank: replace(cluster.device_of(slot), id=None) for rank, slot in slots.items()}
    stretched = stretches(cluster, slots, {rank: rates(device) for rank, device in devices.items()})
    return {
        rank: rates(replace(device, pace=device.pace * stretched[rank])) for rank, device in devices.items()
    }


def _lanes(
    rates: Mapping[int, DeviceRates], vertices: Sequence[Shares], batches: Shares, usable: float
) -> Iterator[Lane]:
    count = len(vertices[0])
    for rank, rate in rates.items():
        group, place = divmod(rank, count)
        memory = rate.device.memory
        yield Lane(
            rate,
            tuple(vertex[place] for vertex in vertices),
            batches[group],
            inf if memory is None else usable * memory,
        )


def _prices(cost: ClusterCost, outer: int, vertices: Sequence[Shares]) -> dict[str, object]:
    """All closed forms of a SearchMachine."""
    count, everyone = len(vertices[0]), tuple(cost.slots)
    groups = [everyone[first : first + count] for first in range(0, len(everyone), count)]
    across = list(zip(*groups, strict=True))
    found: dict[str, object] = {
        "reduces": _reduce(cost, groups),
        "all_reduces": _reduce(cost, [everyone]),
        "piece_reduces": _reduce(cost, across) if outer > 1 else LinkPrice(),
        "param_gathers": _even_gather(cost, everyone),
    }
    if count == 1:
        return found
    moved = _MovePrices(cost, groups)
    gathers = [[[held] * count for held in vertex] for vertex in vertices]
    scatters = [[list(vertex)] * count for vertex in vertices]
    arrays: dict[str, object] = {
        "gathers": tuple(moved.price(CommKind.ALL_GATHER, one) for one in gathers),
        "scatters": tuple(moved.price(CommKind.REDUCE_SCATTER, one) for one in scatters),
        "exchanges": tuple(
            tuple(
                moved.price(CommKind.ALL_TO_ALL, [[a * b for b in after] for a in before])
                for after in vertices
            )
            for before in vertices
        ),
        "reslices": tuple(
            tuple(moved.price(CommKind.ALL_TO_ALL, _overlaps(before, after)) for after in vertices)
            for before in vertices
        ),
    }
    return found | arrays


def _overlaps(before: Shares, after: Shares) -> list[list[float]]:
    """Of what each rank holds of a dim by one vector, the part that each other holds by another."""
    old, new = ([0.0, *accumulate(shares)] for shares in (before, after))
    return [
        [
            max(0.0, min(old[i + 1], new[j + 1]) - max(old[i], new[j])) if i != j else 0.0
            for j in range(len(after))
        ]
        for i in range(len(before))
    ]


@dataclass(slots=True)
class _MovePrices:
    """Prices of exchanges in all groups at once; of those that differ in bytes alone one is worked out."""

    cost: ClusterCost
    groups: Sequence[tuple[int, ...]]
    _known: dict[object, LinkPrice] = field(default_factory=dict)

    def price(self, kind: CommKind, parts: Sequence[Sequence[float]]) -> LinkPrice:
        """parts: of the value, by sender and receiver."""
        sent = [part for i, row in enumerate(parts) for j, part in enumerate(row) if i != j]
        most = max(sent, default=0.0)
        if not most:
            return LinkPrice()
        calibration = self.cost.cluster.calibration
        measured = kind if calibration is not None and calibration.collectives else None
        shape = tuple(tuple(round(part / most, 9) for part in row) for row in parts)
        if (measured, shape) not in self._known:
            self._known[measured, shape] = _lines(lambda size: self._seconds(kind, shape, size), least=False)
        lines = self._known[measured, shape].lines
        return LinkPrice(tuple((fixed, per_byte * most) for fixed, per_byte in lines))

    def _seconds(self, kind: CommKind, parts: Sequence[Sequence[float]], size: int) -> float:
        pairs = [
            (i, j, round(size * part))
            for i, row in enumerate(parts)
            for j, part in enumerate(row)
            if i != j and part
        ]
        return self.cost.comm_s(
            [
                Traffic(kind, group, {(group[i], group[j]): moved for i, j, moved in pairs})
                for group in self.groups
            ]
        )


def _reduce(cost: ClusterCost, groups: Sequence[tuple[int, ...]]) -> LinkPrice:
    if len(groups[0]) == 1:
        return LinkPrice()
    traffic = [[Traffic(CommKind.ALL_REDUCE, group, {}, size) for group in groups] for size in _HUGE]
    alone = _lines(lambda size: max(cost.all_reduce_s(group, size) for group in groups), least=True)
    low, high = map(cost.comm_s, traffic)
    per_byte = (high - low) / (_HUGE[1] - _HUGE[0])
    if per_byte <= min(slope for _, slope in alone.lines) * (1 + ALIKE):
        return alone
    return replace(alone, shared=(max(0.0, low - per_byte * _HUGE[0]), per_byte))


def _even_gather(cost: ClusterCost, everyone: tuple[int, ...]) -> LinkPrice:
    if len(everyone) == 1:
        return LinkPrice()
    return _lines(lambda size: cost.ring_pass_s(everyone, size / len(everyone)), least=False)


def _lines(seconds: Callable[[int], float], *, least: bool) -> LinkPrice:
    """The straight lines that the price follows for few bytes and for many."""
    found = []
    for size in (SMALL_BYTES, LARGE_BYTES):
        low, high = seconds(size), seconds(2 * size)
        per_byte = max(0.0, (high - low) / size)
        line = (max(0.0, low - per_byte * size), per_byte)
        if line not in found:
            found.append(line)
    return LinkPrice(tuple(found), least)
