"""Finds, without names, which parameter dims tensor parallelism may split, in which units, and together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile

from ...annotations.split import consecutive
from ...errors import StrategyError
from ...ir.graph import LogicalGraph
from ...layout.shares import assign_units
from .dim_flow import DimFlow
from .infer_dims import infer_dims
from .split_candidates import Candidate, find_candidates


class SplitKind(Enum):
    """What the units of a group are.

    HEADS: attention heads. HIDDEN: the inner width of a block. VOCAB: classes of the loss or rows of
    a looked-up table, which split by a pattern. OTHER: a stream that blocks read and add to.
    """

    HEADS = "heads"
    HIDDEN = "hidden"
    VOCAB = "vocab"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class UnitBlock:
    """One block of a parameter dim that is split by units.

    ratio: units that share one element, which every rank with one of them holds (key-value heads).
    """

    offset: int
    unit: int
    ratio: int = 1

    def rows(self, low: int, high: int) -> tuple[int, int]:
        """The rows that a rank with units [low, high) holds; an empty range for no units."""
        if low >= high:
            start = self.offset + low // self.ratio * self.unit
            return start, start
        last = -(-high // self.ratio)
        return self.offset + low // self.ratio * self.unit, self.offset + last * self.unit


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter dim that a group splits. The pieces cover it: several for a fused parameter."""

    param: str
    dim: int
    pieces: tuple[UnitBlock, ...]

    def rows(self, low: int, high: int) -> tuple[tuple[int, int], ...]:
        """The rows of every piece, in order, that a rank with units [low, high) holds."""
        return tuple(piece.rows(low, high) for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class SplitGroup:
    """Parameter dims that are split together, in `units` equal steps; a parameter is in one group.

    name: for people. layer: index into `LogicalGraph.layers`, None outside and across layers.
    """

    name: str
    units: int
    layer: int | None
    kind: SplitKind
    members: tuple[Member, ...]


def find_split_groups(graph: LogicalGraph) -> tuple[SplitGroup, ...]:
    """Every group that tensor parallelism may split, in the order of the forward pass.

    Candidates exclude each other where they need the same parameter. Heads and hidden widths come
    first, then vocabularies, then streams that blocks read and add to; within each, groups inside
    one layer come first, then forward order decides.
    """
    return split_groups(graph, infer_dims(graph))


def split_groups(graph: LogicalGraph, flow: DimFlow) -> tuple[SplitGroup, ...]:
    """As `find_split_groups`, from dims that are inferred."""
    found = [_Draft.of(graph, candidate) for candidate in find_candidates(graph, flow)]
    taken: set[str] = set()
    chosen = []
    for draft in sorted(found, key=_Draft.priority):
        params = {member.param for member in draft.members}
        if taken.isdisjoint(params):
            taken |= params
            chosen.append(draft)
    chosen.sort(key=_Draft.position)
    names = _names(graph, chosen)
    return tuple(
        SplitGroup(name, draft.units, draft.layer, draft.kind, draft.members)
        for name, draft in zip(names, chosen, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Draft:
    """A group that has no name yet. first: its first row. stride: rows of one unit in that place."""

    units: int
    layer: int | None
    kind: SplitKind
    members: tuple[Member, ...]
    first: int
    stride: int

    @staticmethod
    def of(graph: LogicalGraph, candidate: Candidate) -> _Draft:
        facts = candidate.facts
        layers = {graph.rows[row].layer for row in (*facts.made, *facts.used)}
        return _Draft(
            units=candidate.size * candidate.repeat,
            layer=layers.pop() if len(layers) == 1 else None,
            kind=_kind(candidate),
            members=_members(graph, candidate),
            first=min(facts.made),
            stride=max(place.stride for place in candidate.places),
        )

    def priority(self) -> tuple[int, bool, int, int]:
        late = {SplitKind.VOCAB: 1, SplitKind.OTHER: 2}.get(self.kind, 0)
        return late, self.layer is None, *self.position()

    def position(self) -> tuple[int, int]:
        return self.first, -self.stride


def _kind(candidate: Candidate) -> SplitKind:
    facts = candidate.facts
    if facts.vocab:
        return SplitKind.VOCAB
    if facts.heads:
        return SplitKind.HEADS
    return SplitKind.OTHER if max(facts.made) > min(facts.used) else SplitKind.HIDDEN


def _members(graph: LogicalGraph, candidate: Candidate) -> tuple[Member, ...]:
    """Pieces by parameter dim; parts of the dim that do not follow the units stay with every rank."""
    inner = {(place.param, place.dim, start) for place in candidate.inner_places for start in place.starts()}
    pieces: dict[tuple[str, int], list[UnitBlock]] = {}
    for place in candidate.places:
        for start in place.starts():
            alone = (place.param, place.dim, start) not in inner
            ratio = candidate.repeat if alone else 1
            unit = place.stride if alone else place.stride // candidate.repeat
            pieces.setdefault((place.param, place.dim), []).append(UnitBlock(start, unit, ratio))
    units = candidate.size * candidate.repeat
    return tuple(
        Member(param, dim, _cover(found, units, graph.params[param].shape[dim]))
        for (param, dim), found in pieces.items()
    )


def _cover(pieces: Iterable[UnitBlock], units: int, length: int) -> tuple[UnitBlock, ...]:
    """Pieces in order, with a piece that every rank holds in each gap."""
    covered: list[UnitBlock] = []
    end = 0
    for piece in (*sorted(pieces, key=lambda piece: piece.offset), UnitBlock(length, 0)):
        if piece.offset > end:
            covered.append(UnitBlock(end, piece.offset - end, units))
        covered.append(piece)
        end = piece.offset + units // piece.ratio * piece.unit
    return tuple(covered[:-1])


def _names(graph: LogicalGraph, drafts: Sequence[_Draft]) -> list[str]:
    """The shortest name of each group that no other group has."""
    forms = [_forms(graph, draft) for draft in drafts]
    counts = Counter(name for names in forms for name in set(names))
    used: Counter[str] = Counter()
    chosen = []
    for names in forms:
        name = next((name for name in names if counts[name] == 1), names[-1])
        used[name] += 1
        chosen.append(name if used[name] == 1 else f"{name}.{used[name]}")
    return chosen


def _forms(graph: LogicalGraph, draft: _Draft) -> list[str]:
    first, *others = [member.param.split(".")[:-1] for member in draft.members]
    if draft.layer is None:
        paths = [first[-2:], first]
    else:
        layer = graph.layers[draft.layer].split(".")
        shared = takewhile(lambda part: all(part in path for path in others), first)
        paths = [layer[-2:], layer, list(shared)]
    return [".".join((*path, draft.kind.value)) for path in paths]


def assign(group: SplitGroup, shares: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Units [low, high) of each rank, by weight; a share of 0 stays empty."""
    if not any(shares) or min(shares) < 0:
        raise StrategyError(
            f"shares {list(shares)} can't divide the {group.units} units of {group.name}",
            rule="shares are not negative, and at least one is positive",
            fix="give one whole number per rank",
        )
    return consecutive(assign_units(group.units, shares))
