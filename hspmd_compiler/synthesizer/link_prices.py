"""Seconds of exchanges as closed forms of `ClusterCost`: straight lines over the bytes of a whole value.

Each kind of exchange takes what it takes in all groups at once, by the ratio vectors that say the pieces.
Groups may have other numbers of ranks: then each has pieces of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from ..base.comm_plan import CommKind, Traffic
from ..cost_models.links import ClusterCost
from .whole_shares import ANY, Shares, WholeShares

Group = tuple[int, ...]
SentParts = Sequence[Sequence[float]]
"""Of a value of a group, by sender and receiver."""
SMALL_BYTES, LARGE_BYTES = 1 << 12, 1 << 30
"""Where closed forms are read off as straight lines."""
_HUGE = (1 << 40, 1 << 41)
"""Bytes of which a NIC that several rings share takes longest, if it does of any."""
ALIKE = 1e-6


@dataclass(frozen=True, slots=True)
class LinkPrice:
    """Seconds of one kind of exchange. lines: (fixed, per byte). least: whether the least of them holds, or
    the greatest. shared: the line of the NIC that has most to carry, below which nothing is."""

    lines: tuple[tuple[float, float], ...] = ()
    least: bool = False
    shared: tuple[float, float] = (0.0, 0.0)

    def seconds(self, size_bytes: float) -> float:
        """Of so many bytes; nothing is free."""
        if not self.lines or not size_bytes:
            return 0.0
        found = [fixed + per_byte * size_bytes for fixed, per_byte in self.lines]
        fixed, per_byte = self.shared
        return max(min(found) if self.least else max(found), fixed + per_byte * size_bytes)

    def half(self) -> LinkPrice:
        """Of a sum's scatter alone, or of its gather."""
        return self.times(0.5)

    def larger(self, factor: float) -> LinkPrice:
        """Of so many times the bytes."""
        if factor == 1:
            return self
        lines = tuple((fixed, per_byte * factor) for fixed, per_byte in self.lines)
        return LinkPrice(lines, self.least, (self.shared[0], self.shared[1] * factor))

    def times(self, count: float) -> LinkPrice:
        """Of so many of them."""
        lines = tuple((fixed * count, per_byte * count) for fixed, per_byte in self.lines)
        fixed, per_byte = self.shared
        return LinkPrice(lines, self.least, (fixed * count, per_byte * count))


NO_LINK = LinkPrice()
"""Of what nothing moves for."""


@dataclass(frozen=True, slots=True)
class SearchGroup:
    """ranks: of one group. vertices: its ratio vectors. part: of the samples. samples: how many, 0 where they
    are not counted."""

    ranks: Group
    vertices: tuple[Shares, ...]
    part: float = 1.0
    samples: int = 0


def exchange_prices(cost: ClusterCost, groups: Sequence[SearchGroup]) -> dict[str, object]:
    """All closed forms of a SearchMachine, by field."""
    everyone = tuple(cost.slots)
    several = [group for group in groups if len(group.ranks) > 1]
    found: dict[str, object] = {
        "reduces": _reduce(cost, [(group.ranks, group.part) for group in several]),
        "all_reduces": _reduce(cost, [(everyone, 1.0)]),
        "piece_reduces": _piece_reduces(cost, groups) if len(groups) > 1 else NO_LINK,
        "param_gathers": _even_gather(cost, everyone),
    }
    if not several:
        return found
    moved, vertices = MovePrices.of(cost, several), range(len(groups[0].vertices))
    return found | {
        "moved": moved,
        "gathers": tuple(moved.gather((one, ANY)) for one in vertices),
        "scatters": tuple(moved.scatter((one, ANY)) for one in vertices),
        "exchanges": tuple(
            tuple(moved.exchange((one, ANY), (other, ANY)) for other in vertices) for one in vertices
        ),
        "reslices": tuple(
            tuple(moved.reslice((one, ANY), (other, ANY)) for other in vertices) for one in vertices
        ),
    }


