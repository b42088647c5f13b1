"""HAP's program for all devices as one group: its parameters, inputs and exchanges as a strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...base.comm_plan import CommKind
from ...base.log import task
from ...cost_models.links import ClusterCost
from ...layout.shares import assign_units
from ...options import PlanChoice, PlanCost
from ..hap.baselines import even_s, proportional_s
from ..hap.calls import record
from ..hap.costs import BYTES_PER_ELEMENT, Bandwidths, HapMachine
from ..hap.notes import loads, notes
from ..hap.operators import HapGraph, HapValue, Leaf, cut_of, is_cut
from ..hap.plan import HapPlan, plan_hap
from ..hap.realise import realise_hap
from ..hap.search import VectorFor
from ..value_types import FoundInput, FoundProgram, Holding, ParamChoice, ValueType
from .batches import shares_by_speed, strategy_of
from .candidates import PlanCandidate
from .groupings import Grouping
from .plan import PlanningTask

PROBE_BYTES = 64 << 20
"""Of the tensor that bandwidths are read off."""


@dataclass(frozen=True, slots=True)
class HapSearcher:
    """Finds HAP's program for a model. inputs: with any number of samples."""

    choice: PlanChoice
    model: nn.Module
    inputs: Mapping[str, Tensor]

    def __call__(self, given: PlanningTask) -> list[PlanCandidate]:
        batch = given.graph.batch
        held = {
            name: torch.empty((batch, *value.shape[1:]), dtype=value.dtype, device="meta")
            for name, value in self.inputs.items()
        }
        with task("search HAP's space"):
            graph = record(self.model, held, anchors=True).graph()
            machine = self._machine(given, graph)
            exact = not self._as_hap
            vectors = VectorFor.TENSOR if exact else VectorFor.PROGRAM
            plan = plan_hap(graph, machine, vectors, free_ones=not exact, whole=exact)
        whole = Grouping((given.devices.ids,))
        shares = [shares_by_speed(given.group_speeds(whole)[0])]
        base = strategy_of(whole, (batch,), given.layers, given.devices, shares=shares)
        assert base is not None, "all devices are used"
        found = _Found(given, plan, machine, graph).program()
        strategy = realise_hap(plan, graph, _speeds(given, graph), base)
        told = (*notes(plan, graph.uncounted), _beside(plan, graph, machine)) if self._as_hap else ()
        return [PlanCandidate("HAP's program", strategy, found, told)]

    @property
    def _as_hap(self) -> bool:
        return self.choice.cost is PlanCost.HAP

    def _machine(self, given: PlanningTask, graph: HapGraph) -> HapMachine:
        """Speeds in HAP's count of flops, so that the whole step on one device takes what we take it for."""
        speeds = _speeds(given, graph)
        links = _bandwidths(given)
        return HapMachine.of(speeds, links if self._as_hap else links.scaled(1 / BYTES_PER_ELEMENT))


@dataclass(frozen=True, slots=True)
class _Found:
    """HAP's plan in the words of a found program."""

    given: PlanningTask
    plan: HapPlan
    machine: HapMachine
    graph: HapGraph

    def program(self) -> FoundProgram:
        devices, program = len(self.given.devices.ids), self.plan.program
        return FoundProgram(
            ranks=devices,
            params=tuple(self._params()),
            exchanges=(),
            price_s=program.seconds,
            compute_s=program.compute_s,
            exchange_s=program.exchange_s,
            gradient_s=0.0,
            bound_s=program.seconds,
            memory_bytes=(0,) * devices,
            stats={"states": program.states},
            inputs=tuple(self._inputs()),
        )

    def _params(self) -> Iterator[ParamChoice]:
        """Those that HAP doesn't count are whole."""
        cut = {value.name: place for value, place in loads(self.plan) if value.leaf is Leaf.PARAMETER}
        for name, info in self.given.graph.params.items():
            if info.is_buffer:
                continue
            place = next((cut[alias] for alias in info.aliases if alias in cut), 0)
            dim = cut_of(place)[0] if is_cut(place) else None
            if dim is None or info.shape[dim] == 1:
                yield ParamChoice(name, ValueType(Holding.WHOLE), None, None, 0.0)
            else:
                held = ValueType(Holding.SPLIT, dim)
                yield ParamChoice(name, held, self._units(info.shape[dim], place), None, 0.0)

    def _inputs(self) -> Iterator[FoundInput]:
        for value, place in loads(self.plan):
            if value.leaf is Leaf.INPUT and is_cut(place) and self._is_read_so(value, place):
                dim = cut_of(place)[0]
                shares = self._units(value.shape[dim], place)
                yield FoundInput(value.name, ValueType(Holding.SPLIT, dim), shares)

    def _is_read_so(self, value: HapValue, place: int) -> bool:
        """Whether all that reads an input reads it so, and this is the first."""
        places = [other for one, other in loads(self.plan) if one is value]
        return set(places) == {place}

    def _units(self, length: int, place: int) -> tuple[int, ...]:
        """Of each device, by the ratios of its kind."""
        vector = self.plan.prices.vectors[cut_of(place)[1]]
        speeds = [speed for speed, _ in self.machine.kinds]
        kinds = [speeds.index(speed) for speed in _speeds(self.given, self.graph)]
        return assign_units(length, [vector[kind] for kind in kinds])


def _speeds(given: PlanningTask, graph: HapGraph) -> list[float]:
    """Of each device, in HAP's count of flops."""
    return [graph.flops / given.whole_s[device.kind] for device in given.devices.devices]


def _beside(plan: HapPlan, graph: HapGraph, machine: HapMachine) -> str:
    even, fair = even_s(graph, machine), proportional_s(graph, machine)
    return f"HAP's cost: its program {plan.seconds:.4g} s, DP-EV {even:.4g} s, DP-CP {fair:.4g} s"


def _bandwidths(given: PlanningTask) -> Bandwidths:
    """Bytes of the whole tensor in a second, of each collective of all devices."""
    count = len(given.devices.ids)
    if count == 1:
        return Bandwidths(1.0, 1.0, 1.0, 1.0).scaled(float("inf"))
    slots = {rank: device.slot for rank, device in enumerate(given.devices.devices)}
    cost, ranks = ClusterCost(given.devices.cluster, slots), tuple(slots)
    piece = PROBE_BYTES / count
    pairs = {(one, other): piece / count for one in ranks for other in ranks if one != other}
    seconds = (
        cost.ring_pass_s(ranks, piece),
        cost.all_reduce_s(ranks, PROBE_BYTES),
        cost.ring_pass_s(ranks, piece, kind=CommKind.REDUCE_SCATTER),
        cost.exchange_s(ranks, pairs, CommKind.ALL_TO_ALL),
    )
    return Bandwidths(*(PROBE_BYTES / one for one in seconds))
