"""From inferred dims to candidate groups: which atom is where in which parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from ...ir.graph import LogicalGraph
from .dim_flow import DimFlow
from .term_store import Facts, Form, TermStore


@dataclass(frozen=True, slots=True)
class AtomPlace:
    """Where an atom stands in a parameter dim: at `offset`, in steps of `stride` rows.

    loops: (count, stride) of the factors around it, outermost first. before: the atom that is the
    next outer factor, if there is one.
    """

    param: str
    dim: int
    offset: int
    stride: int
    loops: tuple[tuple[int, int], ...]
    before: int | None

    def starts(self) -> list[int]:
        """The first row of every copy."""
        steps = [[stride * i for i in range(count)] for count, stride in self.loops]
        return [self.offset + sum(shift) for shift in product(*steps)]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An atom that may be split, with all its places. repeat: the atom inside it, size 1 if none.

    Where `inner` follows the atom, both together are counted as units; elsewhere one element of the
    atom stands for `repeat` units.
    """

    atom: int
    size: int
    inner: int | None
    repeat: int
    facts: Facts
    places: tuple[AtomPlace, ...]
    inner_places: tuple[AtomPlace, ...]


def find_places(graph: LogicalGraph, flow: DimFlow) -> dict[int, list[AtomPlace]]:
    """The places of every atom in every parameter, in the order of parameters, dims and rows."""
    found: dict[int, list[AtomPlace]] = {}
    for info in graph.params.values():
        for dim, term in enumerate(flow.dims.get(info.row, ())):
            if not info.is_buffer:
                for atom, place in _walk(flow.terms, term, AtomPlace(info.name, dim, 0, 1, (), None)):
                    found.setdefault(atom, []).append(place)
    return found


def _walk(terms: TermStore, term: int, at: AtomPlace) -> Iterator[tuple[int, AtomPlace]]:
    """Places inside a term whose elements are `at.stride` rows long."""
    root, form = terms.find(term), terms.form(term)
    if form is Form.ATOM:
        yield root, at
    elif form is Form.CONCAT:
        offset = at.offset
        for part in terms.segments(root):
            yield from _walk(terms, part, AtomPlace(at.param, at.dim, offset, at.stride, at.loops, at.before))
            offset += terms.sizes[part] * at.stride
    elif form is Form.PRODUCT:
        loops, before = at.loops, at.before
        factors = terms.factors(root)
        for position, part in enumerate(factors):
            stride = at.stride * prod(terms.sizes[inner] for inner in factors[position + 1 :])
            yield from _walk(terms, part, AtomPlace(at.param, at.dim, at.offset, stride, loops, before))
            loops = (*loops, (terms.sizes[part], stride))
            before = part if terms.form(part) is Form.ATOM else None


def find_candidates(graph: LogicalGraph, flow: DimFlow) -> list[Candidate]:
    """Every atom that may be split and is worth it, with the atom that belongs inside it."""
    places = find_places(graph, flow)
    useful = {atom: flow.terms.facts(atom) for atom in places if is_useful(flow.terms.facts(atom))}
    inner_of = {}
    for atom, facts in useful.items():
        outer = {place.before for place in places[atom]}
        if facts.repeat and len(outer) == 1 and (only := outer.pop()) in useful:
            inner_of[only] = atom
    return [
        _candidate(flow.terms, places, atom, inner_of.get(atom))
        for atom in useful
        if atom not in inner_of.values()
    ]


def is_useful(facts: Facts) -> bool:
    """Given by one parameter product and summed over by another, or split by a pattern."""
    return not facts.whole and bool(facts.vocab or (facts.made and facts.used))


def whole_dims(graph: LogicalGraph, flow: DimFlow) -> dict[tuple[str, int], str]:
    """Why parameter dims stay whole, by parameter and dim; without those that a group could split."""
    reasons: dict[tuple[str, int], str] = {}
    splittable = set()
    for atom, places in find_places(graph, flow).items():
        facts = flow.terms.facts(atom)
        for place in places:
            if is_useful(facts):
                splittable.add((place.param, place.dim))
            reasons.setdefault((place.param, place.dim), facts.whole or "no two parameter products share it")
    return {key: reason for key, reason in reasons.items() if key not in splittable}


def _candidate(
    terms: TermStore, places: dict[int, list[AtomPlace]], atom: int, inner: int | None
) -> Candidate:
    return Candidate(
        atom=atom,
        size=terms.sizes[atom],
        inner=inner,
        repeat=1 if inner is None else terms.sizes[inner],
        facts=terms.facts(atom),
        places=tuple(places[atom]),
        inner_places=() if inner is None else tuple(places[inner]),
    )
