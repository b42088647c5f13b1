"""Layouts of logical values as JSON: what is needed to put a value of all ranks together again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..base.codec import damaged, decode
from ..base.typed import Place
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


@dataclass(frozen=True, slots=True)
class RowOwners:
    """Whose rows are whose in a stage. experts: the logical row that says which expert each row goes to.
    home: how ranks hold rows before. owned: experts of each rank of the stage."""

    experts: int
    home: Layout
    owned: Sets


@dataclass(frozen=True, slots=True)
class RoutedValue:
    """A logical value whose rows lie at the owners of their experts. dim: of the rows. layout: of addends,
    a rank's rows at their places among zeros."""

    logical: int
    value: int
    layout: Layout
    dim: int
    owners: RowOwners


@dataclass(slots=True)
class ValueLayouts:
    """Placed values by (pipeline, stage), and those whose rows lie at the owners of their experts.

    first: BATCH coordinate of each pipeline's first micro-batch.
    """

    first: list[int]
    stages: dict[tuple[int, int], list[PlacedValue]] = field(default_factory=dict)
    routed: dict[tuple[int, int], list[RoutedValue]] = field(default_factory=dict)

    def to_json(self) -> Json:
        """Layouts once each in a table, values as [pipeline, stage, [[logical, value, layout], ...]]."""
        index: dict[Layout, int] = {}
        stages = [
            [p, s, [[v.logical, v.value, index.setdefault(v.layout, len(index))] for v in values]]
            for (p, s), values in sorted(self.stages.items())
        ]
        owners: dict[RowOwners, int] = {}
        routed = [
            [p, s, v.logical, v.value, index.setdefault(v.layout, len(index)), v.dim, _numbered(owners, v)]
            for (p, s), values in sorted(self.routed.items())
            for v in values
        ]
        told = [
            [
                each.experts,
                index.setdefault(each.home, len(index)),
                _encode_sets(each.owned),
            ]
            for each in owners
        ]
        made: Json = {"first": self.first, "stages": stages}
        if told:
            made |= {"routed": routed, "owners": told}
        return {**made, "layouts": [_encode(layout) for layout in index]}


def _numbered(owners: dict[RowOwners, int], value: RoutedValue) -> int:
    return owners.setdefault(value.owners, len(owners))


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
    routed: tuple[tuple[int, int, int, int, int, int, int], ...] = ()
    owners: tuple[tuple[int, int, Sets], ...] = ()


def from_json(data: object) -> ValueLayouts:
    """Read what `to_json` writes; ArtifactError where it is something else."""
    form = decode(_Form, data, FILE)
    unknown: list[tuple[Place, object, str]] = [
        (("stages", place, 2), index, f"one of {len(form.layouts)} layouts")
        for place, (_, _, values) in enumerate(form.stages)
        for _, _, index in values
        if not 0 <= index < len(form.layouts)
    ]
    unknown += _unknown_owners(form)
    if unknown:
        raise damaged(FILE, unknown)
    layouts = [layout.made() for layout in form.layouts]
    stages = {(p, s): [PlacedValue(a, b, layouts[c]) for a, b, c in values] for p, s, values in form.stages}
    owners = [RowOwners(row, layouts[home], owned) for row, home, owned in form.owners]
    routed: dict[tuple[int, int], list[RoutedValue]] = {}
    for p, s, logical, value, layout, dim, number in form.routed:
        made = RoutedValue(logical, value, layouts[layout], dim, owners[number])
        routed.setdefault((p, s), []).append(made)
    return ValueLayouts(form.first, stages, routed)


def _unknown_owners(form: _Form) -> list[tuple[Place, object, str]]:
    """What values whose rows lie at the owners of their experts name, and what is not there."""
    found: list[tuple[Place, object, str]] = []
    known = len(form.layouts)
    for number, (_, home, owned) in enumerate(form.owners):
        if not 0 <= home < known or len(form.layouts[home].dims) != 1:
            found.append((("owners", number, 1), home, f"one of {known} layouts, of one dim"))
        if not any(owned):
            found.append((("owners", number, 2), list(owned), "ranks, one of which has experts"))
    for number, (_, _, _, _, layout, dim, owner) in enumerate(form.routed):
        if not 0 <= layout < known or not 0 <= dim < len(form.layouts[layout].dims):
            found.append((("routed", number, 4), layout, f"one of {known} layouts, with this dim"))
        if not 0 <= owner < len(form.owners):
            found.append((("routed", number, 6), owner, f"one of {len(form.owners)} owners"))
    return found
