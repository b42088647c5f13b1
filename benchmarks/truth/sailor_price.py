"""Our price of a Sailor point: layers by profile, DeepSpeed's instruction order simulated, one reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hspmd_compiler.cost_models.published.closed_form import closed_form_s
from hspmd_compiler.cost_models.published.pipeline_lists import (
    BoundaryPrices,
    Pipeline,
    StagePrices,
    deepspeed_order,
    lists,
)
from hspmd_compiler.cost_models.published.ring import all_gather_s, all_reduce_s, message_s
from hspmd_compiler.cost_models.semantics import SendSemantics
from hspmd_compiler.cost_models.simulate import end_times
from truth.point_file import PipelinePlan, Place, Point
from truth.sailor_tables import MODELS, SailorTables

ELEMENT = 4
"""Bytes: Sailor's points were trained in fp32."""
ACCUMULATED = 3 * ELEMENT
"""Bytes a parameter of adding a gradient to the sum: two reads and a write."""
PROFILED_BLOCKS = 2
"""Blocks of the model whose optimizer step stands as `update` in the profile: beside them embedding, head."""


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of a step and what it is made of. closed_form_s: the pipeline's by the inner-loop formula."""

    step_s: float
    pipeline_s: float
    reduction_s: float
    update_s: float
    closed_form_s: float


def price(tables: SailorTables, point: Point, semantics: SendSemantics, by_nic: bool) -> Price:
    """The step of one point under one reading of sends and links."""
    pipelines = [
        pipeline_of(tables, point, plan, replica, by_nic)
        for plan in point.pipelines
        for replica in dict.fromkeys(plan.replicas)
    ]
    ends = [_simulated(pipeline, semantics) for pipeline in pipelines]
    closed = max(closed_form_s(pipeline, semantics) for pipeline in pipelines)
    reduction = reduction_s(tables, point, by_nic)
    update = max(update_s(tables, point, plan, place, stage) for plan, place, stage in _places(point))
    return Price(max(ends) + reduction + update, max(ends), reduction, update, closed + reduction + update)


def _places(point: Point) -> list[tuple[PipelinePlan, Place, int]]:
    return [
        (plan, place, stage)
        for plan in point.pipelines
        for replica in plan.replicas
        for stage, place in enumerate(replica)
    ]


@lru_cache(maxsize=4096)
def _simulated(pipeline: Pipeline, semantics: SendSemantics) -> float:
    return max(end_times(lists(pipeline, deepspeed_order), semantics).values())


def pipeline_of(
    tables: SailorTables, point: Point, plan: PipelinePlan, replica: Sequence[Place], by_nic: bool
) -> Pipeline:
    """One replica as priced stages and boundaries."""
    stages = tuple(
        stage_prices(tables, point, plan, place, stage, stage + 1 < plan.stages or stage > 0)
        for stage, place in enumerate(replica)
    )
    boundaries = []
    for stage in range(plan.stages - 1):
        one, other = replica[stage], replica[stage + 1]
        whole = ELEMENT * point.mbs * boundary_floats(tables, point.model, plan.layers[stage][-1], one.tp)
        wire = message_s(tables.link(one, other, by_nic), whole)
        back = message_s(tables.link(other, one, by_nic), whole)
        boundaries.append(BoundaryPrices(wire, back, int(whole / min(one.tp, other.tp))))
    return Pipeline(stages, tuple(boundaries), point.micro_batches)


def boundary_floats(tables: SailorTables, model: str, layer: int, tp: int) -> float:
    """Elements that leave a layer, per sample: whole, on every rank."""
    return tables.size(model, tp, layer, "act_output_floats")


def stage_prices(
    tables: SailorTables, point: Point, plan: PipelinePlan, place: Place, stage: int, exchanges: bool
) -> StagePrices:
    """Seconds of a stage on one place: the profile's, and what a profile by hooks does not see."""
    layers = plan.layers[stage]
    forward, backward = (
        sum(tables.seconds(point.model, place, layer, which, point.mbs) for layer in layers)
        for which in (0, 1)
    )
    memory = tables.data_sheet(place.kind, "mem_gbps") * 1e9
    if 0 in layers:  # the profile has 2 us for it: a gradient of the table's size is filled with zeros
        backward += ELEMENT * tables.size(point.model, place.tp, 0, "params_floats") / memory
    if tables.layers_of[point.model] - 1 in layers:
        head = unprofiled_logits_s(tables, point, place)
        forward, backward = forward + head[0], backward + head[1]
    gathered = 0.0
    inner = tables.inner_link(place)
    if exchanges and inner is not None:
        whole = ELEMENT * point.mbs * boundary_floats(tables, point.model, layers[0], place.tp)
        gathered = all_gather_s(inner, whole, place.tp)
    parameters = stage_parameters(tables, point.model, layers, place.tp)
    return StagePrices(forward, backward, gathered, ACCUMULATED * parameters / memory)


