"""ZeRO: every trained element is stored by exactly one of its holders, in shares of flat runs.

Parameters of one unit with the same holders make one run, and the run is cut into as many pieces as there are
holders, as long as their weights say: neither odd groups nor short parameters lose or double anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ...base.comm_plan import Box, Interval, box_volume
from ...base.name_groups import shortened
from ...base.pipeline_schedule import scatter_points
from ...errors import StrategyError
from ...layout.shares import assign_units
from ...program.boxes import flat_part
from ...program.program import ZERO_GRADS
from ..compile_state import Levelled, Shared, grown
from ..grad_buckets import GradLayout, merged, parties_of
from ..pass_chain import Pass
from ..texts.cells import Line, joined, ranks_text

Ranks = tuple[int, ...]

UNIT_ELEMENTS = 1 << 23
"""Most elements of parameters that move together, unless a single one has more."""


@dataclass(frozen=True, slots=True)
class ParamPart:
    """Boxes of a parameter whose elements have the same holders and the same addends.

    has_all: each holder has the whole gradient itself already.
    """

    contributors: Ranks
    holders: Ranks
    has_all: bool
    boxes: tuple[Box, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return sum(map(box_volume, self.boxes))


@dataclass(frozen=True, slots=True)
class Cut:
    """What one rank stores of a part. row: its place in the rank's row of the parameter."""

    rank: int
    boxes: tuple[Box, ...]
    row: Interval

    @property
    def size(self) -> int:
        """Elements."""
        return self.row[1] - self.row[0]


@dataclass(frozen=True, slots=True)
class Trained:
    """A parameter that is trained. unit: parameters of one unit are gathered together.

    dtype: of what is gathered. grad_dtype: of what is reduced.
    """

    name: str
    layout: GradLayout
    unit: int
    dtype: str
    grad_dtype: str


