"""What a rule's value says about dims: one term per letter, joined over all operands."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from ...ir.graph import Ref, Row
from ...rules.call_rule import CallRule
from ...rules.op_rule import Dims, Letters
from .dim_flow import DimFlow, Found

ATTENTION = "attention computes with whole heads"


def by_value(flow: DimFlow, row: Row) -> Found:
    """Dims of the results, from the rule's letters."""
    call = flow.calls.of(row)
    refs = call.refs(row)
    terms = letter_terms(flow, call, refs)
    for name in call.left_whole:
        if name in terms:
            flow.terms.mark_whole(terms[name], call.rule.why or f"{row.op} is over it")
    if call.contracts:
        _product(flow, row, call, refs, terms)
    for name in call.rule.heads:
        if name in terms:
            flow.terms.mark_heads(terms[name])
    found = [() if dims is None else result_dims(flow, call, dims, terms) for dims in call.results]
    return found[0] if row.outs is None else found


def letter_terms(flow: DimFlow, call: CallRule, refs: list[Ref]) -> dict[str, int]:
    """A term per letter, also of those side by side in a dim; a broadcast dim says nothing."""
    terms: dict[str, int] = {}
    known, lengths, unify = flow.terms.sizes, call.sizes, flow.terms.unify
    for dims, ref in zip(call.operands, refs, strict=True):
        found = flow.dims.get(ref.id, ())  # without an entry all are FREE
        for names, term in zip(dims, found, strict=False):
            for name, part in ((names[0], term),) if len(names) == 1 else _parts(flow, call, names, term):
                if known[part] == lengths[name]:
                    terms[name] = unify(terms[name], part) if name in terms else part
    for name in call.joins:
        if name not in terms:
            continue
        ends = [0, *accumulate(call.parts(name))]
        for piece, low, high in zip(name.split("|"), ends, ends[1:], strict=False):
            terms[piece] = flow.terms.cut(terms[name], low, high)
    return terms


def _parts(flow: DimFlow, call: CallRule, names: Letters, term: int) -> Iterable[tuple[str, int]]:
    sizes = tuple(call.sizes[name] for name in names)
    found = flow.terms.regroup((term,), sizes)
    if found is None:
        flow.terms.mark_whole(term, call.rule.why or "a rule reads it across its parts")
        found = flow.free(sizes)
    return zip(names, found, strict=True)


def _product(flow: DimFlow, row: Row, call: CallRule, refs: list[Ref], terms: dict[str, int]) -> None:
    """Letters of a product of parameters and activations; of two activations it is attention, written out."""
    places = [place for place in range(len(refs)) if place != call.rule.added]
    weights = [flow.is_weight(refs[place]) for place in places]
    names = [{name for dim in call.operands[place] for name in dim} for place in places]
    made = (names[0] ^ names[1]) - call.whole
    if any(weights) and not all(weights):
        for name in made & names[weights.index(True)]:
            flow.terms.mark_made(terms[name], row.id)
        for name in call.summed:
            flow.terms.mark_used(terms[name], row.id)
        return
    reason = "two parameters are multiplied" if all(weights) else ATTENTION
    flow.mark_whole([terms[name] for name in (*call.summed, *made) if name in terms], reason)
    for name in () if all(weights) else (names[0] & names[1]) - call.summed:
        flow.terms.mark_heads(terms[name])


def result_dims(flow: DimFlow, call: CallRule, dims: Dims, terms: dict[str, int]) -> tuple[int, ...]:
    """The dims of one result, from the terms of letters; those that have none are FREE."""
    for name in call.joins:
        if any(name in names for names in dims):
            pieces = zip(name.split("|"), call.parts(name), strict=True)
            terms[name] = flow.terms.concat([terms.get(part, flow.terms.free(size)) for part, size in pieces])
    found = []
    for names in dims:
        parts = [terms[name] if name in terms else flow.terms.free(call.sizes[name]) for name in names]
        found.append(flow.terms.product(parts) if len(parts) != 1 else parts[0])
    return tuple(found)
