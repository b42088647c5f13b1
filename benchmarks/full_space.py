"""Searches of the full space, timed: every way to cut equal devices in groups, one search each.

Called by search_overhead.py for --space full. Devices are of the catalogue, eight a node. Tracing is shown
and not counted. search_s: looking at all rows once, and the searches of all groupings, for memory without
end; fitted_search_s: of those that keep every device's memory, which price bytes until a program fits.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.table import Table
from searched import BENCHMARKS, timed

from hspmd_compiler.base.collection import without_collection
from hspmd_compiler.cluster.cluster import ClusterSpec
from hspmd_compiler.cluster.new import NewCluster, new_cluster
from hspmd_compiler.errors import HspmdError, OptionError
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.models.builtin_models import BUILTIN
from hspmd_compiler.models.models import load_model
from hspmd_compiler.synthesizer.machine import machine_of
from hspmd_compiler.synthesizer.options import SearchOptions
from hspmd_compiler.synthesizer.search import search
from hspmd_compiler.synthesizer.space.search_space import SearchSpace
from hspmd_compiler.synthesizer.value_types import FoundProgram
from hspmd_compiler.trace.blocks.trace_step import trace_step

DEVICE, NIC, A_NODE = "A100-SXM4-80GB", "200Gbit", 8
SAMPLES = 64
"""Of a built-in model's batch; a benchmark's has 32 for each device."""
EXAMPLES = 2


@dataclass(frozen=True, slots=True)
class GroupingSearch:
    """One way to cut devices: groups of so many ranks. fitted: within memory, None: nothing fits."""

    groups: int
    ranks: int
    search_s: float
    cost: float
    fitted_search_s: float
    fitted_cost: float | None


@dataclass(frozen=True, slots=True)
class FullSearch:
    """A model on so many devices. rows: of the forward. cost: of the cheapest grouping."""

    name: str
    layers: int | None
    devices: int
    rows: int
    trace_s: float
    look_s: float
    search_s: float
    cost: float
    fitted_search_s: float
    fitted_cost: float | None
    groupings: tuple[GroupingSearch, ...]


def full_searches(args: Namespace) -> Iterator[FullSearch]:
    """Every model with every number of layers and devices."""
    for name in args.model.split(","):
        if name not in BENCHMARKS and name not in BUILTIN:
            known = ", ".join((*BENCHMARKS, *BUILTIN))
            raise OptionError(f"no model {name!r} to search", details=[("known", known)])
        for layers in [None] if name == "vgg19" else args.layers or [8]:
            for devices in args.devices:
                yield full_search(name, layers, devices)


def full_search(name: str, layers: int | None, devices: int) -> FullSearch:
    """Trace, look at the rows, search every grouping."""
    sizes = [size for size in range(1, devices + 1) if devices % size == 0]
    cluster = cluster_of(devices)
    with without_collection():  # as `hspmd plan` does
        trace_s, graph = timed(lambda: traced(name, layers, devices))
        look_s, space = timed(lambda: SearchSpace.of(graph))
        found: list[GroupingSearch] = []
        near = 0.0
        for size in sizes:
            one, near = grouping_search(space, cluster, devices // size, size, near)
            found.append(one)
    fitting = [one.fitted_cost for one in found if one.fitted_cost is not None]
    return FullSearch(
        name,
        layers,
        devices,
        len(space.steps),
        trace_s,
        look_s,
        look_s + sum(one.search_s for one in found),
        min(one.cost for one in found),
        look_s + sum(one.fitted_search_s for one in found),
        min(fitting, default=None),
        tuple(found),
    )


def traced(name: str, layers: int | None, devices: int) -> LogicalGraph:
    """A step at 32 samples a device, or 64 of a built-in model."""
    if name in BUILTIN:
        source = load_model(name, {} if layers is None else {"layers": str(layers)})
        return trace_step(source.factory, batch=SAMPLES).graph
    named = {} if layers is None else {"layers": layers}
    build = BENCHMARKS[name].build
    factory = lambda: build(devices=devices, batch=EXAMPLES, **named)  # noqa: E731
    return trace_step(factory, batch=32 * devices).graph


def cluster_of(devices: int) -> ClusterSpec:
    """Nodes of eight; the last may hold fewer."""
    whole, rest = divmod(devices, A_NODE)
    nodes = [f"{whole}*{A_NODE}x{DEVICE}"] if whole else []
    nodes += [f"{rest}x{DEVICE}"] if rest else []
    return new_cluster(NewCluster(nodes, {"nic": NIC})).cluster


def grouping_search(
    space: SearchSpace, cluster: ClusterSpec, groups: int, ranks: int, near: float
) -> tuple[GroupingSearch, float]:
    """With memory without end, then with each device's own. near: what memory cost in the search before; that
    of this one comes back."""
    slots = list(cluster.slots)
    held = [slots[first : first + ranks] for first in range(0, len(slots), ranks)]

    def cost(memory: bool) -> FoundProgram | None:
        try:
            return search(space, machine_of(cluster, held), SearchOptions(memory=memory), near=near)
        except HspmdError:
            if not memory:
                raise
            return None

    seconds, free = timed(lambda: cost(False))
    fitted_s, fitted = timed(lambda: cost(True))
    assert free is not None, "memory has no end"
    price = None if fitted is None else fitted.price_s
    row = GroupingSearch(groups, ranks, seconds, free.price_s, fitted_s, price)
    return row, near if fitted is None else fitted.memory_s or near


def full_table() -> Table:
    table = Table("case", title=f"the full space, {DEVICE}, {A_NODE} a node", title_justify="left")
    for column in (
        "search CPU s",
        "within memory",
        "trace CPU s",
        "cost s",
        "within memory",
        "groups x ranks",
    ):
        table.add_column(column, justify="right")
    return table


def full_numbers(found: FullSearch) -> list[str]:
    best = min(found.groupings, key=lambda one: one.cost)
    fitted = "nothing fits" if found.fitted_cost is None else f"{found.fitted_cost:.4g}"
    layers = "" if found.layers is None else f" {found.layers} layers,"
    return [
        f"{found.name}{layers} {found.devices} devices",
        f"{found.search_s:.3f}",
        f"{found.fitted_search_s:.3f}",
        f"{found.trace_s:.2f}",
        f"{found.cost:.4g}",
        fitted,
        f"{best.groups} x {best.ranks}",
    ]


def full_row(found: FullSearch) -> dict[str, object]:
    return asdict(found)
