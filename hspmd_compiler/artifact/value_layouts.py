"""Layouts of logical values as JSON: what is needed to put a value of all ranks together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..annotations.intervals import Sets
from ..annotations.layout import Axis, Factor, Layout, make_layout
from ..errors import ArtifactError

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


def from_json(data: object) -> ValueLayouts:
    """Read what `to_json` writes; ArtifactError where it is something else."""
    try:
        return _decode(data)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ArtifactError(
            "layouts.json does not hold layouts",
            details=[(type(error).__name__, str(error))],
            rule="it is written by `hspmd compile`",
            fix="compile again",
        ) from error


def _decode(data: dict[str, list[object]]) -> ValueLayouts:
    layouts = [_decode_layout(item) for item in data["layouts"]]  # type: ignore[arg-type]
    result = ValueLayouts([int(item) for item in data["first"]])  # type: ignore[call-overload]
    for pipeline, stage, values in data["stages"]:  # type: ignore[misc]
        result.stages[int(pipeline), int(stage)] = [  # type: ignore[has-type]
            PlacedValue(int(a), int(b), layouts[int(c)])
            for a, b, c in values  # type: ignore[has-type]
        ]
    return result


def _decode_layout(item: Sequence[Sequence[object]]) -> Layout:
    dims = tuple(tuple(_decode_factor(factor) for factor in dim) for dim in item[0])  # type: ignore[attr-defined]
    addends = tuple(int(number) for number in item[2]) if len(item) > 2 else None  # type: ignore[call-overload]
    return make_layout(dims, frozenset(Axis(axis) for axis in item[1]), addends)


def _decode_factor(item: Sequence[object]) -> Factor:
    size = int(item[0])  # type: ignore[call-overload]
    if len(item) == 1:
        return Factor(size)
    by_rank = _decode_sets(item[4]) if len(item) > 4 else None
    return Factor(size, Axis(item[1]), _decode_sets(item[2]), bool(item[3]), by_rank)


def _decode_sets(sets: object) -> Sets:
    return tuple(tuple((int(a), int(b)) for a, b in held) for held in sets)  # type: ignore[attr-defined]