def stage_parameters(tables: SailorTables, model: str, layers: Sequence[int], tp: int) -> float:
    """Of one rank, a head's second copy of the embedding among them where it is tied."""
    total = sum(tables.size(model, tp, layer, "params_floats") for layer in layers)
    last = tables.layers_of[model] - 1
    if last in layers and 0 not in layers and head_is_tied(tables, model):
        total += table_floats(tables, model, tp)
    return total


def table_floats(tables: SailorTables, model: str, tp: int) -> float:
    """Elements of a rank's embedding table, positions left out."""
    facts = MODELS[model]
    positions = facts.hidden * facts.length
    whole = tables.size(model, tp, 0, "params_floats")
    return whole - positions if whole > positions else whole


def head_is_tied(tables: SailorTables, model: str) -> bool:
    """Whether the last layer's entry has no weight of its own for the logits."""
    tp = min(map(int, tables.sizes[model]))
    last = tables.layers_of[model] - 1
    return tables.size(model, tp, last, "params_floats") < table_floats(tables, model, tp) / 2


def logits_are_profiled(tables: SailorTables, model: str) -> bool:
    """Whether the last layer's entry keeps as much as logits are."""
    tp = min(map(int, tables.sizes[model]))
    last = tables.layers_of[model] - 1
    logits = table_floats(tables, model, tp) / MODELS[model].hidden * MODELS[model].length
    return tables.size(model, tp, last, "act_mem_floats") >= logits


def unprofiled_logits_s(tables: SailorTables, point: Point, place: Place) -> tuple[float, float]:
    """Forward and backward of logits that the last entry leaves out, at the rate that a block reaches."""
    if logits_are_profiled(tables, point.model):
        return 0.0, 0.0
    facts = MODELS[point.model]
    logits = 2.0 * facts.length * table_floats(tables, point.model, place.tp)
    block = 2.0 * facts.length * tables.size(point.model, place.tp, 1, "params_floats")
    block += 4.0 * facts.length**2 * facts.hidden / place.tp
    part = logits / block
    forward, backward = (part * tables.seconds(point.model, place, 1, which, point.mbs) for which in (0, 1))
    return forward, backward


def reduction_s(tables: SailorTables, point: Point, by_nic: bool) -> float:
    """After the last backward: each run of layers around its ring of nodes, a node's rings one after another.

    And one more between first and last stage where the head is tied to the embedding.
    """
    rings: dict[tuple[_Owner, ...], list[int]] = {}
    for layer in range(tables.layers_of[point.model]):
        rings.setdefault(_owners(point, layer), []).append(layer)
    busy: dict[_Owner, float] = {}
    for owners, layers in rings.items():
        seconds = ring_s(tables, point.model, [place for place, *_ in owners], layers, by_nic)
        for owner in owners:
            busy[owner] = busy.get(owner, 0.0) + seconds
    return max(busy.values()) + tied_s(tables, point, by_nic)


_Owner = tuple[Place, int, int, int]


def _owners(point: Point, layer: int) -> tuple[_Owner, ...]:
    """Who has a layer: the place, and its pipeline, replica and stage."""
    return tuple(
        (place, number, copy, stage)
        for number, plan in enumerate(point.pipelines)
        for copy, replica in enumerate(plan.replicas)
        for stage, place in enumerate(replica)
        if layer in plan.layers[stage]
    )


def ring_s(
    tables: SailorTables, model: str, ring: Sequence[Place], layers: Sequence[int], by_nic: bool
) -> float:
    """One run of layers around a ring: all tensor-parallel ranks of a node share its NIC."""
    if len(ring) == 1:
        return 0.0
    pairs = [(ring[place], ring[(place + 1) % len(ring)]) for place in range(len(ring))]
    link = min((tables.link(*pair, by_nic) for pair in pairs), key=lambda one: one.bandwidth)
    each = max(
        ELEMENT * place.tp * sum(tables.size(model, place.tp, layer, "params_floats") for layer in layers)
        for place in ring
    )
    return all_reduce_s(link, each, len(ring))


def tied_s(tables: SailorTables, point: Point, by_nic: bool) -> float:
    """The embedding's gradient between first and last stage."""
    if not head_is_tied(tables, point.model):
        return 0.0
    slowest = 0.0
    for plan in point.pipelines:
        for replica in plan.replicas if plan.stages > 1 else ():
            one, other = replica[0], replica[-1]
            whole = ELEMENT * one.tp * table_floats(tables, point.model, one.tp)
            slowest = max(slowest, all_reduce_s(tables.link(one, other, by_nic), whole, 2))
    return slowest


def update_s(tables: SailorTables, point: Point, plan: PipelinePlan, place: Place, stage: int) -> float:
    """The optimizer's step by parameters, from that of the profiled small model; 0 where not measured."""
    measured = tables.measured(point.model, place)
    step = measured[min(measured, key=lambda size: abs(size - point.mbs))]["1"][2]
    last = tables.layers_of[point.model] - 1
    profiled = stage_parameters(tables, point.model, (0, *range(1, PROFILED_BLOCKS + 1), last), place.tp)
    return float(step) * stage_parameters(tables, point.model, plan.layers[stage], place.tp) / profiled
