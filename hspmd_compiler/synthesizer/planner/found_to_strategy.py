"""A found program as a Strategy: overrides for parameters, layouts for activations, ZeRO, recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...base import name_glob
from ...ir.anchor_rows import anchors_of
from ...ir.graph import LogicalGraph
from ...layout.shares import assign_units
from ...strategy.strategy import (
    GradientForm,
    LayoutWish,
    Override,
    Recompute,
    RecomputeKind,
    Strategy,
)
from ..value_types import FoundProgram, Holding, ParamChoice, ValueType
from .name_patterns import as_globs


@dataclass(frozen=True, slots=True)
class HeldParam:
    """What an override says of a parameter. split: None where it is whole. gradient: None for sums."""

    split: int | None
    shares: tuple[int, ...] | None
    gradient: GradientForm | None = None

    def override(self, match: str) -> Override:
        if self.split is None:
            return Override(match, duplicate=True, gradient=self.gradient)
        return Override(match, split=self.split, shares=self.shares)


def realise(found: FoundProgram, graph: LogicalGraph, base: Strategy) -> Strategy:
    """The strategy with what was found in each of its pipelines.

    graph: traced with all anchors. base: pipelines of one stage, with their samples and the stages' shares.
    An override or a layout has shares of its own where those of the stages would give others.
    """
    pipelines = tuple(
        replace(pipeline, recompute=tuple(_recomputed(found.recompute))) for pipeline in base.pipelines
    )
    zero = max((choice.zero or 0 for choice in found.params), default=0)
    whole = replace(base, pipelines=pipelines, zero=zero)
    if found.ranks == 1:
        return whole
    writer = _Writer(found, graph, {pipeline.stages[0].shares for pipeline in base.pipelines})
    return replace(whole, overrides=tuple(writer.overrides()), layouts=tuple(writer.layouts()))


@dataclass(frozen=True, slots=True)
class _Writer:
    """stages: the shares of all stages."""

    found: FoundProgram
    graph: LogicalGraph
    stages: set[tuple[int, ...] | None]

    def overrides(self) -> Iterator[Override]:
        """For all parameters."""
        chosen = {choice.name: self._held(choice) for choice in self.found.params}
        held = (info for info in self.graph.params.values() if not info.is_buffer)
        others = [name for info in held if info.name not in chosen for name in info.aliases]
        for match, one in as_globs(chosen, others, name_glob.matches):
            yield one.override(match)

    def _held(self, choice: ParamChoice) -> HeldParam:
        if choice.type.holding is not Holding.SPLIT:
            factors = choice.type.holding is Holding.FACTORS
            return HeldParam(None, None, GradientForm.FACTORS if factors else None)
        own = choice.shares is not None and not self._by_stage(choice.shares)
        return HeldParam(choice.type.dim, choice.shares if own else None)

    def layouts(self) -> Iterator[LayoutWish]:
        """For inputs that are cut, and values that change hands."""
        rows = self.graph.rows
        chosen = {
            one.name: self._states(one.type, one.shares, rows[self.graph.inputs[one.name].row].shape)
            for one in self.found.inputs
            if one.type.repeats == 1 or not self.found.by_stage
        }
        for exchange in self.found.exchanges:
            if not {exchange.before.holding, exchange.after.holding} <= {Holding.WHOLE, Holding.REPLICATE}:
                shape = rows[exchange.row].shape
                chosen[exchange.anchor] = self._states(exchange.after, exchange.shares, shape)
        others = [place.name for place in anchors_of(self.graph) if place.name not in chosen]
        for at, to in as_globs(chosen, others, name_glob.matches_exactly):
            yield LayoutWish(at, to)

    def _states(self, held: ValueType, shares: tuple[int, ...] | None, shape: tuple[int, ...] | None) -> str:
        """As annotations write them, without devices."""
        if held.holding is not Holding.SPLIT:
            return "P" if held.holding is Holding.PENDING else "D"
        assert held.dim is not None and shares is not None and shape is not None, "of a cut"
        length = shape[held.dim] // held.repeats
        if self._by_stage(shares) and held.repeats == 1:
            unit = length // sum(shares)
            return f"S{held.dim}" + (f"/{unit}" if unit > 1 else "")
        blocks = "{" + ",".join([str(length)] * held.repeats) + "}" if held.repeats > 1 else ""
        return f"S{held.dim}({','.join(map(str, shares))}){blocks}"

    def _by_stage(self, shares: tuple[int, ...]) -> bool:
        """Whether all stages hand out these units by themselves."""
        if self.found.by_stage:
            return True
        even = [1] * self.found.ranks
        return all(assign_units(sum(shares), weights or even) == shares for weights in self.stages)


def _recomputed(layers: Sequence[int]) -> Iterator[Recompute]:
    """Ranges of layers that follow each other."""
    held = set(layers)
    for low in sorted(one for one in held if one - 1 not in held):
        high = low
        while high in held:
            high += 1
        yield Recompute((low, high), RecomputeKind.FULL)
