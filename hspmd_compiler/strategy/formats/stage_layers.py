"""How many layers each stage gets: where a format gives counts, or no more than devices or degrees."""

from __future__ import annotations

from collections.abc import Sequence

from ...layout.shares import assign_units
from ..strategy import StageSpec


def even_counts(layers: int, stages: int) -> tuple[int, ...]:
    """Equal numbers of layers, the first stages taking what remains."""
    return assign_units(layers, (1,) * stages)


def layer_ranges(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open ranges of layers that follow each other."""
    return [(sum(counts[:index]), sum(counts[: index + 1])) for index in range(len(counts))]


def equal_stages(pipeline: int, pipelines: int, tp: int, pp: int, each: int) -> list[StageSpec]:
    """The stages of one of several equal pipelines, `each` layers long; devices go pipeline by pipeline."""
    stages = []
    for stage in range(pp):
        first = (stage * pipelines + pipeline) * tp
        stages.append(StageSpec(tuple(range(first, first + tp)), (stage * each, (stage + 1) * each)))
    return stages
