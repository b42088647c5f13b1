"""Sailor's own prices, restated: what its simulator says of a point, with its choices as they are.

A step is one micro-batch through all stages, the slowest stage with its transfers for each further one, the
slowest update and the slowest stage's ring. Profiles are taken at the micro-batch size of the plan only;
network fits by their polynomial, whatever it says outside what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from hspmd_compiler.errors import EstimateError
from truth.point_file import PipelinePlan, Place, Point
from truth.sailor_tables import SailorTables, bandwidth

ELEMENT = 4
STATE_BYTES = 24
"""Weight 4, moments 8, gradient 4, communication 4, copies of the engine 4."""
PLATFORM_BYTES = 4.76e9 + 300e6
BUCKET_BYTES = 500e6
RING_TP = 4
"""Its ring divides a stage's weights by at most this degree, and takes one device per node."""


def sailor_step_s(tables: SailorTables, point: Point) -> float:
    """Seconds of a step."""
    pipelines = [_pipeline_s(tables, point, plan) for plan in point.pipelines]
    inside = max(_rings_s(tables, point.model, plan) for plan in point.pipelines)
    longest = max(point.pipelines, key=lambda plan: plan.stages)
    across = max(
        _buckets_s(tables, place, place, 1, _weights(tables, point.model, layers), len(point.pipelines))
        for stage, layers in enumerate(longest.layers)
        for place in _places(longest, stage)
    )
    return max(pipelines) + inside + across


def sailor_peak_bytes(tables: SailorTables, point: Point) -> float:
    """Of the rank with the most: as many micro-batches kept as there are stages after it."""
    peaks = []
    for plan in point.pipelines:
        for stage, layers in enumerate(plan.layers):
            for place in _places(plan, stage):
                parameters = sum(tables.size(point.model, place.tp, one, "params_floats") for one in layers)
                kept = sum(tables.size(point.model, place.tp, one, "act_mem_floats") for one in layers)
                kept *= point.mbs * ELEMENT * (plan.stages - stage)
                peaks.append(STATE_BYTES * parameters + kept + PLATFORM_BYTES)
    return max(peaks)


def _places(plan: PipelinePlan, stage: int) -> tuple[Place, ...]:
    return tuple(replica[stage] for replica in plan.replicas)


def _pipeline_s(tables: SailorTables, point: Point, plan: PipelinePlan) -> float:
    computes, updates = [], []
    for stage, layers in enumerate(plan.layers):
        times = [
            [_layer(tables, point, place, one) for one in layers]
            for place in dict.fromkeys(_places(plan, stage))
        ]
        computes.append(max(sum(forward + backward for forward, backward, _ in rows) for rows in times))
        updates.append(max(rows[0][2] for rows in times))
    transfers = [_transfers_s(tables, point, plan, stage) for stage in range(plan.stages)]
    slowest = max(one + other for one, other in zip(computes, transfers, strict=True))
    return (point.micro_batches - 1) * slowest + sum(transfers) + sum(computes) + max(updates)


def _layer(tables: SailorTables, point: Point, place: Place, layer: int) -> Sequence[float]:
    measured = tables.measured(point.model, place)
    if point.mbs not in measured:
        raise EstimateError(f"Sailor's formula has no profile of {place.kind} at micro-batch {point.mbs}")
    return [float(one) for one in measured[point.mbs][str(layer)]]


def _transfers_s(tables: SailorTables, point: Point, plan: PipelinePlan, stage: int) -> float:
    """What a stage gives its neighbours; the ends count it twice, but for the first of a short pipeline."""
    layers = plan.layers[stage]
    onward = _slowest_s(tables, point, plan, stage, stage + 1, layers[-1])
    back = _slowest_s(tables, point, plan, stage, stage - 1, layers[0])
    if 0 < stage < plan.stages - 1:
        return onward + back
    if stage:
        return 2 * back
    return onward if plan.stages <= 3 else 2 * onward


def _slowest_s(
    tables: SailorTables, point: Point, plan: PipelinePlan, stage: int, peer: int, layer: int
) -> float:
    if not 0 <= peer < plan.stages:
        return 0.0
    size = ELEMENT * point.mbs * tables.size(point.model, 1, layer, "act_output_floats")
    pairs = zip(_places(plan, stage), _places(plan, peer), strict=True)
    return max(_time(tables, one, other, min(one.tp, other.tp), size) for one, other in set(pairs))


def _time(tables: SailorTables, one: Place, other: Place, used: int, size: float) -> float:
    speed = bandwidth(tables.coefficients(one, other, used), size)
    return size / speed if speed > 0 else math.inf


def _weights(tables: SailorTables, model: str, layers: Sequence[int]) -> float:
    """Bytes of a stage, whole."""
    return sum(ELEMENT * tables.size(model, 1, layer, "params_floats") for layer in layers)


def _rings_s(tables: SailorTables, model: str, plan: PipelinePlan) -> float:
    slowest = 0.0
    for stage, layers in enumerate(plan.layers):
        places = _places(plan, stage)
        size = _weights(tables, model, layers) / min(RING_TP, *(place.tp for place in places))
        for one, other in pairwise(places):
            slowest = max(slowest, _buckets_s(tables, one, other, 1, size, len(places)))
    return slowest


def _buckets_s(tables: SailorTables, one: Place, other: Place, used: int, size: float, members: int) -> float:
    """Rings of at most a bucket, one after another."""
    total = 0.0
    while size > 0 and members > 1:
        bucket = min(size, BUCKET_BYTES)
        total += 2 * (members - 1) * _time(tables, one, other, used, bucket / members)
        size -= bucket
    return total