def _piece_reduces(cost: ClusterCost, groups: Sequence[SearchGroup]) -> LinkPrice:
    """A rank whose piece meets several of another group sums one after the other, beside all other ranks."""
    rings = list(rings_across(groups))
    rounds = max(Counter(rank for ring, _ in rings for rank in ring).values())
    return _reduce(cost, rings).times(rounds)


def rings_across(groups: Sequence[SearchGroup]) -> Iterator[tuple[Group, float]]:
    """Who holds each piece of a gradient, one rank of each group, with its part of the largest piece."""
    if len({len(group.ranks) for group in groups}) == 1:
        yield from ((ring, 1.0) for ring in zip(*(group.ranks for group in groups), strict=True))
        return
    ends = [[*accumulate(group.vertices[0])] for group in groups]
    most = max(share for group in groups for share in group.vertices[0])
    bounds = sorted({0.0, 1.0, *(round(end, 9) for each in ends for end in each)})
    for low, high in pairwise(bounds):
        middle = (low + high) / 2
        places = [next((i for i, end in enumerate(each) if end > middle), len(each) - 1) for each in ends]
        ring = tuple(group.ranks[place] for group, place in zip(groups, places, strict=True))
        yield ring, (high - low) / most


def _gathered(held: Shares) -> SentParts:
    return [[share] * len(held) for share in held]


def _scattered(held: Shares) -> SentParts:
    return [list(held)] * len(held)


def _exchanged(before: Shares, after: Shares) -> SentParts:
    return [[a * b for b in after] for a in before]


def _overlaps(before: Shares, after: Shares) -> SentParts:
    """Of what each rank holds of a dim by one vector, the part that each other holds by another."""
    old, new = ([0.0, *accumulate(shares)] for shares in (before, after))
    return [
        [
            max(0.0, min(old[i + 1], new[j + 1]) - max(old[i], new[j])) if i != j else 0.0
            for j in range(len(after))
        ]
        for i in range(len(before))
    ]


CutUnits = tuple[int, int]
"""(vertex, units): how a dim is cut."""


@dataclass(slots=True)
class MovePrices:
    """Prices of exchanges in all groups at once; of those that differ in bytes alone one is worked out.

    Whole units make pieces longer than ratio vectors have them: bytes count as often as the longest piece is.
    """

    cost: ClusterCost
    groups: Sequence[SearchGroup]
    whole: WholeShares
    _known: dict[object, LinkPrice] = field(default_factory=dict)

    @classmethod
    def of(cls, cost: ClusterCost, groups: Sequence[SearchGroup]) -> MovePrices:
        """groups: of several ranks each."""
        vertices, samples = [one.vertices for one in groups], [one.samples for one in groups]
        return cls(cost, groups, WholeShares(vertices, samples, ()))

    def gather(self, cut: CutUnits) -> LinkPrice:
        """Of the bytes of the whole value, in its cheapest form."""
        return self._price(CommKind.ALL_GATHER, _gathered, cut[0]).larger(self.whole.longer(cut))

    def scatter(self, cut: CutUnits) -> LinkPrice:
        """Of a sum."""
        return self._price(CommKind.REDUCE_SCATTER, _scattered, cut[0]).larger(self.whole.longer(cut))

    def exchange(self, before: CutUnits, after: CutUnits) -> LinkPrice:
        """From a cut of one dim to one of another."""
        price = self._price(CommKind.ALL_TO_ALL, _exchanged, before[0], after[0])
        return price.larger(self.whole.longer(before, after))

    def reslice(self, before: CutUnits, after: CutUnits) -> LinkPrice:
        """From a cut of a dim to another of the same."""
        price = self._price(CommKind.ALL_TO_ALL, _overlaps, before[0], after[0])
        return price.larger(self.whole.longer(before, after))

    def _price(self, kind: CommKind, parts_of: Callable[..., SentParts], *vertices: int) -> LinkPrice:
        key = (kind, parts_of, vertices)
        if key not in self._known:
            self._known[key] = self._found(kind, parts_of, vertices)
        return self._known[key]

    def _found(
        self, kind: CommKind, parts_of: Callable[..., SentParts], vertices: Sequence[int]
    ) -> LinkPrice:
        """vertices: places of the ratio vectors by which `parts_of` says what is sent."""
        parts = [
            _scaled(parts_of(*(group.vertices[one] for one in vertices)), group.part) for group in self.groups
        ]
        sent = [part for each in parts for i, row in enumerate(each) for j, part in enumerate(row) if i != j]
        most = max(sent, default=0.0)
        if not most:
            return NO_LINK
        shape = tuple(tuple(tuple(round(part / most, 9) for part in row) for row in each) for each in parts)
        calibration = self.cost.cluster.calibration
        measured = calibration is not None and calibration.collectives
        told = kind if measured or len({round(part / most, 9) for part in sent}) > 1 else None
        if (told, shape) not in self._known:
            self._known[told, shape] = _lines(lambda size: self._seconds(kind, shape, size), least=False)
        lines = self._known[told, shape].lines
        return LinkPrice(tuple((fixed, per_byte * most) for fixed, per_byte in lines))

    def _seconds(self, kind: CommKind, parts: Sequence[SentParts], size: int) -> float:
        """Of unequal pieces of one group in the cheapest form, as a program takes it."""
        if len(self.groups) == 1 and kind is not CommKind.ALL_TO_ALL:
            rows = parts[0]
            sent = rows[0] if kind is CommKind.REDUCE_SCATTER else [row[0] for row in rows]
            if len(set(sent)) > 1:
                pieces = [size * part for part in sent]
                return min(self.cost.unequal_forms_s(kind, self.groups[0].ranks, pieces).values())
        return self.cost.comm_s(
            [
                Traffic(kind, group.ranks, dict(_sent(group.ranks, each, size)))
                for group, each in zip(self.groups, parts, strict=True)
            ]
        )


