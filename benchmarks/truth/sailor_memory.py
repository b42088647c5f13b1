"""Peak memory of Sailor's points by our formula."""

from __future__ import annotations

from hspmd_compiler.cost_models.published.stage_memory import StageMemory, in_flight
from truth.point_file import Place, Point
from truth.sailor_formula import PLATFORM_BYTES
from truth.sailor_price import (
    ELEMENT,
    head_is_tied,
    logits_are_profiled,
    stage_parameters,
    table_floats,
)
from truth.sailor_tables import MODELS, SailorTables

ATTENTION_MATRICES = 2
"""Scores beside probabilities forward, both of their gradients backward."""


def peak_bytes(tables: SailorTables, point: Point, platform_bytes: float = PLATFORM_BYTES) -> float:
    """Of the rank with the most. platform_bytes: by default what Sailor states for its machines."""
    peaks = []
    for plan in point.pipelines:
        for stage, layers in enumerate(plan.layers):
            for place in {replica[stage] for replica in plan.replicas}:
                kept = sum(tables.size(point.model, place.tp, one, "act_mem_floats") for one in layers)
                memory = StageMemory(
                    stage_parameters(tables, point.model, layers, place.tp),
                    ELEMENT * point.mbs * kept,
                    transient_bytes(tables, point, place, stage == plan.stages - 1),
                    ELEMENT * point.mbs * MODELS[point.model].hidden * MODELS[point.model].length,
                    platform_bytes,
                )
                alive = in_flight(stage, plan.stages, point.micro_batches)
                peaks.append(memory.peak_bytes(alive, plan.stages))
    return max(peaks)


def transient_bytes(tables: SailorTables, point: Point, place: Place, last: bool) -> float:
    """Attention matrices of one layer; on the last stage a copy of the logits where that is more.

    Logits that no profile holds are kept too, with their softmax: two more.
    """
    facts = MODELS[point.model]
    attention = ATTENTION_MATRICES * ELEMENT * point.mbs * facts.heads * facts.length**2 / place.tp
    if not last:
        return attention
    logits = ELEMENT * point.mbs * facts.length * table_floats(tables, point.model, place.tp) / facts.hidden
    unseen = 0 if logits_are_profiled(tables, point.model) or not head_is_tied(tables, point.model) else 2
    return max(attention, logits) + unseen * logits
