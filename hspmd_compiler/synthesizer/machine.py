"""The machines of a search as prices: seconds of exchanges by bytes, rates of devices, memory.

Ranks are two nested groups: `ranks` inner ones hold pieces of values; outer groups, one pipeline each, hold
samples. Groups may have other numbers of ranks, and then ratio vectors of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf

from ..base.devices import DeviceKind, family_of
from ..cluster.cluster import ClusterSpec, DeviceSpec, NodeSlot
from ..cluster.completed import completed_cluster
from ..cost_models.compute import DeviceRates
from ..cost_models.links import ClusterCost
from ..cost_models.steps.figures import check_ranks
from ..cost_models.steps.shared_hosts import stretches
from ..layout.shares import assign_units
from .link_prices import NO_LINK, LinkPrice, SearchGroup, Shares, exchange_prices


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank. shares: of a value by each ratio vector. batch: the part of the samples that its group has.
    capacity_bytes: of memory that a step may use. of_samples: its shares of the group's samples, which are
    whole ones; () where these are not counted."""

    rates: DeviceRates
    shares: Shares
    batch: float
    capacity_bytes: float = inf
    of_samples: Shares = ()


@dataclass(frozen=True, slots=True)
class SearchMachine:
    """ranks, vertices: inner ranks, and their ratio vectors; of the largest group. lanes: ranks that differ.
    devices: of all groups, where these have not as many each.

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
    reduces: LinkPrice = NO_LINK
    outer: int = 1
    devices: int = 0
    all_reduces: LinkPrice = NO_LINK
    piece_reduces: LinkPrice = NO_LINK
    param_gathers: LinkPrice = NO_LINK
    micro_batches: int = 1

    @property
    def is_even(self) -> bool:
        """Whether all groups have as many ranks."""
        return self.copies == self.outer * self.ranks

    @property
    def copies(self) -> int:
        """Of what every rank holds."""
        return self.devices or self.outer * self.ranks

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
    held = _groups(groups, ratios, _normal(batches or [1.0] * len(groups)))
    largest = max(held, key=lambda group: len(group.ranks))
    return SearchMachine(
        ranks=len(largest.ranks),
        vertices=largest.vertices,
        lanes=tuple(dict.fromkeys(_lanes(rates, held, samples or [0] * len(held), usable))),
        outer=len(groups),
        devices=len(slots),
        micro_batches=micro_batches,
        **exchange_prices(ClusterCost(whole, slots), _priced(held)),  # type: ignore[arg-type]
    )


def _groups(
    groups: Sequence[Sequence[NodeSlot]], ratios: Sequence[Sequence[Shares]], batches: Shares
) -> list[SearchGroup]:
    """With the part of all samples that each has."""
    ends = [0, *accumulate(map(len, groups))]
    vectors = ratios or [[(1.0,) * len(group)] for group in groups]
    return [
        SearchGroup(tuple(range(low, high)), tuple(map(_normal, vectors[at])), batches[at])
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
    rates: Mapping[int, DeviceRates], groups: Sequence[SearchGroup], samples: Sequence[int], usable: float
) -> Iterator[Lane]:
    for group, count in zip(groups, samples, strict=True):
        whole = [assign_units(count, vertex) for vertex in group.vertices] if count else []
        for place, rank in enumerate(group.ranks):
            memory = rates[rank].device.memory
            yield Lane(
                rates[rank],
                tuple(vertex[place] for vertex in group.vertices),
                group.part,
                inf if memory is None else usable * memory,
                tuple(units[place] / count for units in whole),
            )
