"""Points that are told apart, by what is in them: never by name, for other sets have other names."""

from __future__ import annotations

from collections.abc import Sequence

from truth.point_file import THREE_TYPES, Point
from truth.sailor_price import ELEMENT, pipeline_of
from truth.sailor_tables import SailorTables

REDUCES = 0.02
"""Of a step: more of it is no bookkeeping."""
BEYOND = 1.5
"""No profile is so far off: a step that takes this much less than the computing in it is not of this plan."""


def time_reason(tables: SailorTables, point: Point, others: Sequence[Point]) -> str:
    """Why a point's time is reported apart; empty where it counts."""
    if point.replicas == 1 and (point.reduction_s or 0.0) > REDUCES * point.step_s:
        for other in others:
            same = (other.step_s, other.reduction_s) == (point.step_s, point.reduction_s)
            if same and other.replicas > 1 and other.data_set == point.data_set:
                return (
                    f"measured as {other.name} was, and {point.reduction_s:g} s of reduction where one "
                    "replica has nothing to reduce: a copy"
                )
    if point.stages > 1 and point.micro_batches == 1 and point.mbs == 1:
        return "one micro-batch of one sample over several stages: a fixed cost that no profile holds"
    busiest = busiest_s(tables, point)
    if busiest > BEYOND * point.step_s:
        return f"its busiest stage alone computes {busiest:.3g} s by the profile: plan or figure is another's"
    return ""


def busiest_s(tables: SailorTables, point: Point) -> float:
    """What no order of instructions and no network gets below: all micro-batches on the slowest stage."""
    return max(
        point.micro_batches * (prices.forward_s + prices.backward_s)
        for plan in point.pipelines
        for replica in dict.fromkeys(plan.replicas)
        for prices in pipeline_of(tables, point, plan, replica, by_nic=False).stages
    )


def memory_reason(tables: SailorTables, point: Point, others: Sequence[Point]) -> str:
    """Why a point's peak memory is reported apart; empty where it counts."""
    if point.peak_bytes is None:
        return "no peak is given"
    plan = point.pipelines[0]
    place = plan.replicas[0][0]
    kept = (
        ELEMENT
        * point.mbs
        * sum(tables.size(point.model, place.tp, layer, "act_mem_floats") for layer in plan.layers[0])
    )
    if point.peak_bytes < kept:
        return f"below the {kept / 1e9:.2f} GB that one micro-batch of its first stage keeps"
    if {
        place.kind for plan in point.pipelines for replica in plan.replicas for place in replica
    } <= THREE_TYPES:
        return "read as a device's total, and what the platform takes on these machines is not known"
    copied = time_reason(tables, point, others)
    return copied if "a copy" in copied else ""