@dataclass(frozen=True, slots=True)
class FlatRun:
    """Parts, as (parameter, number of its part), that are shared out together among their holders."""

    holders: Ranks
    dtype: str
    members: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who stores what of the trained parameters. cuts: by parameter and number of its part, by rank.

    rows: elements of each (parameter, rank).
    """

    trained: tuple[Trained, ...]
    runs: tuple[FlatRun, ...]
    parts: Mapping[str, list[ParamPart]]
    cuts: Mapping[tuple[str, int], Mapping[int, Cut]]
    rows: Mapping[tuple[str, int], int]

    def owned(self, name: str) -> dict[int, tuple[Box, ...]]:
        """Per rank the boxes that it stores of a parameter, in the order of its row."""
        found: dict[int, tuple[Box, ...]] = {}
        for number in range(len(self.parts[name])):
            for rank, cut in self.cuts[name, number].items():
                found[rank] = (*found.get(rank, ()), *cut.boxes)
        return found

    @property
    def shared(self) -> frozenset[str]:
        """Parameters of which some element has several holders."""
        return frozenset(name for name, parts in self.parts.items() if has_several_holders(parts))


def has_several_holders(parts: Iterable[ParamPart]) -> bool:
    """Whether any element of a parameter has."""
    return any(len(part.holders) > 1 for part in parts)


def units_of(layouts: Mapping[str, GradLayout], groups: Iterable[Collection[str]]) -> dict[str, int]:
    """What is gathered in a group is shared out in it, so that every holder gives as much; other parameters
    go together up to a size, so that no second copy of all of them is made to be moved."""
    places = {name: index for index, name in enumerate(layouts)}
    units = {name: min(map(places.__getitem__, group)) for group in groups for name in group}
    first, together = 0, 0
    for index, (name, layout) in enumerate(layouts.items()):
        if name in units:
            continue
        size = prod(layout.shape)
        if together + size > UNIT_ELEMENTS or not together:
            first, together = index, 0
        units[name] = first
        together += size
    return units


def parts_of(layout: GradLayout) -> list[ParamPart]:
    """The elements of a parameter by holders and addends."""
    cells: dict[tuple[Ranks, Ranks, bool], list[Box]] = {}
    for found, boxes in parties_of(layout):
        holders = tuple(rank for _, needers in found for rank in needers)
        if holders:
            key = (found[0][0] if len(found) == 1 else holders, holders, len(found) > 1)
            cells.setdefault(key, []).extend(boxes)
    return [ParamPart(*key, merged(boxes)) for key, boxes in cells.items()]


def share_out(trained: list[Trained], weights: Mapping[int, int] | None = None) -> Ownership:
    """Cut every run into pieces by weights of its holders, 1 each without; rounded over all runs together.

    What one rank holds alone stays with it, whatever its weight.
    """
    known: dict[int, list[ParamPart]] = {}
    parts: dict[str, list[ParamPart]] = {}
    members: dict[tuple[int, Ranks, str], list[tuple[str, int]]] = {}
    for each in trained:
        if id(each.layout) not in known:
            known[id(each.layout)] = parts_of(each.layout)
        parts[each.name] = known[id(each.layout)]
        for number, part in enumerate(parts[each.name]):
            members.setdefault((each.unit, part.holders, each.dtype), []).append((each.name, number))
    ordered = sorted(members.items(), key=lambda item: (item[0][0], len(item[0][1]), item[0]))
    runs = tuple(FlatRun(holders, dtype, tuple(found)) for (_, holders, dtype), found in ordered)
    _check_owners(runs, weights or {})
    sharing = _Sharing(parts, weights or {})
    for run in runs:
        sharing.cut(run)
    cuts, rows = sharing.placed()
    return Ownership(tuple(trained), runs, parts, cuts, rows)


def weights_of(holders: Ranks, weights: Mapping[int, int]) -> tuple[int, ...]:
    """One weight per holder; a single one stores all."""
    return tuple(weights.get(rank, 1) for rank in holders) if len(holders) > 1 else (1,)


def _check_owners(runs: Sequence[FlatRun], weights: Mapping[int, int]) -> None:
    """Somebody stores each element."""
    bad = [
        (name, f"held by ranks {ranks_text(run.holders)}, all of weight 0")
        for run in runs
        if not any(weights_of(run.holders, weights))
        for name, _ in run.members
    ]
    if bad:
        raise StrategyError(
            "zero_shares leave elements without a rank that stores them",
            details=shortened(bad),
            rule="what several ranks hold is stored by those of them whose weight is above 0",
            fix="give one of these ranks a weight above 0 in its stage's zero_shares",
        )


@dataclass(slots=True)
class _Sharing:
    """Shares out one run after the other. given: elements of the runs before, per set of holders."""

    parts: Mapping[str, list[ParamPart]]
    weights: Mapping[int, int]
    boxes: dict[tuple[str, int], dict[int, tuple[Box, ...]]] = field(default_factory=dict)
    given: dict[Ranks, int] = field(default_factory=dict)

    def cut(self, run: FlatRun) -> None:
        """Cut the members of a run, laid one after the other."""
        shares = self._shares(run.holders, sum(self.parts[name][number].size for name, number in run.members))
        before = 0
        for name, number in run.members:
            part, low = self.parts[name][number], -before
            mine = self.boxes.setdefault((name, number), {})
            for rank, count in zip(run.holders, shares, strict=True):
                boxes = flat_part(part.boxes, low, low + count)
                if boxes:
                    mine[rank] = boxes
                low += count
            before += part.size

    def _shares(self, holders: Ranks, size: int) -> list[int]:
        """What is handed out one by one never goes back, so a run gets what is more than before it."""
        weights = weights_of(holders, self.weights)
        before = self.given.get(holders, 0)
        self.given[holders] = before + size
        ends = zip(assign_units(before + size, weights), assign_units(before, weights), strict=True)
        return [after - had for after, had in ends]

    def placed(self) -> tuple[dict[tuple[str, int], dict[int, Cut]], dict[tuple[str, int], int]]:
        """The cuts with their places in rows, in the order of a parameter's parts, and the rows' lengths."""
        cuts: dict[tuple[str, int], dict[int, Cut]] = {}
        rows: dict[tuple[str, int], int] = {}
        for name, parts in self.parts.items():
            for number in range(len(parts)):
                mine = cuts.setdefault((name, number), {})
                for rank, boxes in self.boxes[name, number].items():
                    low = rows.get((name, rank), 0)
                    rows[name, rank] = low + sum(map(box_volume, boxes))
                    mine[rank] = Cut(rank, boxes, (low, rows[name, rank]))
        return cuts, rows


def ownership_text(ownership: Ownership | None, scatters: Sequence[frozenset[int]]) -> str:
    """Per run of parameters that are shared out together, how many elements each holder stores."""
    if ownership is None:
        return "without ZeRO every holder stores what it holds\n"
    lines: list[Line] = []
    for run in ownership.runs:
        sizes = [
            sum(ownership.cuts[member][rank].size for member in run.members if rank in ownership.cuts[member])
            for rank in run.holders
        ]
        names = ", ".join(dict.fromkeys(name for name, _ in run.members))
        lines.append((f"ranks {ranks_text(run.holders)}", run.dtype, f"{sizes} elements", names))
    lines += [
        (f"pipeline {number}", f"hands gradients over behind micro-batches {sorted(points)}")
        for number, points in enumerate(scatters)
        if points
    ]
    return joined(lines)


@dataclass(frozen=True, slots=True)
class Zero(Pass[Levelled, Shared]):
    """How far it goes is part of the strategy; without it every holder stores what it holds."""

    def run(self, state: Levelled) -> Shared:
        ownership = (
            share_out(list(_trained(state)), state.strategy.zero_weights()) if state.strategy.zero else None
        )
        return grown(Shared, state, ownership=ownership, scatters=_scatters(state, ownership))

    def text(self, before: Levelled, after: Shared) -> str:
        return ownership_text(after.ownership, after.scatters)

    def problems(self, before: Levelled, after: Shared) -> Iterator[str]:
        """Every element has one owner."""
        if after.ownership is None:
            return
        for (name, number), cuts in after.ownership.cuts.items():
            part, kept = after.ownership.parts[name][number], sum(cut.size for cut in cuts.values())
            if kept != part.size or not set(cuts) <= set(part.holders):
                yield f"of {part.size} elements of {name} on {part.holders}, {kept} are owned by {[*cuts]}"


def _trained(state: Levelled) -> Iterator[Trained]:
    places = state.places
    units = units_of(places.gradients, [group.names for group in state.groups])
    for name, layout in places.gradients.items():
        yield Trained(name, layout, units[name], *places.types(name))


def _scatters(state: Levelled, ownership: Ownership | None) -> list[frozenset[int]]:
    """Where gradients are handed over before the end of a step; nowhere below ZeRO-2."""
    counts = [len(rows) for rows in state.ranks.rows]
    if ownership is None or state.strategy.zero < ZERO_GRADS or not ownership.shared:
        return [frozenset()] * len(counts)
    return scatter_points(counts)
