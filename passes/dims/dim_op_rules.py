"""What a rule's value says about dims: one term per letter, joined over all operands."""

from __future__ import annotations

from itertools import accumulate

from ...ir.graph import Ref, Row
from ...rules.call_rule import CallRule, call_of, tensors
from ...rules.op_rule import Dims, Letters
from .dim_flow import DimFlow, Found

ATTENTION = "attention computes with whole heads"


def by_value(flow: DimFlow, row: Row) -> Found:
    """Dims of the results, from the rule's letters."""
    call = call_of(flow.rows, row, flow.signatures, flow.calls)
    refs = [ref for ref in tensors(row) if ref is not None][: len(call.operands)]
    terms = _terms(flow, call, refs)
    for name in call.left_whole:
        if name in terms:
            flow.terms.mark_whole(terms[name], call.rule.why or f"{row.op} is over it")
    if call.contracts:
        _product(flow, row, call, refs, terms)
    for name in call.rule.heads:
        if name in terms:
            flow.terms.mark_heads(terms[name])
    found = [() if dims is None else _result(flow, call, dims, terms) for dims in call.results]
    return found[0] if row.outs is None else found


def _terms(flow: DimFlow, call: CallRule, refs: list[Ref]) -> dict[str, int]:
    """A term per letter, also of those side by side in a dim; a broadcast dim says nothing."""
    terms: dict[str, int] = {}
    known, lengths = flow.terms.sizes, call.sizes
    for dims, ref in zip(call.operands, refs, strict=True):
        for names, term in zip(dims, flow.of(ref), strict=True):
            parts = (term,) if len(names) == 1 else _parts(flow, call, names, term)
            for name, part in zip(names, parts, strict=True):
                if known[part] == lengths[name]:
                    terms[name] = flow.terms.unify(terms[name], part) if name in terms else part
    for name in call.joins:
        if name not in terms:
            continue
        ends = [0, *accumulate(call.parts(name))]
        for piece, low, high in zip(name.split("|"), ends, ends[1:], strict=False):
            terms[piece] = flow.terms.cut(terms[name], low, high)
    return terms


def _parts(flow: DimFlow, call: CallRule, names: Letters, term: int) -> tuple[int, ...]:
    sizes = tuple(call.sizes[name] for name in names)
    found = flow.terms.regroup((term,), sizes)
    if found is None:
        flow.terms.mark_whole(term, call.rule.why or "a rule reads it across its parts")
        return flow.free(sizes)
    return found


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


def _result(flow: DimFlow, call: CallRule, dims: Dims, terms: dict[str, int]) -> tuple[int, ...]:
    for name in [name for names in dims for name in names if "|" in name]:
        pieces = zip(name.split("|"), call.parts(name), strict=True)
        terms[name] = flow.terms.concat([terms.get(piece, flow.terms.free(size)) for piece, size in pieces])
    found = []
    for names in dims:
        parts = [terms[name] if name in terms else flow.terms.free(call.sizes[name]) for name in names]
        found.append(flow.terms.product(parts) if len(parts) != 1 else parts[0])
    return tuple(found)
