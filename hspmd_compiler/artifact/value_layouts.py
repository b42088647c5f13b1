"""Layouts of logical values as JSON: what is needed to put a value of all ranks together again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..base.codec import damaged, decode
from ..layout.intervals import Sets
from ..layout.layout import Axis, Factor, Layout, make_layout
from .paths import LAYOUTS as FILE

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class PlacedValue:
    """A logical value in the stage that computes it: its id in the class program, and its layout."""

    logical: int
    value: int
    layout: Layout


@dataclass(slots=True)
class ValueLayouts:
    """Placed values by (pipeline, stage). first: BATCH coordinate of each pipeline's first micro-batch."""

    first: list[int]
    stages: dict[tuple[int, int], list[PlacedValue]] = field(default_factory=dict)

    def to_json(self) -> Json:
        """Layouts once each in a table, values as [pipeline, stage, [[logical, value, layout], ...]]."""
        index: dict[Layout, int] = {}
        stages = [
            [p, s, [[v.logical, v.value, index.setdefault(v.layout, len(index))] for v in values]]
            for (p, s), values in sorted(self.stages.items())
        ]
        return {"first": self.first, "stages": stages, "layouts": [_encode(layout) for layout in index]}


def _encode(layout: Layout) -> list[object]:
    dims = [[_encode_factor(factor) for factor in dim] for dim in layout.dims]
    encoded: list[object] = [dims, sorted(axis.value for axis in layout.partial)]
    return encoded if layout.addends is None else [*encoded, list(layout.addends)]


def _encode_factor(factor: Factor) -> list[object]:
    if factor.axis is None or factor.sets is None:
        return [factor.size]
    encoded: list[object] = [factor.size, factor.axis.value, _encode_sets(factor.sets), factor.contrib]
    return encoded if factor.by_rank is None else [*encoded, _encode_sets(factor.by_rank)]


def _encode_sets(sets: Sets) -> list[list[list[int]]]:
    return [[list(interval) for interval in held] for held in sets]


class _Factor(NamedTuple):
    size: int
    axis: Axis | None = None
    sets: Sets | None = None
    contrib: bool = False
    by_rank: Sets | None = None


class _Layout(NamedTuple):
    dims: tuple[tuple[_Factor, ...], ...]
    partial: tuple[Axis, ...]
    addends: tuple[int, ...] | None = None

    def made(self) -> Layout:
        dims = tuple(tuple(Factor(*factor) for factor in dim) for dim in self.dims)
        return make_layout(dims, frozenset(self.partial), self.addends)


@dataclass(frozen=True, slots=True)
class _Form:
    first: list[int]
    stages: tuple[tuple[int, int, tuple[tuple[int, int, int], ...]], ...]
    layouts: tuple[_Layout, ...]


def from_json(data: object) -> ValueLayouts:
    """Read what `to_json` writes; ArtifactError where it is something else."""
    form = decode(_Form, data, FILE)
    unknown = [
        (("stages", place, 2), index, f"one of {len(form.layouts)} layouts")
        for place, (_, _, values) in enumerate(form.stages)
        for _, _, index in values
        if not 0 <= index < len(form.layouts)
    ]
    if unknown:
        raise damaged(FILE, unknown)
    layouts = [layout.made() for layout in form.layouts]
    stages = {(p, s): [PlacedValue(a, b, layouts[c]) for a, b, c in values] for p, s, values in form.stages}
    return ValueLayouts(form.first, stages)
