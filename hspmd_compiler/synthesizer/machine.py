"""The machines of a search as prices: seconds of exchanges by bytes, rates of devices, memory.

Ranks are two nested groups: `ranks` inner ones hold pieces of values; outer groups, one pipeline each, hold
samples. Groups may have other numbers of ranks, and then ratio vectors of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import inf

from ..base.by_key import by_key
from ..base.devices import DeviceKind, family_of
from ..cluster.calibration import GRADIENT
from ..cluster.cluster import ClusterSpec, DeviceSpec, NodeSlot
from ..cluster.completed import completed_cluster
from ..cost_models.compute import DeviceRates
from ..cost_models.links import ClusterCost
from ..cost_models.steps.figures import check_ranks
from ..cost_models.steps.shared_hosts import hosts_of, stretches
from .link_prices import NO_LINK, LinkPrice, MovePrices, SearchGroup, exchange_prices
from .whole_shares import ANY, Shares, WholeShares


@dataclass(frozen=True, slots=True)
class Lane:
    """Ranks that are alike. shares: of a value by each ratio vector. batch: the part of the samples that
    their group has. capacity_bytes: of memory that a step may use."""

    rates: DeviceRates
    shares: Shares
    batch: float
    capacity_bytes: float = inf


@dataclass(frozen=True, slots=True)
class SearchMachine:
    """ranks, vertices: inner ranks, and their ratio vectors; of the largest group. lanes: ranks that differ.
    devices: of all groups, where these have not as many each.

    gathers, scatters: by vertex, of the bytes of the whole value; exchanges: from one to another, of another
    dim; reslices: of the same dim. reduces: of a sum over the inner ranks. all_reduces: of gradients over all
    ranks; piece_reduces: of a piece over the groups; param_gathers: of a parameter from all ranks.
    beside: the part of a gradient's sum for which its ranks may compute. whole,
    moved: shares in whole units, and prices of exchanges by them; None: units are not counted.
    """

    ranks: int
    vertices: tuple[Shares, ...]
    lanes: tuple[Lane, ...]
    gathers: tuple[LinkPrice, ...] = ()
    scatters: tuple[LinkPrice, ...] = ()
    exchanges: tuple[tuple[LinkPrice, ...], ...] = ()
    reslices: tuple[tuple[LinkPrice, ...], ...] = ()
    reduces: LinkPrice = NO_LINK
    outer: int = 1
    devices: int = 0
    all_reduces: LinkPrice = NO_LINK
    piece_reduces: LinkPrice = NO_LINK
    param_gathers: LinkPrice = NO_LINK
    micro_batches: int = 1
    beside: float = 1.0
    whole: WholeShares | None = field(default=None, compare=False, repr=False)
    moved: MovePrices | None = field(default=None, compare=False, repr=False)

    @property
    def is_even(self) -> bool:
        """Whether all groups have as many ranks."""
        return self.copies == self.outer * self.ranks

    @property
    def copies(self) -> int:
        """Of what every rank holds."""
        return self.devices or self.outer * self.ranks

    def shares(self, vertex: int, units: int = ANY) -> Shares:
        """Of each lane, by a ratio vector, of what is handed out in so many units."""
        if self.whole is None:
            return tuple(lane.shares[vertex] for lane in self.lanes)
        return self.whole.of_lanes(vertex, units)

    def gather(self, vertex: int, units: int = ANY) -> LinkPrice:
        """As `gathers`, in whole units."""
        return self.gathers[vertex] if self.moved is None else self.moved.gather((vertex, units))

    def scatter(self, vertex: int, units: int = ANY) -> LinkPrice:
        """As `scatters`, in whole units."""
        return self.scatters[vertex] if self.moved is None else self.moved.scatter((vertex, units))

    def exchange(self, before: tuple[int, int], after: tuple[int, int], *, same_dim: bool) -> LinkPrice:
        """As `exchanges` and `reslices`, in whole units: from (vertex, units) to others."""
        if self.moved is not None:
            return self.moved.reslice(before, after) if same_dim else self.moved.exchange(before, after)
        return (self.reslices if same_dim else self.exchanges)[before[0]][after[0]]

    @property
    def batch(self) -> float:
        """The largest part of the samples that a group has in one micro-batch."""
        return max(lane.batch for lane in self.lanes) / self.micro_batches


def machine_of(
    cluster: ClusterSpec,
    groups: Sequence[Sequence[NodeSlot]],
    *,
    ratios: Sequence[Sequence[Shares]] = (),
    batches: Sequence[float] = (),
    samples: Sequence[int] = (),
    micro_batches: int = 1,
    dtypes: Sequence[str] = ("float32",),
    usable: float = 0.95,
) -> SearchMachine:
    """Groups of devices, one pipeline a group.

    ratios: weights of each group's ranks, as many vectors for each; none: equal ones. batches: weights of the
    groups; none: equal ones. samples: of each group in a micro-batch, where they are counted. dtypes: that
    products are computed in. usable: of a device's memory. Raises EstimateError that lists all figures which
    the cluster lacks.
    """
    slots = dict(enumerate(slot for group in groups for slot in group))
    whole = completed_cluster(cluster, list(slots.values()), dtypes).cluster
    rates = _rates(whole, slots)
    check_ranks(whole, slots, rates, dtypes)
    parts = _normal(batches or [1.0] * len(groups))
    held = _groups(groups, ratios, parts, samples or [0] * len(groups))
    largest = max(held, key=lambda group: len(group.ranks))
    lanes = by_key(_lanes(rates, held, usable))
    cost = ClusterCost(whole, slots)
    shared = bool(hosts_of(whole, slots, rates).of)
    return SearchMachine(
        ranks=len(largest.ranks),
        vertices=largest.vertices,
        lanes=tuple(lanes),
        outer=len(groups),
        devices=len(slots),
        micro_batches=micro_batches,
        beside=1.0 - (cost.busy_part(GRADIENT, tuple(slots)) if shared else 0.0),
        whole=WholeShares(
            [group.vertices for group in held], [group.samples for group in held], [*lanes.values()]
        ),
        **exchange_prices(cost, _priced(held)),  # type: ignore[arg-type]
    )


def _groups(
    groups: Sequence[Sequence[NodeSlot]],
    ratios: Sequence[Sequence[Shares]],
    parts: Shares,
    samples: Sequence[int],
) -> list[SearchGroup]:
    """With the part of all samples that each has."""
    ends = [0, *accumulate(map(len, groups))]
    vectors = ratios or [[(1.0,) * len(group)] for group in groups]
    return [
        SearchGroup(tuple(range(low, high)), tuple(map(_normal, vectors[at])), parts[at], samples[at])
        for at, (low, high) in enumerate(pairwise(ends))
    ]


def _priced(groups: Sequence[SearchGroup]) -> list[SearchGroup]:
    """As exchanges are priced: groups of one size as if each had as many samples."""
    even = len({len(group.ranks) for group in groups}) == 1
    most = max(group.part for group in groups)
    return [replace(group, part=1.0 if even else group.part / most) for group in groups]


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
    rates: Mapping[int, DeviceRates], groups: Sequence[SearchGroup], usable: float
) -> Iterator[tuple[Lane, tuple[int, int]]]:
    """Of each rank, with its group and its place there."""
    for number, group in enumerate(groups):
        for place, rank in enumerate(group.ranks):
            memory = rates[rank].device.memory
            shares = tuple(vertex[place] for vertex in group.vertices)
            capacity = inf if memory is None else usable * memory
            yield Lane(rates[rank], shares, group.part, capacity), (number, place)
