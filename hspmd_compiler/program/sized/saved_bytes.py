"""Bytes that ranks keep of a micro-batch of any size from its forward to its backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..program import Program, RankProgram
from .sizes import Count, MicroSizes, Size


def saved_bytes(own: RankProgram, micro: MicroSizes, total: int = 0) -> int:
    """What a rank keeps of a micro-batch of these sizes, as its pipeline has it.

    total: tokens (or samples) of the step, which nothing that is kept depends on today.
    """
    if own.sized is None:
        raise ValueError("a program of one size has `saved`")
    return sum(prod(size.at(micro, total) for size in product) for product in own.sized.saved)


def stage_bytes(program: Program, micro: MicroSizes) -> dict[tuple[int, int], list[int]]:
    """By (pipeline, stage), what each of its ranks keeps of a micro-batch of these sizes, in their order."""
    found: dict[tuple[int, int], list[int]] = {}
    for own in program.ranks:
        found.setdefault((own.pipeline, own.stage), []).append(saved_bytes(own, micro))
    return found


def saved_text(saved: Sequence[tuple[Size, ...]]) -> str:
    """For people: `1,024*T + 96*T[0:1 of 2] + 8`."""
    return " + ".join(map(_product_text, saved)) or "0"


def _product_text(product: tuple[Size, ...]) -> str:
    factor = prod(size.factor for size in product if size.minus is None)
    counted = [
        size.text if size.minus is not None else Size(1, size.of, size.parts, size.low, size.high).text
        for size in product
        if size.of is not Count.ONE
    ]
    return "*".join([f"{factor:,}"] * (factor != 1 or not counted) + counted)
