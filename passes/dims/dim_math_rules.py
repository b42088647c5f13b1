"""Operators whose dims no line of letters says: lookups of a batch, losses; and those without a rule."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Row, refs_of
from ...ir.own_names import EXPERT_MM
from .dim_flow import DimFlow, Found, Rule


def argument(row: Row, place: int, default: Any = None) -> Any:
    """A positional argument, or what the operator assumes without it."""
    return row.args[place] if len(row.args) > place else default


def dim_argument(row: Row, place: int, rank: int, default: int = 0) -> int:
    """A dim argument, counted from the front."""
    return int(argument(row, place, default)) % max(rank, 1)


def getitem(flow: DimFlow, row: Row) -> Found:
    """One output of an operator with several."""
    outs = flow.outs.get(flow.row(row.args[0]).id)
    return outs[int(argument(row, 1))] if outs else None


def pointwise(flow: DimFlow, row: Row) -> Found:
    """An operator without a rule that works element by element: operands of equal dims, broadcast."""
    operands = [flow.dims[ref.id] for ref in refs_of((row.args, row.kwargs)) if ref.id in flow.dims]
    return flow.broadcast(operands, row.shape or ())


def whole(flow: DimFlow, row: Row) -> Found:
    """An operator without a rule: nothing it reads may be split."""
    for ref in refs_of((row.args, row.kwargs)):
        for dims in (flow.dims.get(ref.id, ()), *flow.outs.get(ref.id, ())):
            flow.mark_whole(dims, f"{row.op} has no rule that keeps it split")
    return None


def embedding(flow: DimFlow, row: Row) -> Found:
    """A lookup: the table is whole, or split by rows where the batch itself is looked up."""
    rows, _ = flow.of(row.args[0])
    if flow.row(row.args[1]).id in flow.ids:
        flow.terms.mark_vocab(rows)
        flow.terms.mark_made(rows, row.id)
    else:
        flow.terms.mark_whole(rows, "its rows are looked up by computed positions")
    return None


def log_softmax(flow: DimFlow, row: Row) -> Found:
    """Splittable as a pattern if a negative log-likelihood is all that reads its result."""
    dims = flow.of(row.args[0])
    dim = dim_argument(row, 1, len(dims))
    if flow.terms.is_free(flow.terms.find(dims[dim])):
        return dims
    result = flow.terms.atom(flow.terms.sizes[dims[dim]])
    flow.classes[row.id] = (dims[dim], result)
    return (*dims[:dim], result, *dims[dim + 1 :])


def nll_loss(flow: DimFlow, row: Row) -> Found:
    """The loss of a log-softmax over dim 1."""
    source = flow.row(row.args[0])
    if source.id in flow.classes and len(source.shape or ()) == 2:
        flow.losses.add(source.id)
        return None
    return whole(flow, row)


def expert_product(flow: DimFlow, row: Row) -> Found:
    """Each row times its expert's matrix: a product inside of all matrices alike, experts a dim apart."""
    rows, (_, used, made) = flow.of(row.args[0]), flow.of(row.args[1])
    flow.terms.mark_made(made, row.id)
    flow.terms.mark_used(flow.terms.unify(rows[1], used), row.id)
    return rows[0], made


BY_HAND: dict[str, Rule] = {
    "getitem": getitem,
    "aten.embedding.default": embedding,
    "aten._log_softmax.default": log_softmax,
    EXPERT_MM: expert_product,
    "aten.nll_loss_forward.default": nll_loss,
}
