"""A bundle for people and scripts: its strategies, its switches, and one of these in detail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..artifact import paths
from ..artifact.bundle import Bundle
from ..artifact.manifest import Manifest
from ..artifact.proved_loss import ProvedLoss
from ..artifact.store import Artifact, ProgramHead
from ..base.dtypes import BYTES
from ..base.number_ranges import number_ranges
from ..cluster.cluster import ClusterSpec
from ..cluster.form import cluster_from
from ..program.program import RankProgram
from ..program.state.state_elements import element_type, gradients_of
from ..program.switch_plan import COPY, GRAD, VALUE, SwitchPlan, SwitchScope
from ..switching.links import SwitchLinks, links_of
from ..switching.totals import SwitchTotals, demand_of, totals
from .inspect import model_text
from .sections import Cell, Section, Table
from .training_page import optimizer_text
from .units import seconds_text

KINDS = {VALUE: "values", COPY: "copies", GRAD: "gradients"}
SCOPES = {
    SwitchScope.STATE: "all state",
    SwitchScope.PARAMS: "parameters, for a step",
    SwitchScope.GRADS: "gradients, back",
}


@dataclass(frozen=True, slots=True)
class BundleView:
    """What is shown of a bundle. devices: of each strategy, by its ranks. heads: what all its ranks share."""

    manifests: Mapping[str, Manifest]
    heads: Mapping[str, ProgramHead]
    devices: Mapping[str, tuple[int, ...]]
    plans: Sequence[SwitchPlan]
    links: SwitchLinks
    home: str | None
    loss: ProvedLoss | None = None

    @property
    def world(self) -> tuple[int, ...]:
        """The devices of all strategies: of each world rank."""
        return tuple(sorted({device for of in self.devices.values() for device in of}))


def overview(view: BundleView) -> list[Section]:
    """What was compiled: a line for each strategy, and one for each switch."""
    first = next(iter(view.manifests.values()))
    facts: list[tuple[Cell, ...]] = [
        ("model", model_text(first)),
        ("torch", f">={first.torch[0]},<{first.torch[1]}"),
        ("devices", number_ranges(view.world)),
        ("optimizer", optimizer_text(first.optimizer)),
        ("precision", first.precision.value),
        *([] if view.home is None else [("home", view.home)]),
        *([] if view.loss is None else [("loss", str(view.loss))]),
    ]
    columns = ("strategy", "ranks", "devices", "idle", "global batch", "inputs")
    rows = tuple(_strategy_row(view, name) for name in view.devices)
    return [
        Table("bundle", "bundle", ("fact", "value"), tuple(facts)),
        Table("strategies", f"{len(rows)} strategies", columns, rows),
        _switches(view),
    ]


def _strategy_row(view: BundleView, name: str) -> tuple[Cell, ...]:
    used, head = view.devices[name], view.heads[name]
    inputs = ", ".join(f"{key} {dtype} {list(shape)}" for key, (shape, dtype) in head.inputs.items())
    idle = [device for device in view.world if device not in used]
    return (
        name,
        len(used),
        number_ranges(sorted(used)),
        number_ranges(idle) if idle else "",
        head.batch,
        inputs,
    )


def _switches(view: BundleView) -> Table:
    columns = ("switch", "moves", "local bytes", "intra-node bytes", "inter-node bytes", "bound", "messages")
    rows = []
    for plan in view.plans:
        found = totals(plan, view.links)
        amounts = (found.local.bytes, found.intra_node.bytes, found.inter_node.bytes)
        name = f"{plan.source}:{plan.target}"
        rows.append((name, SCOPES[plan.scope], *amounts, found.inter_node_bound_bytes, found.messages))
    return Table("switches", f"{len(rows)} switches", columns, tuple(rows))


def switch_page(
    plan: SwitchPlan, before: Sequence[RankProgram], view: BundleView, *, for_scripts: bool = False
) -> list[Section]:
    """One switch: its bytes by link, by kind of state and by rank. before: the programs of its source.

    for_scripts: seconds as a number.
    """
    found = totals(plan, view.links)
    title = f"switch from {plan.source} to {plan.target}: {SCOPES[plan.scope]}"
    facts = tuple(_facts(found, plan, view, for_scripts))
    return [
        Table("switch", title, ("fact", "value"), facts),
        _by_kind(plan, before),
        _by_rank(plan, view),
    ]


def _facts(
    found: SwitchTotals, plan: SwitchPlan, view: BundleView, for_scripts: bool
) -> Iterator[tuple[Cell, ...]]:
    yield "local bytes", found.local.bytes
    yield "intra-node bytes", found.intra_node.bytes
    yield "inter-node bytes", found.inter_node.bytes
    yield "inter-node bound bytes", found.inter_node_bound_bytes
    for name, load in (("sender", found.busiest_sender), ("receiver", found.busiest_receiver)):
        who = "none" if load.rank < 0 else f"world rank {load.rank} (device {view.world[load.rank]})"
        yield f"busiest {name}", who
        yield f"busiest {name} bytes", load.bytes
    yield "messages", found.messages
    yield "classes", len(plan.classes)
    if found.seconds is None:
        yield "estimated seconds", "unknown: compile with --cluster"
    else:
        yield "estimated seconds", found.seconds if for_scripts else seconds_text(found.seconds)


def _by_kind(plan: SwitchPlan, before: Sequence[RankProgram]) -> Table:
    """Bytes of each kind of state, kept and moved."""
    sizes = _element_bytes(plan, before)
    kept: dict[str, int] = {}
    moved: dict[str, int] = {}
    for each in plan.classes:
        demand = demand_of(each)
        local = len(demand.needers) - len(demand.missing)
        sent = sum(move.high - move.low for move in each.moves)
        for kind in each.kinds:
            size = sizes[each.parts[0].name, kind]
            kept[kind] = kept.get(kind, 0) + demand.elements * local * size
            moved[kind] = moved.get(kind, 0) + sent * size
    rows = tuple((KINDS.get(kind, kind), kept[kind], moved[kind]) for kind in kept)
    return Table("kinds", "what moves", ("kind", "local bytes", "moved bytes"), rows)


def _element_bytes(plan: SwitchPlan, before: Sequence[RankProgram]) -> dict[tuple[str, str], int]:
    """Of an element of each kind; a class has parts of one size, so that its first part tells."""
    kinds = {(each.parts[0].name, kind) for each in plan.classes for kind in each.kinds}
    found: dict[tuple[str, str], int] = {}
    for own in before:
        gradients = gradients_of(own)
        shards = {shard.name: shard for shard in own.shards}
        for name, kind in kinds - found.keys():
            if name in shards and (kind != GRAD or name in gradients):
                found[name, kind] = BYTES[element_type(shards[name], kind, gradients)]
    return found


def _by_rank(plan: SwitchPlan, view: BundleView) -> Table:
    sent = dict.fromkeys(range(len(view.world)), 0)
    got, kept = dict(sent), dict(sent)
    for each in plan.classes:
        for move in each.moves:
            sent[move.source] += (move.high - move.low) * each.element_bytes
            got[move.target] += (move.high - move.low) * each.element_bytes
        for rank in set(each.needers) & set(each.holders):
            kept[rank] += demand_of(each).elements * each.element_bytes
    ranks = {name: {device: rank for rank, device in enumerate(of)} for name, of in view.devices.items()}
    rows = tuple(
        (
            rank,
            device,
            ranks[plan.source].get(device, "idle"),
            ranks[plan.target].get(device, "idle"),
            kept[rank],
            sent[rank],
            got[rank],
        )
        for rank, device in enumerate(view.world)
    )
    columns = (
        "world rank",
        "device",
        "rank before",
        "rank after",
        "local bytes",
        "sent bytes",
        "received bytes",
    )
    return Table("ranks", "ranks", columns, rows)


def view_of_artifacts(
    artifacts: Mapping[str, Artifact],
    plans: Sequence[SwitchPlan],
    links: SwitchLinks,
    home: str | None,
    loss: ProvedLoss | None = None,
) -> BundleView:
    """Of what is not written yet."""
    return BundleView(
        {name: each.manifest for name, each in artifacts.items()},
        {name: ProgramHead.of(each.program) for name, each in artifacts.items()},
        {name: tuple(own.device for own in each.program.ranks) for name, each in artifacts.items()},
        plans,
        links,
        home,
        loss,
    )


def view_of_bundle(
    bundle: Bundle, cluster: ClusterSpec | None = None, plans: Sequence[SwitchPlan] | None = None
) -> BundleView:
    """Of a bundle that was read. cluster: instead of the one that it was compiled for, if any.

    plans: those that are shown; None: all, which are read.
    """
    heads = {name: bundle.head(name) for name in bundle.strategies}
    form = next((head.cluster for head in heads.values()), None)
    if cluster is None and form is not None:
        cluster = cluster_from(form, paths.CLUSTER)
    return BundleView(
        {name: head.manifest for name, head in heads.items()},
        {name: head.program for name, head in heads.items()},
        {name: bundle.devices_of(name) for name in heads},
        [bundle.plan(each.source, each.target, each.scope) for each in bundle.listing.plans]
        if plans is None
        else plans,
        links_of(cluster, bundle.devices),
        bundle.home,
        bundle.loss,
    )
