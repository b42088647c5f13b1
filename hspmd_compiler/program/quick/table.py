"""The operators that have a rule, by name, and what a call of one makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...base.dtypes import ELEMENT_TYPES
from ..arguments import map_leaves
from ..interpret import RowCall
from ..program import ALIASES, GETITEM, DType, Value
from . import computed, own, views
from .plain import Outline, PlainTyped

T = TypeVar("T")
Rule = Callable[..., Any]
"""The result of an operator, a Outline or a tuple of them; None: PyTorch answers."""


@dataclass(frozen=True, slots=True)
class MadeTensor(Generic[T]):
    """A result. shared: number of the operand whose memory it is in, -1 for none. memory: of its new one."""

    typed: T
    shared: int
    memory: int
    size: int


@dataclass(frozen=True, slots=True)
class TypeAnswer(Generic[T]):
    """What an operator makes of operands of one type. single: a tensor, not a tuple of tensors."""

    made: tuple[MadeTensor[T] | None, ...]
    single: bool


ARITHMETIC = (
    "add.Tensor",
    "add.Scalar",
    "sub.Tensor",
    "sub.Scalar",
    "mul.Tensor",
    "mul.Scalar",
    "neg.default",
)
REAL = (
    *("div.Tensor", "div.Scalar", "pow.Tensor_Scalar", "exp.default", "log.default", "sqrt.default"),
    *("rsqrt.default", "cos.default", "sin.default", "tanh.default", "sigmoid.default", "silu.default"),
    *("reciprocal.default", "relu.default", "erf.default", "silu_backward.default", "abs.default"),
    "tanh_backward.default",
)
TRUTH = tuple(
    f"{name}.{kind}" for name in ("ge", "gt", "le", "lt", "eq", "ne") for kind in ("Scalar", "Tensor")
)
BITS = ("bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_not.default")

COMPUTED: Mapping[str, Rule] = {
    **{f"aten.{name}": computed.arithmetic for name in ARITHMETIC},
    **{f"aten.{name}": computed.real for name in REAL},
    **{f"aten.{name}": computed.truth for name in TRUTH},
    **{f"aten.{name}": computed.bits for name in BITS},
    "aten.where.self": computed.where,
    "aten.masked_fill.Scalar": computed.masked_fill,
    "aten.zeros_like.default": computed.like,
    "aten.ones_like.default": computed.like,
    "aten.clone.default": computed.clone,
    "aten._to_copy.default": views.converted,
    "aten.mm.default": computed.product,
    "aten.bmm.default": computed.product,
    "aten.addmm.default": computed.add_product,
    "aten.sum.dim_IntList": computed.reduced,
    "aten.sum.default": computed.reduced,
    "aten.mean.dim": computed.reduced,
    "aten.amax.default": computed.reduced,
    "aten.cat.default": computed.cat,
    "aten.native_layer_norm.default": computed.layer_norm,
    "aten.native_layer_norm_backward.default": computed.layer_norm_backward,
    "aten._softmax.default": computed.softmax,
    "aten._log_softmax.default": computed.softmax,
    "aten._log_softmax_backward_data.default": computed.softmax_backward,
    "aten.embedding.default": computed.embedding,
    "aten.embedding_dense_backward.default": computed.embedding_backward,
    "aten.slice_backward.default": computed.slice_backward,
    "aten.constant_pad_nd.default": computed.pad,
    "aten.arange.default": computed.arange,
    "aten.gather.default": computed.gather,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": computed.flash_attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": computed.flash_attention_backward,
}
INSIDE: Mapping[str, Rule] = {**COMPUTED, "aten.empty_like.default": computed.like}
"""What kernels call: also what a program may not."""
VIEWS: Mapping[str, Rule] = {
    "aten.reshape.default": views.reshaped,
    "aten.view.default": views.view,
    "aten._unsafe_view.default": views.view,
    "aten.t.default": views.turned,
    "aten.transpose.int": views.transposed,
    "aten.permute.default": views.permuted,
    "aten.unsqueeze.default": views.unsqueezed,
    "aten.expand.default": views.expanded,
    "aten.slice.Tensor": views.sliced,
    "aten.select.int": views.selected,
    **dict.fromkeys(ALIASES, views.same),
}
OWN: Mapping[str, Rule] = {
    "hspmd.attention": own.attention,
    "hspmd.attention_backward": own.attention_backward,
    "hspmd.checked_index": own.checked_index,
    "hspmd.zero_unless": own.zero_unless,
    "hspmd.full": own.full,
    "hspmd.take": own.take,
    "hspmd.factor_take": own.factor_take,
    "hspmd.place": own.place,
    "hspmd.vocab_embedding": own.vocab_embedding,
    "hspmd.vocab_embedding_backward": own.vocab_embedding_backward,
    "hspmd.row_max": own.row_max,
    "hspmd.exp_sum": own.exp_sum,
    "hspmd.log_softmax_finish": own.log_softmax_finish,
    "hspmd.log_softmax_backward": own.log_softmax_backward,
    "hspmd.valid_count": own.valid_count,
    "hspmd.nll_pick": own.nll_pick,
    "hspmd.nll_backward": own.nll_backward,
    "hspmd.nll_rowsum": own.nll_rowsum,
}
RULES: Mapping[str, Rule] = {**COMPUTED, **VIEWS, **OWN, GETITEM: views.item_of}
"""Each is an operator that a program may call."""


def quick_answer(
    call: RowCall, operands: Mapping[int, tuple[tuple[PlainTyped | None, ...], bool]]
) -> TypeAnswer[PlainTyped] | None:
    """What a call makes of operands of these types; None where there is no rule for it.

    operands: by value, its tensors, and whether it is one tensor and no tuple of them.
    """
    rule = RULES.get(call.row.op)
    if rule is None:
        return None
    values: dict[int, Any] = {}
    count = 0
    for value, (parts, single) in operands.items():
        tensors = []
        for part in parts:
            tensors.append(None if part is None else Outline(*part, count))
            count += part is not None
        values[value] = tensors[0] if single else tuple(tensors)
    args, kwargs = map_leaves((call.args, call.kwargs), lambda leaf: _plain(leaf, values))
    try:
        return _answer(rule(*args, **kwargs))
    except (TypeError, ValueError, IndexError, AttributeError, KeyError, ZeroDivisionError):
        return None  # whatever a file says of a call, PyTorch answers with its error


def _plain(leaf: object, values: Mapping[int, Any]) -> object:
    if isinstance(leaf, Value):
        return values[leaf.id]
    return ELEMENT_TYPES[leaf.name] if isinstance(leaf, DType) else leaf


def _answer(result: Any) -> TypeAnswer[PlainTyped] | None:
    parts = (result,) if isinstance(result, Outline) else result
    if parts is None:
        return None
    made = tuple(
        None if part is None else MadeTensor(part.typed, part.memory, number, part.size_bytes)
        for number, part in enumerate(parts)
    )
    return TypeAnswer(made, isinstance(result, Outline))
