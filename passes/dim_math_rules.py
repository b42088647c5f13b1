"""Operators that compute: what they say about dims."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..graph.ir import Ref, Row, refs_of
from .dim_flow import DimFlow, Dims, Found, Rule
from .dim_layout_rules import argument, dim_argument, dims_argument, same


def pointwise(flow: DimFlow, row: Row) -> Found:
    """Operands of equal dims, broadcast."""
    operands = [flow.dims[ref.id] for ref in refs_of((row.args, row.kwargs)) if ref.id in flow.dims]
    return flow.broadcast(operands, row.shape or ())


def whole(flow: DimFlow, row: Row) -> Found:
    """An operator without a rule: nothing it reads may be split."""
    for ref in refs_of((row.args, row.kwargs)):
        for dims in (flow.dims.get(ref.id, ()), *flow.outs.get(ref.id, ())):
            flow.mark_whole(dims, f"{row.op} has no rule that keeps it split")
    return None


def constant(_flow: DimFlow, _row: Row) -> Found:
    """A new tensor that only asks for the shape of its operand."""
    return None


def _product(flow: DimFlow, row: Row, left: object, right: object) -> Dims:
    """Matrix product of the last two dims; the dims before them are the same in both.

    Of two activations it is taken for attention, written out: only its outer dims may be split.
    """
    *batch, m, k = flow.of(left)
    *right_batch, right_k, n = flow.of(right)
    summed = flow.terms.unify(k, right_k)
    shared = flow.unify_all([tuple(batch), tuple(right_batch)])
    weights = flow.is_weight(left), flow.is_weight(right)
    if all(weights):
        flow.mark_whole((summed, m, n), "two parameters are multiplied")
    elif any(weights):
        flow.terms.mark_made(m if weights[0] else n, row.id)
        flow.terms.mark_used(summed, row.id)
    else:
        flow.mark_whole((summed, m, n), "attention computes with whole heads")
        for term in shared:
            flow.terms.mark_heads(term)
    return (*shared, m, n)


def mm(flow: DimFlow, row: Row) -> Found:
    """A matrix product."""
    return _product(flow, row, row.args[0], row.args[1])


def addmm(flow: DimFlow, row: Row) -> Found:
    """A matrix product and an addend that is broadcast."""
    product = _product(flow, row, row.args[1], row.args[2])
    return flow.broadcast([flow.of(row.args[0]), product], row.shape or ())


def embedding(flow: DimFlow, row: Row) -> Found:
    """A lookup: the table is whole, or split by rows where the batch itself is looked up."""
    rows, _ = flow.of(row.args[0])
    if flow.row(row.args[1]).id in flow.ids:
        flow.terms.mark_vocab(rows)
        flow.terms.mark_made(rows, row.id)
    else:
        flow.terms.mark_whole(rows, "its rows are looked up by computed positions")
    return None


def index(flow: DimFlow, row: Row) -> Found:
    """Elements picked by tensors along some dims."""
    dims, tensors = flow.of(row.args[0]), argument(row, 1)
    if any(flow.row(ref).dtype is torch.bool for ref in refs_of(tensors)):
        return whole(flow, row)
    places = [place for place, item in enumerate(tensors) if isinstance(item, Ref)]
    picked = [dims[place] for place in places]
    flow.mark_whole(picked, "elements of it are picked by an index")
    kept = [term for place, term in enumerate(dims) if place not in places]
    adjacent = places == list(range(places[0], places[-1] + 1))
    start = places[0] if adjacent else 0
    count = len(row.shape or ()) - len(kept)
    new = flow.free((row.shape or ())[start : start + count])
    return (*kept[:start], *new, *kept[start:])


def index_select(flow: DimFlow, row: Row) -> Found:
    """Elements picked by a tensor along one dim."""
    dims = list(flow.of(row.args[0]))
    dim = dim_argument(row, 1, len(dims))
    flow.terms.mark_whole(dims[dim], "elements of it are picked by an index")
    dims[dim] = flow.terms.free((row.shape or ())[dim])
    return tuple(dims)


def reduce(flow: DimFlow, row: Row) -> Found:
    """`sum`, `mean`, ... over some dims."""
    dims, shape = flow.of(row.args[0]), row.shape or ()
    reduced = dims_argument(row, 1, len(dims))
    flow.mark_whole([dims[dim] for dim in reduced], f"{row.op} is over it")
    if len(shape) == len(dims):
        return tuple(flow.terms.free(1) if dim in reduced else term for dim, term in enumerate(dims))
    return tuple(term for dim, term in enumerate(dims) if dim not in reduced)


def layer_norm(flow: DimFlow, row: Row) -> Found:
    """The last dims are normalised; the statistics keep the others."""
    return _normalised(flow, row, (argument(row, 2), argument(row, 3)))


def rms_norm(flow: DimFlow, row: Row) -> Found:
    """Like a layer norm, without mean and bias."""
    return _normalised(flow, row, (argument(row, 2),))


def _normalised(flow: DimFlow, row: Row, weights: Sequence[object]) -> list[Dims]:
    dims = flow.of(row.args[0])
    start = len(dims) - len(argument(row, 1))
    last = flow.unify_all([dims[start:], *(flow.of(weight) for weight in weights if isinstance(weight, Ref))])
    flow.mark_whole(last, f"{row.op} is over it")
    statistics = (*dims[:start], *flow.free((1,) * len(last)))
    return [(*dims[:start], *last), *(statistics for _ in (row.outs or ())[1:])]


def attention(flow: DimFlow, row: Row) -> Found:
    """Scaled dot product attention; with fewer key heads than query heads, they are repeated."""
    *q_outer, q_heads, q_seq, q_width = flow.of(row.args[0])
    *k_outer, k_heads, _, k_width = flow.of(row.args[1])
    *v_outer, v_heads, _, v_width = flow.of(row.args[2])
    heads = q_heads
    for other in (k_heads, v_heads):
        copies = flow.terms.sizes[q_heads] // flow.terms.sizes[other]
        heads = flow.terms.unify(heads, flow.terms.product((other, flow.terms.free(copies))))
    outer = flow.unify_all([tuple(q_outer), tuple(k_outer), tuple(v_outer)])
    flow.terms.unify(q_width, k_width)
    flow.mark_whole((q_width, k_width, v_width), "attention computes with whole heads")
    scores = (*outer, heads, q_seq)
    _attention_bias(flow, row, scores)
    flow.terms.mark_heads(heads)
    return _attention_outputs(flow, row, scores, v_width)


def _attention_bias(flow: DimFlow, row: Row, scores: Dims) -> None:
    bias = row.kwargs.get("attn_mask", argument(row, 3))
    if isinstance(bias, Ref) and bias.id in flow.dims:
        dims = flow.dims[bias.id]
        flow.terms.mark_whole(dims[-1], "a softmax is over it")
        sizes = [flow.terms.sizes[term] for term in scores]
        flow.broadcast([dims[:-1], scores], sizes)


def _attention_outputs(flow: DimFlow, row: Row, scores: Dims, width: int) -> list[Dims]:
    found = [(*scores, width)]
    for out in (row.outs or ())[1:]:
        shape = out[0] if out else ()
        is_statistic = len(shape) == len(scores) and shape == tuple(flow.terms.sizes[term] for term in scores)
        found.append(scores if is_statistic else flow.free(shape))
    return found


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


def dropout(flow: DimFlow, row: Row) -> Found:
    """The operand masked, and the mask."""
    dims = flow.of(row.args[0])
    return [dims for _ in row.outs or ()]


def _named(rule: Rule, ops: Sequence[str]) -> dict[str, Rule]:
    return {f"aten.{op}": rule for op in ops}


_CONSTANTS = (
    *("zeros_like.default", "ones_like.default", "full_like.default", "empty_like.default"),
    *("rand_like.default", "randn_like.default"),
    *("new_zeros.default", "new_ones.default", "new_full.default", "new_empty.default"),
)
_REDUCTIONS = (*("sum.dim_IntList", "sum.default", "mean.dim", "mean.default", "std.correction"),)
_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu.default",
    "_scaled_dot_product_flash_attention.default",
    "_scaled_dot_product_efficient_attention.default",
    "_scaled_dot_product_cudnn_attention.default",
)

MATH_RULES: dict[str, Rule] = {
    **_named(constant, _CONSTANTS),
    **_named(reduce, _REDUCTIONS),
    **_named(attention, _ATTENTION),
    **_named(mm, ("mm.default", "bmm.default")),
    **_named(addmm, ("addmm.default", "baddbmm.default")),
    **_named(same, ("fill.Scalar", "bernoulli.default")),
    "aten.embedding.default": embedding,
    "aten.index.Tensor": index,
    "aten._unsafe_index.Tensor": index,
    "aten.index_select.default": index_select,
    "aten.native_layer_norm.default": layer_norm,
    "aten._fused_rms_norm.default": rms_norm,
    "aten._log_softmax.default": log_softmax,
    "aten.nll_loss_forward.default": nll_loss,
    "aten.native_dropout.default": dropout,
}
