"""Figures of a cluster that a price needs, and what is to be said of those that it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from ...base.comm_plan import CommStep
from ...base.devices import DeviceKind
from ...base.number_ranges import number_ranges
from ...cluster.cluster import ClusterSpec, DeviceSpec, NodeSlot
from ...cluster.completed import completed_cluster, unknown_text
from ...cluster.launch_plan import bind_ranks
from ...errors import EstimateError
from ...program.program import Program
from ..compute import DeviceRates
from ..links import ClusterCost

FIX = (
    "add them to the cluster, or take devices of the catalogue with `hspmd cluster new` (--nic or --network"
    " tells links between nodes), or measure with `hspmd profile`"
)


RULE = (
    "a price needs each device's memory, its peak and memory bandwidth or a calibration of it, and every link"
    " that the step uses"
)


def check_figures(
    program: Program,
    cluster: ClusterSpec,
    slots: Mapping[int, NodeSlot],
    rates: Mapping[int, DeviceRates],
    dtypes: Sequence[str],
) -> None:
    """Raise one EstimateError that lists every figure that is missing, with the ranks that need it."""
    _check(cluster, slots, rates, dtypes, _pairs(program, slots))


def check_ranks(
    cluster: ClusterSpec,
    slots: Mapping[int, NodeSlot],
    rates: Mapping[int, DeviceRates],
    dtypes: Sequence[str] | None,
) -> None:
    """As `check_figures`, of ranks that may all meet, before there is a program. dtypes: None before there is
    a model, too."""
    _check(cluster, slots, rates, dtypes, _meeting([tuple(slots)], slots))


def _check(
    cluster: ClusterSpec,
    slots: Mapping[int, NodeSlot],
    rates: Mapping[int, DeviceRates],
    dtypes: Sequence[str] | None,
    pairs: Iterable[tuple[int, int]],
) -> None:
    missing: dict[str, set[int]] = {}
    for rank, rate in rates.items():
        for what in _of_device(rate, dtypes):
            missing.setdefault(what, set()).add(rank)
    _find_missing_links(cluster, slots, pairs, missing)
    if missing:
        raise _lacking(missing, [rate.device for rate in rates.values()], RULE)


def cost_of_ranks(cluster: ClusterSpec, at: str, devices: Sequence[int]) -> ClusterCost:
    """What a compile compares ways of communication by; EstimateError where a link is not told."""
    placed = bind_ranks(devices, [None] * len(devices), cluster, at)
    whole = completed_cluster(cluster, placed, ()).cluster
    slots = dict(enumerate(placed))
    missing: dict[str, set[int]] = {}
    _find_missing_links(whole, slots, _meeting([tuple(slots)], slots), missing)
    if missing:
        raise _lacking(missing, [whole.device_of(slot) for slot in placed], "ways are compared by every link")
    return ClusterCost(whole, slots)


def _find_missing_links(
    cluster: ClusterSpec,
    slots: Mapping[int, NodeSlot],
    pairs: Iterable[tuple[int, int]],
    missing: dict[str, set[int]],
) -> None:
    for first, second in pairs:
        if cluster.path(slots[first], slots[second]) is None:
            name = _link_name(cluster, slots[first].node, slots[second].node)
            missing.setdefault(name, set()).update((first, second))


def _lacking(missing: Mapping[str, set[int]], devices: Sequence[DeviceSpec], rule: str) -> EstimateError:
    unknown = unknown_text(devices)
    details = [(what, f"for ranks {number_ranges(sorted(ranks))}") for what, ranks in missing.items()]
    return EstimateError(
        "the cluster lacks figures that a price needs",
        details=[*details, *([("devices", unknown)] if unknown else [])],
        rule=rule,
        fix=FIX,
    )


def _of_device(rate: DeviceRates, dtypes: Sequence[str] | None) -> Iterator[str]:
    device = rate.device
    name = device.kind or rate.family
    if device.memory is None:
        yield f"memory of {name}"
    if rate.measured:
        return
    if dtypes is None and not device.peaks and device.flops is None:
        yield f"peaks of {name}"
    for dtype in dtypes or ():
        if device.peak(dtype) is None:
            yield f"peak in {dtype} of {name}"
    if device.memory_bandwidth is None:
        yield f"memory bandwidth of {name}"


def _pairs(program: Program, slots: Mapping[int, NodeSlot]) -> set[tuple[int, int]]:
    """Two ranks of each pair of slots' nodes that meet."""
    groups = {own_step.group for own in program.ranks for own_step in _steps(own.comms, own.transfers)}
    groups |= {bucket.group for own in program.ranks for bucket in own.grad_buckets}
    if len(program.ranks) > 1:
        groups.add(tuple(own.rank for own in program.ranks))
    return _meeting(groups, slots)


def _meeting(groups: Iterable[tuple[int, ...]], slots: Mapping[int, NodeSlot]) -> set[tuple[int, int]]:
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for group in groups:
        by_node: dict[int, list[int]] = {}
        for rank in group:
            by_node.setdefault(slots[rank].node, []).append(rank)
        for node, ranks in by_node.items():
            if len(ranks) > 1:
                found.setdefault((node, node), (ranks[0], ranks[1]))
        for one, other in combinations(sorted(by_node), 2):
            found.setdefault((one, other), (by_node[one][0], by_node[other][0]))
    return set(found.values())


def _steps(*tables: Sequence[CommStep]) -> Iterator[CommStep]:
    for table in tables:
        yield from table


def _link_name(cluster: ClusterSpec, one: int, other: int) -> str:
    names = [cluster.nodes[node].address for node in (one, other)]
    return f"link inside {names[0]}" if one == other else f"link {names[0]} - {names[1]}"


def notes_on(
    program: Program, cluster: ClusterSpec, rates: Sequence[DeviceRates], torch_version: str
) -> list[str]:
    """What a reader should know: programs of another kind, a profile of others, what was not measured.

    rates: of each rank's device.
    """
    notes = _moved(program, rates)
    calibration = cluster.calibration
    if calibration is not None:
        kinds = sorted({rate.device.kind or rate.family for rate in rates})
        differences = [text for kind in kinds for text in calibration.find_differences(torch_version, kind)]
        notes += dict.fromkeys(differences)
        others = [kind for kind in kinds if not calibration.is_of(kind)]
        if others:
            notes.append(f"{', '.join(others)}: priced by figures, not by the profile")
    if any(rate.family == DeviceKind.CPU and not rate.measured for rate in rates):
        notes.append("CPUs are priced by their figures: `hspmd profile` measures them")
    return notes


def _moved(program: Program, rates: Sequence[DeviceRates]) -> list[str]:
    """Programs that are priced on a kind that they are not compiled for: few types may differ there."""
    moved: dict[tuple[str, str], list[int]] = {}
    for own, rate in zip(program.ranks, rates, strict=True):
        if own.device_family != rate.family:
            moved.setdefault((own.device_family, rate.family), []).append(own.rank)
    return [
        f"compiled for {compiled}, priced as if for {priced}: ranks {number_ranges(ranks)}"
        for (compiled, priced), ranks in moved.items()
    ]
