"""The ways in which the ranks of a stage compute a forward row, read from its rule's letters.

A way holds for a value and its gradient: what a letter cuts is cut, with its gradient; an operand that lacks
the letter is whole, and its gradient a pending sum; a result that lacks it is a pending sum, if the letter is
summed, and its gradient whole. Nothing is asked of values without a gradient: each rank slices what it uses.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from ...ir.graph import Meta, Row
from ...rules.call_rule import CallRule, has_fractions
from ...rules.in_code.lookup_rules import EMBEDDING
from ...rules.op_rule import OP_RULES, Dims, Linear, beside
from ...rules.unknown_operators import Treatment, treatment
from ..whole_shares import ANY, SAMPLES
from .codes import FIRST_CUT, PENDING, REPLICATE, WHOLE
from .cuts import CutBook, ValueCut, is_identity

NOTHING = -1
"""Of an operand without a gradient: any type."""


class Moved(NamedTuple):
    """Bytes of tensors that are cut and that are whole, of samples and of parameters alone."""

    cut: int = 0
    whole: int = 0
    params_cut: int = 0
    params_whole: int = 0

    def bytes(self, share: float, batch: float) -> float:
        """Of a rank with this share of what is cut, and of the samples."""
        return (self.cut * share + self.whole) * batch + self.params_cut * share + self.params_whole


class RowWay(NamedTuple):
    """needs: a code of each operand with a gradient; gives: of each result, with the first ratio vector.

    letter: what is cut. shared: whether ranks share the work. moved: bytes read and written. inside: bytes of
    what ranks reduce within the operator. units: that the ranks share out whole, see `whole_shares`. factors:
    bytes of the operand and of the result's gradient that are gathered if a whole weight's gradient is made
    of them; () where it can't be.
    """

    needs: tuple[int, ...]
    gives: tuple[int, ...]
    letter: str
    shared: bool
    moved: Moved
    inside: int = 0
    factors: tuple[int, ...] = ()
    units: int = ANY


@dataclass(frozen=True, slots=True)
class Tensor:
    """One operand or result of a call. dims: its letters. cuts: (dim, key), by code."""

    size_bytes: int
    dims: Dims
    shape: tuple[int, ...]
    cuts: tuple[tuple[int, int], ...]
    place: int
    """Among the operands that have a gradient, NOTHING for others."""
    fractions: bool
    static: bool = False
    free: bool = False
    """Whether each rank slices what it uses."""


@dataclass(slots=True)
class WayBook:
    """Ways of rows; rows that are alike, and cut alike, share them.

    unruled: rows that no rule splits.
    """

    book: CutBook
    values: dict[int, tuple[ValueCut, ...]] = field(default_factory=dict)
    unruled: list[int] = field(default_factory=list)
    _known: dict[Hashable, tuple[RowWay, ...]] = field(default_factory=dict)

    def cuts(self, row: int) -> tuple[ValueCut, ...]:
        """The cuts of a value, in the order of its codes."""
        found = self.values.get(row)
        if found is None:
            found = self.values[row] = self.book.cuts(self.book.graph.rows[row])
        return found

    def ways(self, row: Row, active: Sequence[int], results: Sequence[int]) -> tuple[RowWay, ...]:
        """All ways of a row, whole first. active: its operands with a gradient. results: rows of its
        results, NOTHING for one that nothing reads."""
        if row.op not in OP_RULES and (treatment(row) is Treatment.POINTWISE or is_identity(row.op)):
            made = tuple(_Pointwise(self, row, active).ways())
            return self._known.setdefault(made, made)
        if row.op not in OP_RULES:
            self.unruled.append(row.id)
            moved = Moved(whole=self.bytes(row))
            made = (RowWay((REPLICATE,) * len(active), (REPLICATE,) * len(results), "", False, moved),)
            return self._known.setdefault(made, made)
        key = self._key(row, active, results)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(_Letters(self, row, active, results).ways())
        return found

    def bytes(self, row: Row) -> int:
        """Of all that a row reads and writes."""
        rows = self.book.graph.rows
        read = [rows[i] for i in dict.fromkeys(self.book.facts.operands[row.id])]
        return sum(value_bytes(one) for one in (*read, row))

    def _key(self, row: Row, active: Sequence[int], results: Sequence[int]) -> Hashable:
        """What ways depend on: the call, which operands have a gradient, and the atoms of all, renumbered."""
        number: dict[int, int] = {}
        cuts = [
            [(cut.dim, number.setdefault(cut.key, len(number))) for cut in self.cuts(value)]
            for value in (*active, *results)
            if value != NOTHING
        ]
        atoms = self.book.atoms
        letters = [
            [(number.get(key, NOTHING), units) for key, units, *_ in atoms(term)]
            for term in self.book.letters[row.id].values()
        ]
        given = self.book.facts.operands[row.id]
        places = tuple(active.index(i) if i in active else NOTHING for i in given)
        dead = tuple(result == NOTHING for result in results)
        return (
            self.book.alike[row.id],
            places,
            dead,
            tuple(map(tuple, cuts)),
            tuple(map(tuple, letters)),
            tuple(sorted(place for key, place in number.items() if key in self.book.samples)),
        )


class _Letters:
    """The ways of one call of an operator with a rule."""

    def __init__(self, ways: WayBook, row: Row, active: Sequence[int], results: Sequence[int]) -> None:
        rows = ways.book.graph.rows
        self.row, self.active, self.results = row, active, results
        self.call: CallRule = ways.book.facts.calls.of(row)
        self.terms, self.book = ways.book.letters[row.id], ways.book
        refs = self.call.refs(row)
        self.operands = [
            _tensor(ways, rows[ref.id], None, dims, active.index(ref.id) if ref.id in active else NOTHING)
            for ref, dims in zip(refs, self.call.operands, strict=True)
        ]
        self.outs = [
            _tensor(ways, row, place if row.outs is not None else None, dims or (), NOTHING)
            for place, dims in enumerate(self.call.results)
        ]
        self.moved = self._moved(frozenset())

    def _moved(self, cut: frozenset[int]) -> Moved:
        """cut: places of tensors, operands before results, that are cut."""
        found = [0, 0, 0, 0]
        for place, one in enumerate((*self.operands, *self.outs)):
            found[2 * one.static + (place not in cut)] += one.size_bytes
        return Moved(*found)

    def ways(self) -> Iterator[RowWay]:
        """Whole, then each letter at each of its atoms, then sums that pass."""
        yield self._way(REPLICATE, REPLICATE, "")
        if self._passes_gradients():
            yield self._way(WHOLE, WHOLE, "")
        seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        for letter, size in self.call.sizes.items():
            if size > 1 and letter not in self.call.whole and letter not in self.call.inside:
                for key, units, *_ in self.book.atoms(self.terms[letter]):
                    way = self._cut(letter, key, units)
                    if way is not None and (way.needs, way.gives) not in seen:
                        seen.add((way.needs, way.gives))
                        yield way
        yield from self._pending()

    def _passes_gradients(self) -> bool:
        """Whether a pending gradient of the result is one of the operand: nothing else is read backward."""
        rule, others = self.call.rule, len({one.place for one in self.operands} - {NOTHING})
        if self.row.op == EMBEDDING:
            return others == 1  # rows of its gradient are added, as rows of a pending sum are
        if rule.linear in (Linear.ONE, Linear.TOGETHER) or (rule.linear is Linear.BATCH and not rule.flops):
            return others > 0
        return rule.linear is Linear.EACH and others == 1 and not self.call.summed

    def _way(self, need: int, give: int, letter: str) -> RowWay:
        needs = (need,) * len(self.active)
        return RowWay(needs, (give,) * len(self.outs), letter, False, self.moved)

    def _cut(self, letter: str, key: int, units: int) -> RowWay | None:
        call = self.call
        names = {letter, *(beside(letter) if "|" in letter else ())}
        names |= {name for name in call.joins if names & set(beside(name))}
        needs, cut = [NOTHING] * len(self.active), set()
        for place, one in enumerate(self.operands):
            code = self._code(one, names, key)
            if code is None:
                return None
            if code == NOTHING:
                code = REPLICATE if place == call.rule.added and letter in call.summed else WHOLE
            else:
                cut.add(place)
            if one.place == NOTHING:
                continue
            if code == WHOLE and not one.fractions:
                code = REPLICATE  # without a gradient both are the same
            if needs[one.place] not in (NOTHING, code):
                return None
            needs[one.place] = code
        gives = self._gives(letter, names, key)
        if gives is None:
            return None
        cut |= {place for place, code in enumerate(gives, len(self.operands)) if code >= FIRST_CUT}
        inside = self._inside(letter) if letter in call.pattern else 0
        moved = self._moved(frozenset(cut))
        units = SAMPLES if key in self.book.samples else units
        return RowWay(tuple(needs), gives, letter, True, moved, inside, self._factors(needs), units)

    def _gives(self, letter: str, names: set[str], key: int) -> tuple[int, ...] | None:
        call = self.call
        lacking = PENDING if letter in call.summed else REPLICATE if letter in call.pattern else NOTHING
        gives = []
        for one in self.outs:
            code = self._code(one, names, key)
            if code is None or (code == NOTHING and (lacking == NOTHING or self._is_count(one, lacking))):
                return None
            gives.append(lacking if code == NOTHING else code)
        return tuple(gives)

    def _is_count(self, one: Tensor, code: int) -> bool:
        """Whether a result can't be a pending sum."""
        return code == PENDING and not one.fractions

    def _inside(self, letter: str) -> int:
        """Bytes of what is left of the smallest result without the letter."""
        sizes = [
            one.size_bytes // (self.call.sizes[letter] if any(letter in dim for dim in one.dims) else 1)
            for one in self.outs
        ]
        return min(sizes, default=0)

    def _code(self, one: Tensor, names: set[str], key: int) -> int | None:
        """Of a tensor that is cut at an atom of these letters, NOTHING if it lacks them; None: impossible."""
        dims = [place for place, dim in enumerate(one.dims) if names.intersection(dim)]
        if not dims or all(one.shape[dim] == 1 for dim in dims):
            return NOTHING
        if len(dims) > 1:
            return None
        wanted = (dims[0], key)
        if wanted in one.cuts:
            return FIRST_CUT + one.cuts.index(wanted)
        return FIRST_CUT if one.free else None

    def _factors(self, needs: Sequence[int]) -> tuple[int, ...]:
        """Bytes of the two factors of a whole weight's gradient, () where it has none."""
        if not self.call.contracts or len(self.operands) < 2 or WHOLE not in needs:
            return ()
        places = self.call.factors[0]
        kinds = [
            needs[self.operands[p].place] if self.operands[p].place != NOTHING else NOTHING for p in places
        ]
        if sorted(code >= FIRST_CUT for code in kinds) != [False, True]:
            return ()
        other = self.operands[places[0 if kinds[0] >= FIRST_CUT else 1]]
        return other.size_bytes, self.outs[0].size_bytes

    def _pending(self) -> Iterator[RowWay]:
        """Sums that pass: as `alternatives` has them."""
        call = self.call
        linear, may, added = call.rule.linear, call.rule.carries, call.rule.added
        if not call.floats or linear not in (Linear.ONE, Linear.EACH, Linear.TOGETHER):
            return
        places = [i for i in range(len(self.operands)) if i != added and (may is None or i in may)]
        groups = [places] if linear is Linear.TOGETHER else [[place] for place in places]
        for group in groups:
            needs = [NOTHING] * len(self.active)
            if any(self.operands[place].place == NOTHING for place in group):
                continue
            for place, one in enumerate(self.operands):
                code = PENDING if place in group else REPLICATE if place == added else WHOLE
                if one.place != NOTHING and needs[one.place] in (NOTHING, code):
                    needs[one.place] = code
                elif one.place != NOTHING:
                    break
            else:
                gives = (PENDING,) * len(self.outs)
                yield RowWay(tuple(needs), gives, "+" + ",".join(map(str, group)), False, self.moved)


