"""What a rule of letters says about dims: the same letter is the same dim; sums and whole ones stay whole."""

from __future__ import annotations

from ..graph.ir import Row, refs_of
from ..graph.letters import LETTERS
from .dim_flow import DimFlow, Dims, Found


def letters(flow: DimFlow, row: Row) -> Found:
    """Dims of the results of an operator with a rule of letters."""
    made = LETTERS[row.op]
    operands = [flow.of(ref) for ref in refs_of(row.args)]
    terms: dict[str, int] = {}
    for dims, names in zip(operands, made.named([len(dims) for dims in operands]), strict=True):
        for name, term in zip(names, dims, strict=True):
            known = terms.get(name)
            same = known is not None and flow.terms.sizes[known] == flow.terms.sizes[term]
            terms[name] = flow.terms.unify(known, term) if known is not None and same else term
    flow.mark_whole(
        [terms[name] for name in (made.summed | made.whole) if name in terms],
        f"the rule of {row.op} sums over it or needs it whole",
    )
    shapes = [row.shape or ()] if row.outs is None else [meta[0] if meta else () for meta in row.outs]
    found = [
        _result(flow, names, shape, terms)
        for names, shape in zip(made.outputs([len(shape) for shape in shapes]), shapes, strict=True)
    ]
    return found[0] if row.outs is None else found


def _result(flow: DimFlow, names: tuple[str, ...], shape: tuple[int, ...], terms: dict[str, int]) -> Dims:
    return tuple(
        terms[name] if name in terms and flow.terms.sizes[terms[name]] == size else flow.terms.free(size)
        for name, size in zip(names, shape, strict=True)
    )
