"""A found program as a Strategy: overrides for parameters, layouts for activations, ZeRO, recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...base import name_glob
from ...ir.graph import LogicalGraph
from ...layout.shares import assign_units
from ...strategy.strategy import Override, Recompute, RecomputeKind, Strategy
from ..value_types import FoundProgram, Holding, ParamChoice
from .name_patterns import as_globs


@dataclass(frozen=True, slots=True)
class _Held:
    """What an override says of a parameter."""

    split: int | None
    shares: tuple[int, ...] | None

    def override(self, match: str) -> Override:
        if self.split is None:
            return Override(match, duplicate=True)
        return Override(match, split=self.split, shares=self.shares)


def realise(found: FoundProgram, graph: LogicalGraph, base: Strategy) -> Strategy:
    """The strategy with what was found in each of its pipelines.

    base: pipelines of one stage, as many devices each as the program has ranks, with their samples and the
    stages' shares. An override has shares of its own where those of the stages would give others.
    """
    return replace(
        base,
        pipelines=tuple(
            replace(pipeline, recompute=tuple(_recomputed(found.recompute))) for pipeline in base.pipelines
        ),
        overrides=tuple(_overrides(found, graph, base)),
        zero=max((choice.zero or 0 for choice in found.params), default=0),
    )


def _overrides(found: FoundProgram, graph: LogicalGraph, base: Strategy) -> Iterator[Override]:
    stages = {pipeline.stages[0].shares for pipeline in base.pipelines}
    chosen = {choice.name: _held(choice, found.ranks, stages) for choice in found.params}
    names = {name: info for info in graph.params.values() if not info.is_buffer for name in info.aliases}
    others = [name for name, info in names.items() if info.name not in chosen]
    for match, held in as_globs(chosen, others, name_glob.matches):
        yield held.override(match)


def _held(choice: ParamChoice, ranks: int, stages: set[tuple[int, ...] | None]) -> _Held:
    if choice.type.holding is not Holding.SPLIT:
        return _Held(None, None)
    shares = choice.shares
    if shares is not None and all(_gives(weights, shares, ranks) for weights in stages):
        shares = None
    return _Held(choice.type.dim, shares)


def _gives(weights: Sequence[int] | None, shares: tuple[int, ...], ranks: int) -> bool:
    """Whether a stage with these weights hands out these units by itself."""
    return assign_units(sum(shares), weights or [1] * ranks) == shares


def _recomputed(layers: Sequence[int]) -> Iterator[Recompute]:
    """Ranges of layers that follow each other."""
    held = set(layers)
    for low in sorted(one for one in held if one - 1 not in held):
        high = low
        while high in held:
            high += 1
        yield Recompute((low, high), RecomputeKind.FULL)