def _scaled(parts: SentParts, by: float) -> SentParts:
    return [[by * part for part in row] for row in parts]


def _sent(ranks: Group, parts: SentParts, size: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Bytes by sender and receiver."""
    for sender, row in zip(ranks, parts, strict=True):
        for receiver, part in zip(ranks, row, strict=True):
            if sender != receiver and part:
                yield (sender, receiver), round(size * part)


def _reduce(cost: ClusterCost, rings: Sequence[tuple[Group, float]]) -> LinkPrice:
    """Of sums over several rings at once, each of a part of the bytes."""
    rings = [(group, part) for group, part in rings if len(group) > 1]
    if not rings:
        return NO_LINK
    traffic = [
        [Traffic(CommKind.ALL_REDUCE, group, {}, round(size * part)) for group, part in rings]
        for size in _HUGE
    ]
    alone = _lines(
        lambda size: max(cost.all_reduce_s(group, round(size * part)) for group, part in rings), least=True
    )
    low, high = map(cost.comm_s, traffic)
    per_byte = (high - low) / (_HUGE[1] - _HUGE[0])
    if per_byte <= min(slope for _, slope in alone.lines) * (1 + ALIKE):
        return alone
    return replace(alone, shared=(max(0.0, low - per_byte * _HUGE[0]), per_byte))


def _even_gather(cost: ClusterCost, everyone: tuple[int, ...]) -> LinkPrice:
    if len(everyone) == 1:
        return NO_LINK
    return _lines(lambda size: cost.ring_pass_s(everyone, size / len(everyone)), least=False)


def _lines(seconds: Callable[[int], float], *, least: bool) -> LinkPrice:
    """The straight lines that the price follows for few bytes and for many."""
    found = []
    for size in (SMALL_BYTES, LARGE_BYTES):
        low, high = seconds(size), seconds(2 * size)
        per_byte = max(0.0, (high - low) / size)
        line = (max(0.0, low - per_byte * size), per_byte)
        if line not in found:
            found.append(line)
    return LinkPrice(tuple(found), least)