class _Pointwise:
    """The ways of an operator without letters that works element by element: at every cut of its result."""

    def __init__(self, ways: WayBook, row: Row, active: Sequence[int]) -> None:
        self.row, self.active, self.ways_of = row, active, ways
        self.bytes = ways.bytes(row)
        self.identity = is_identity(row.op)

    def ways(self) -> Iterator[RowWay]:
        """Whole, then each cut."""
        count = len(self.active)
        moved = Moved(whole=self.bytes)
        yield RowWay((REPLICATE,) * count, (REPLICATE,), "", False, moved)
        if self.identity:
            yield RowWay((WHOLE,) * count, (WHOLE,), "", False, moved)
            yield RowWay((PENDING,) * count, (PENDING,), "+0", False, moved)
        rows = self.ways_of.book.graph.rows
        rank = len(self.row.shape or ())
        for place, cut in enumerate(self.ways_of.cuts(self.row.id)):
            needs = []
            for value in self.active:
                shape = rows[value].shape or ()
                dim = cut.dim - rank + len(shape)
                if dim < 0 or shape[dim] == 1:
                    needs.append(WHOLE)
                    continue
                found = [(one.dim, one.key) for one in self.ways_of.cuts(value)]
                if (dim, cut.key) not in found:
                    break
                needs.append(FIRST_CUT + found.index((dim, cut.key)))
            else:
                units = SAMPLES if cut.key in self.ways_of.book.samples else cut.units
                moved, gives = Moved(self.bytes), (FIRST_CUT + place,)
                yield RowWay(tuple(needs), gives, f"dim {cut.dim}", True, moved, units=units)


def _tensor(ways: WayBook, row: Row, place: int | None, dims: Dims, at: int) -> Tensor:
    meta: Meta | None = (row.shape or (), row.dtype) if place is None else (row.outs or ())[place]  # type: ignore[assignment]
    if meta is None:
        return Tensor(0, (), (), (), at, fractions=False)
    cuts = ways.cuts(row.id) if place is None else ways.book.cuts(row, place)
    size = prod(meta[0]) * meta[1].itemsize
    keys = tuple((cut.dim, cut.key) for cut in cuts)
    static = ways.book.facts.kinds.static[row.id]
    free = ways.book.facts.kinds.pure[row.id]
    return Tensor(size, dims, meta[0], keys, at, has_fractions(meta[1]), static, free)


def value_bytes(row: Row) -> int:
    """Bytes of a row's value, or of all its results."""
    if row.outs is not None:
        return sum(prod(meta[0]) * meta[1].itemsize for meta in row.outs if meta is not None)
    return prod(row.shape or ()) * (row.dtype.itemsize if row.dtype is not None else 0)
