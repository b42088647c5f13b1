"""What HAP's count leaves out of a program's price, in numbers: said wherever the price is."""

from __future__ import annotations

from collections.abc import Iterator

from .costs import BYTES_PER_ELEMENT
from .operators import WHOLE, HapValue, Leaf, cut_of, is_cut
from .plan import HapPlan


def notes(plan: HapPlan, uncounted: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """One sentence each."""
    exchange = plan.program.exchange_s
    found = [
        "HAP's cost: element counts are divided by bytes a second; "
        f"counted in bytes, {exchange:.4g} s of communication would be {BYTES_PER_ELEMENT * exchange:.4g} s"
    ]
    links = plan.prices.machine.bandwidths
    free = [value for value, placement in loads(plan) if is_free(value, placement)]
    if free:
        seconds = sum(value.elements for value in free) / links.all_reduce
        names = ", ".join(f"{value.name} {list(value.shape)}" for value in free)
        found.append(
            f"HAP's cost: {names}, cut along a dim of length 1, cost nothing; "
            f"gradients' all-reduce: {seconds:.4g} s"
        )
    buffers = sum(value.elements for value, placement in loads(plan) if is_paid_buffer(value, placement))
    if buffers:
        found.append(
            f"HAP's cost: buffers of {buffers} elements pay {buffers / links.all_reduce:.4g} s, "
            "as if they had gradients"
        )
    if uncounted:
        elements = sum(count for _, count in uncounted)
        found.append(
            f"HAP's cost: {len(uncounted)} weights of norms ({elements} elements) cost nothing; "
            f"gradients' all-reduce: {elements / links.all_reduce:.4g} s"
        )
    return tuple(found)


def loads(plan: HapPlan) -> Iterator[tuple[HapValue, int]]:
    """Leaves of the program and the placements they are brought to."""
    for operator, step in plan.program.steps:
        for value, placement in zip(operator.inputs, step.placements, strict=True):
            if value.leaf is not None:
                yield value, placement


def is_paid_buffer(value: HapValue, placement: int) -> bool:
    return value.leaf is Leaf.BUFFER and placement == WHOLE


def is_free(value: HapValue, placement: int) -> bool:
    """Whether a parameter is cut along a dim of length 1, which leaves it whole on each device."""
    held = value.leaf is Leaf.PARAMETER and is_cut(placement)
    return held and value.shape[cut_of(placement)[0]] == 1
