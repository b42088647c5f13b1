"""What operators are made of where PyTorch has no answer, or none that splits, in PyTorch's own functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from string import ascii_lowercase
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from ...ir.graph import Ref, Row
from ...ir.own_operators import checked
from ...rules.call_rule import argument_of
from .matrices import WRITTEN_OUT
from .strided_views import as_strided
from .written_out import written_out_by_torch

aten = torch.ops.aten
WRITES_BY_INDEX = (
    aten.index_add.default,
    aten.index_copy.default,
    aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor,
)


class LossReduction(IntEnum):
    """How PyTorch numbers what becomes of a loss per sample."""

    NONE = 0
    MEAN = 1
    SUM = 2


def trilinear(
    first: Tensor,
    second: Tensor,
    third: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Operands with dims put in at `expand`, multiplied and summed over `sumdim`: two matrix products."""
    letters = ascii_lowercase[: first.dim() + len(expand1)]
    spelled = [
        "".join(letter for place, letter in enumerate(letters) if place not in put_in)
        for put_in in (expand1, expand2, expand3, sumdim)
    ]
    made: Tensor = torch.einsum(f"{','.join(spelled[:3])}->{spelled[3]}", first, second, third)
    return made


def weight_norm_backward(
    grad: Tensor, direction: Tensor, length: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients of w = length * direction / norms, where norms are over all dims but `dim`."""
    others = [place for place in range(direction.dim()) if place != dim % direction.dim()]
    along = (grad * direction).sum(others, keepdim=True) / norms
    return (grad - direction * (along / norms)) * (length / norms), along


def masked_put(base: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
    """One number where a mask of the first dims is true."""
    (mask,) = indices
    while mask.dim() < base.dim():
        mask = mask.unsqueeze(-1)
    return torch.where(mask, base + values if accumulate else values, base)


def multilabel_margin(scores: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """PyTorch 2.13 counts places behind the first -1 as class 0 when it traces; in eager it does not."""
    rows, listed = (item.reshape(-1, item.shape[-1]) for item in (scores, target))
    places = torch.arange(rows.shape[1], device=scores.device)
    ends = torch.where(listed == -1, places, rows.shape[1]).amin(-1, keepdim=True)
    counts = places < ends
    chosen = rows.gather(1, torch.where(counts, listed, 0))
    is_target = (places == torch.where(counts, listed, -1).unsqueeze(-1)).any(1)
    margins = (1 - chosen.unsqueeze(-1) + rows.unsqueeze(1)).clamp_min(0) / rows.shape[1]
    loss = torch.where(counts.unsqueeze(-1) & ~is_target.unsqueeze(1), margins, 0).sum((1, 2))
    match LossReduction(reduction):
        case LossReduction.NONE:
            loss = loss.reshape(scores.shape[:-1])
        case LossReduction.MEAN:
            loss = loss.mean()
        case LossReduction.SUM:
            loss = loss.sum()
    return loss, is_target.to(scores.dtype).reshape(target.shape)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> object:
    """Fewer key and value heads than query heads are repeated, and heads of two widths padded to one: kernels
    differ in whether they take such."""
    heads = query.shape[-3] if query.dim() > 2 else 0
    if enable_gqa and all(x.dim() > 2 and heads % x.shape[-3] == 0 for x in (key, value)):
        key, value, enable_gqa = _repeated(key, heads), _repeated(value, heads), False
    own, kept = query.shape[-1], value.shape[-1]
    if pads := own != kept and query.dim() == 4 and not dropout_p:
        scale = own**-0.5 if scale is None else scale
        query, key, value = (_padded(x, max(own, kept)) for x in (query, key, value))
    given = (query, key, value, attn_mask, dropout_p, is_causal)
    op = aten.scaled_dot_product_attention.default
    made = written_out_by_torch(op, *given, scale=scale, enable_gqa=enable_gqa)
    return made[..., :kept] if pads else made  # type: ignore[index]


def _padded(x: Tensor, width: int) -> Tensor:
    """With zeros behind, which add nothing to products of queries and keys."""
    missing = width - x.shape[-1]
    return torch.constant_pad_nd(x, [0, missing]) if missing else x


def _repeated(x: Tensor, heads: int) -> Tensor:
    *outer, own, length, width = x.shape
    if own == heads:
        return x
    return (
        x.unsqueeze(-3).expand(*outer, own, heads // own, length, width).reshape(*outer, heads, length, width)
    )


def stack(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """PyTorch joins along the dim behind and cuts it again, where samples may lie."""
    return torch.cat([part.unsqueeze(dim) for part in parts], dim)


def conjugate(number: Tensor) -> Tensor:
    """PyTorch only marks the memory, and other ranks get the memory without the mark."""
    return torch.conj_physical(number)


def one_hot(index: Tensor, num_classes: int = -1) -> Tensor:
    """Traced, PyTorch compares with all classes: an index that is none of them would make a row of zeros."""
    if num_classes < 0:
        num_classes = int(index.max()) + 1  # refused as any number read from a tensor is
    classes = torch.arange(num_classes, device=index.device)
    return (checked(index, num_classes).unsqueeze(-1) == classes).to(torch.int64)  # type: ignore[no-any-return]


def index_select(value: Tensor, dim: int, index: Tensor) -> object:
    """Indexing, which would count negative indexes from the end."""
    if not value.dim():
        return value.clone()
    place = dim % value.dim()
    return aten.index.Tensor(value, [*[None] * place, checked(index.view(-1), value.shape[place])])


def _index_written(op: torch._ops.OpOverload) -> Callable[..., object]:
    """What PyTorch makes of an operator that writes where an index says, negative indexes refused."""

    def made(value: Tensor, dim: int, index: Tensor, *rest: Any, **more: Any) -> object:
        size = value.shape[dim] if value.dim() else 1
        return decomposition_table[op](value, dim, checked(index, size), *rest, **more)

    return made


OWN: Mapping[torch._ops.OpOverload, Callable[..., object]] = {
    aten._conj.default: conjugate,
    aten._neg_view.default: torch.neg,
    aten.stack.default: stack,
    aten._trilinear.default: trilinear,
    aten.multilabel_margin_loss_forward.default: multilabel_margin,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten.index_select.default: index_select,
    **{op: _index_written(op) for op in WRITES_BY_INDEX},
}
TRACED_WRONGLY: Mapping[torch._ops.OpOverload, Callable[..., object]] = {
    aten.one_hot.default: one_hot,
    aten.multilabel_margin_loss_forward.default: multilabel_margin,
    aten.scaled_dot_product_attention.default: attention,
    aten.as_strided.default: as_strided,
    **WRITTEN_OUT,
}
"""Operators that PyTorch writes out while it traces in a way that differs from eager, or has no rule."""
MASKED_PUTS: Mapping[torch._ops.OpOverload, Callable[..., object]] = {
    aten.index_put.default: masked_put,
    aten._unsafe_index_put.default: masked_put,
}


def has_class_weights(row: Row) -> bool:
    """Whether a row is cross-entropy with weights of classes: the rule of the operator counts targets."""
    losses = ("aten.nll_loss_forward.default", "aten.nll_loss_backward.default")
    return row.op in losses and argument_of(row, "weight") is not None


def is_masked_put(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a row puts one number where a mask says."""
    if row.op not in map(str, MASKED_PUTS):
        return False
    indices, values = row.args[1], row.args[2]
    if not isinstance(indices, (tuple, list)) or len(indices) != 1 or not isinstance(indices[0], Ref):
        return False
    one = isinstance(values, Ref) and all(size == 1 for size in rows[values.id].shape or ())
    return one and rows[indices[0].id].dtype is torch.bool
