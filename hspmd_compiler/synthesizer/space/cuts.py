"""How values can be cut: every dim as a product of atoms that is the same wherever the dim goes.

An atom is a run of elements that no view takes apart: samples, tokens, heads, the width of a head. Cutting a
dim at an atom gives each rank some of the atom's units, in every place where it stands. Unlike `infer_dims`,
which asks what tensor parallelism may do with parameters, samples and tokens are atoms here like others,
and that an operator keeps a dim whole is a fact of its rows, not of the dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeAlias

from ...ir.graph import LogicalGraph, Phase, Row
from ...ir.own_names import is_marker
from ...passes.deduction.placement import GraphFacts
from ...passes.dims.dim_flow import DimFlow, Dims, Found
from ...passes.dims.dim_math_rules import getitem, pointwise
from ...passes.dims.dim_op_rules import letter_terms, result_dims
from ...passes.dims.term_store import Form
from ...rules.call_rule import CallRule
from ...rules.op_rule import OP_RULES
from ...rules.unknown_operators import Treatment, treatment

Spelled: TypeAlias = tuple[object, ...]
"""A term as atoms: ("atom", id), or ("beside", term, term ...)."""


@dataclass(frozen=True, slots=True)
class ValueCut:
    """A dim cut at an atom.

    key: of the atom, the same for all dims that it is in. units: how many the ranks share out. repeats: how
    often all units come one behind another in the dim. inner: elements of one unit in one place.
    """

    dim: int
    key: int
    units: int
    repeats: int
    inner: int

    @property
    def elements(self) -> bool:
        """Whether units are single elements of the dim."""
        return self.inner == 1 and self.repeats == 1


@dataclass
class CutBook:
    """The atoms of all forward values of a graph.

    letters: per row with a rule the terms of its letters. alike: a number per row, the same for the same
    call; anchors are alike whatever their names.
    """

    graph: LogicalGraph
    facts: GraphFacts
    flow: DimFlow
    alike: list[int]
    letters: dict[int, dict[str, int]] = field(default_factory=dict)
    _keys: dict[Spelled, int] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=list)
    _of_term: dict[int, tuple[tuple[int, int, int, int], ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: LogicalGraph, facts: GraphFacts) -> CutBook:
        """Walks the forward rows once."""
        book = cls(graph, facts, DimFlow(graph.rows, facts.calls), _alike(graph, facts))
        for row in graph.rows:
            if row.phase is Phase.FORWARD and row.op != "output":
                book._visit(row)
        return book

    def cuts(self, row: Row, place: int | None = None) -> tuple[ValueCut, ...]:
        """All cuts of a value, dim by dim, outermost atoms first. place: of a result among several."""
        dims = (
            self.flow.outs.get(row.id, [()])[place] if place is not None else self.flow.dims.get(row.id, ())
        )
        return tuple(ValueCut(dim, *one) for dim, term in enumerate(dims) for one in self.atoms(term))

    @cached_property
    def samples(self) -> frozenset[int]:
        """Keys of the atoms that samples are: of dim 0 of inputs."""
        rows = (self.graph.rows[info.row] for info in self.graph.inputs.values())
        return frozenset(cut.key for row in rows for cut in self.cuts(row) if cut.dim == 0)

    def atoms(self, term: int) -> tuple[tuple[int, int, int, int], ...]:
        """(key, units, repeats, inner) of every way to cut a term."""
        found = self._of_term.get(term)
        if found is None:
            made = list(self._atoms(term))
            keys = [key for key, *_ in made]
            found = self._of_term[term] = tuple(one for one in made if keys.count(one[0]) == 1)
        return found

    def _atoms(self, term: int) -> Iterator[tuple[int, int, int, int]]:
        terms = self.flow.terms
        factors = terms.factors(term)
        for place, factor in enumerate(factors):
            outer = prod([terms.sizes[part] for part in factors[:place]])
            inner = prod([terms.sizes[part] for part in factors[place + 1 :]])
            size = terms.sizes[factor]
            form = terms.form(factor)
            if form is Form.ATOM and not terms.facts(factor).whole:
                yield self._key(("atom", terms.find(factor))), size, outer, inner
            elif form is Form.CONCAT:
                yield self._key(self._spelled(factor)), size, outer, inner
                yield from self._shared(factor, outer, inner)

    def _shared(self, term: int, outer: int, inner: int) -> Iterator[tuple[int, int, int, int]]:
        """Atoms that every one of the parts side by side has, so that each rank has a piece of each."""
        parts = [self.atoms(part) for part in self.flow.terms.segments(term)]
        for key, units, repeats, size in parts[0] if parts else ():
            others = [next((one for one in part if one[0] == key), None) for part in parts[1:]]
            if all(other is not None for other in others):
                again = repeats + sum(other[2] for other in others if other is not None)
                yield key, units, outer * again, inner * size

    def _spelled(self, term: int) -> Spelled:
        terms = self.flow.terms
        form = terms.form(term)
        if form is Form.CONCAT:
            return ("beside", *(self._spelled(part) for part in terms.segments(term)))
        if form is Form.PRODUCT:
            return ("times", *(self._spelled(part) for part in terms.factors(term)))
        return (form.value, terms.find(term))

    def _key(self, spelled: Spelled) -> int:
        return self._keys.setdefault(spelled, len(self._keys))

    def _visit(self, row: Row) -> None:
        self.flow.terms.row = row.id
        if row.op == "placeholder":
            self._store(row, self._fresh(row.shape or ()))
        elif row.op == "getitem":
            self.flow.store(row, getitem(self.flow, row))
        elif row.op in OP_RULES:
            self._by_letters(row)
        elif treatment(row) is Treatment.POINTWISE or is_identity(row.op):
            self._store(row, self._named(pointwise(self.flow, row), row.shape or ()))
        else:
            shapes = [row.shape] if row.outs is None else [None if m is None else m[0] for m in row.outs]
            self._store(row, *(self._fresh(shape or ()) for shape in shapes))

    def _by_letters(self, row: Row) -> None:
        call = self.facts.calls.of(row)
        pure = self.facts.kinds.pure[row.id]
        terms = {} if pure and call.joins else letter_terms(self.flow, call, call.refs(row))
        for name, size in call.sizes.items():
            if name not in terms and "|" not in name:
                terms[name] = self.flow.terms.atom(size)
        self._parts_named(call, terms)
        found = [result_dims(self.flow, call, dims or (), terms) for dims in call.results]
        self.letters[row.id] = terms
        self._store(row, *found)

    def _parts_named(self, call: CallRule, terms: dict[str, int]) -> None:
        """What stands side by side has names too, wherever the whole has none."""
        for name in call.joins:
            if name not in terms:
                pieces = zip(name.split("|"), call.parts(name), strict=True)
                parts = [terms.get(part, self.flow.terms.free(size)) for part, size in pieces]
                terms[name] = self.flow.terms.concat(parts)

    def _store(self, row: Row, *found: Dims) -> None:
        if row.outs is not None:
            self.flow.outs[row.id] = list(found)
        else:
            self.flow.dims[row.id] = found[0]

    def _fresh(self, shape: Sequence[int]) -> Dims:
        return tuple(self.flow.terms.atom(size) for size in shape)

    def _named(self, dims: Found, shape: Sequence[int]) -> Dims:
        """FREE dims as atoms."""
        terms = self.flow.terms
        given = dims if isinstance(dims, tuple) and dims else self.flow.free(shape)
        return tuple(
            terms.atom(size) if terms.is_free(terms.find(term)) else term
            for term, size in zip(given, shape, strict=True)
        )


def _alike(graph: LogicalGraph, facts: GraphFacts) -> list[int]:
    numbers: dict[object, int] = {}
    found = list(facts.signatures)
    for row in graph.rows:
        if is_identity(row.op):
            key = (row.op, row.shape, row.dtype)
            found[row.id] = numbers.setdefault(key, len(graph.rows) + len(numbers))
    return found


def is_identity(op: str) -> bool:
    """Whether a row gives its first operand as it is: anchors and marks of layouts."""
    return is_marker(op)
