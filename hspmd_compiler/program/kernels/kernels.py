"""The table of local operators that a rank program may call, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from ...errors import ArtifactError
from ..operator_names import is_listed, torch_operator
from . import (
    attention_kernels,
    batch_norm_kernels,
    convolution_kernels,
    expert_rows,
    image_kernels,
    index_check,
    layout_kernels,
    packed_kernels,
    piece_attention,
    random_kernels,
    vocab_kernels,
)
from .counter_numbers import whole_numbers
from .counter_random import whole_mask
from .expert_product import expert_grad, expert_mm, whole_expert_grad
from .grouped_product import grouped_mm, grouped_mm_backward

Kernel = Callable[..., Any]


def unless_empty(
    op: str,
    shapes: Sequence[tuple[int, ...] | None],
    dtypes: Sequence[torch.dtype | None],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """`op(*args, **kwargs)`; where a tensor among its arguments is empty, zeros of these shapes instead.

    PyTorch's kernels refuse some empty tensors, and a sum over nothing is zero.
    """
    tensors = [
        item
        for argument in args
        for item in (argument if isinstance(argument, (tuple, list)) else (argument,))
    ]
    given = [item for item in tensors if isinstance(item, torch.Tensor)]
    if all(item.numel() for item in given):
        return kernel(op)(*args, **kwargs)
    zeros = tuple(
        None if shape is None else given[0].new_zeros(tuple(shape), dtype=dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    )
    return zeros[0] if len(zeros) == 1 else zeros


OWN_KERNELS: dict[str, Kernel] = {
    "hspmd.unless_empty": unless_empty,
    "hspmd.checked_index": index_check.checked_index,
    "hspmd.checked_index.default": index_check.checked_index,
    "hspmd.take": layout_kernels.take,
    "hspmd.factor_take": layout_kernels.factor_take,
    "hspmd.place": layout_kernels.place,
    "hspmd.zero_unless": layout_kernels.zero_unless,
    "hspmd.view_as_complex": layout_kernels.as_complex,
    "hspmd.full": layout_kernels.full,
    "hspmd.token_positions": layout_kernels.token_positions,
    "hspmd.random_mask": random_kernels.mask_piece,
    "hspmd.random_mask.default": whole_mask,
    "hspmd.random_numbers": random_kernels.numbers_piece,
    "hspmd.random_numbers.default": whole_numbers,
    "hspmd.grouped_mm.default": grouped_mm,
    "hspmd.grouped_mm_backward.default": grouped_mm_backward,
    "hspmd.expert_mm": expert_mm,
    "hspmd.expert_mm.default": expert_mm,
    "hspmd.expert_grad": expert_grad,
    "hspmd.expert_grad.default": whole_expert_grad,
    "hspmd.expert_order": expert_rows.expert_order,
    "hspmd.expert_counts": expert_rows.expert_counts,
    "hspmd.host_counts": expert_rows.host_counts,
    "hspmd.own_rows": expert_rows.own_rows,
    "hspmd.rows_back": expert_rows.rows_back,
    "hspmd.rows_placed": expert_rows.rows_placed,
    "hspmd.rows_slice_backward": expert_rows.rows_slice_backward,
    "hspmd.rows_select_backward": expert_rows.rows_select_backward,
    "hspmd.vocab_embedding": vocab_kernels.vocab_embedding,
    "hspmd.vocab_embedding_backward": vocab_kernels.vocab_embedding_backward,
    "hspmd.row_max": vocab_kernels.row_max,
    "hspmd.exp_sum": vocab_kernels.exp_sum,
    "hspmd.log_softmax_finish": vocab_kernels.log_softmax_finish,
    "hspmd.log_softmax_backward": vocab_kernels.log_softmax_backward,
    "hspmd.valid_count": vocab_kernels.valid_count,
    "hspmd.nll_pick": vocab_kernels.nll_pick,
    "hspmd.nll_backward": vocab_kernels.nll_backward,
    "hspmd.nll_rowsum": vocab_kernels.nll_rowsum,
    "hspmd.attention": attention_kernels.attention,
    "hspmd.attention_backward": attention_kernels.attention_backward,
    "hspmd.document_starts": packed_kernels.document_starts,
    "hspmd.packed_attention": packed_kernels.packed_attention,
    "hspmd.packed_attention.default": packed_kernels.whole_attention,
    "hspmd.packed_attention_backward": packed_kernels.packed_attention_backward,
    "hspmd.packed_attention_backward.default": packed_kernels.whole_attention_backward,
    "hspmd.piece_attention": piece_attention.piece_attention,
    "hspmd.piece_attention_backward": piece_attention.piece_attention_backward,
    "hspmd.channel_sum": batch_norm_kernels.channel_sum,
    "hspmd.channel_squares": batch_norm_kernels.channel_squares,
    "hspmd.channel_normalise": batch_norm_kernels.channel_normalise,
    "hspmd.channel_moving_average": batch_norm_kernels.channel_moving_average,
    "hspmd.channel_gradient_sums": batch_norm_kernels.channel_gradient_sums,
    "hspmd.channel_input_gradient": batch_norm_kernels.channel_input_gradient,
    "hspmd.group_norm": image_kernels.group_norm,
    "hspmd.group_norm_backward": image_kernels.group_norm_backward,
    **image_kernels.POOLINGS,
    "hspmd.convolution": convolution_kernels.convolution,
    "hspmd.convolution_input_gradient": convolution_kernels.convolution_input_gradient,
    "hspmd.convolution_weight_gradient": convolution_kernels.convolution_weight_gradient,
}

_DRAWING = ("hspmd.random_mask", "hspmd.random_numbers")
FROM_NOTHING = frozenset(
    {"hspmd.full", "hspmd.token_positions", *_DRAWING, *(f"{name}.default" for name in _DRAWING)}
)
"""Kernels of ours that must be told the device; a key of random numbers is always on the CPU."""

QUICK_BINDINGS: dict[str, Kernel] = {
    "aten.mm.default": torch.mm,
    "aten.bmm.default": torch.bmm,
    "aten.addmm.default": torch.addmm,
    "aten.add.Tensor": torch.add,
    "aten.sub.Tensor": torch.sub,
    "aten.mul.Tensor": torch.mul,
    "aten.div.Tensor": torch.div,
    "aten.neg.default": torch.neg,
    "aten.pow.Tensor_Scalar": torch.pow,
    "aten.rsqrt.default": torch.rsqrt,
    "aten.tanh.default": torch.tanh,
    "aten.t.default": torch.t,
    "aten.transpose.int": torch.transpose,
    "aten.unsqueeze.default": torch.unsqueeze,
    "aten.cat.default": torch.cat,
    "aten.view.default": torch.Tensor.view,
    "aten._unsafe_view.default": torch.Tensor.view,
    "aten.expand.default": torch.Tensor.expand,
}
"""Python bindings that dispatch to exactly this operator for every argument its schema allows."""


@cache
def kernel(name: str) -> Kernel:
    """The callable behind a row's operator name; an ArtifactError for anything else."""
    if name in OWN_KERNELS:
        return OWN_KERNELS[name]
    return aten_operator(name)


@cache
def fast_kernel(name: str) -> Kernel:
    """`kernel(name)`, or PyTorch's own binding of the same operator where that is quicker to call."""
    return QUICK_BINDINGS.get(name) or kernel(name)


@cache
def aten_operator(name: str) -> torch._ops.OpOverload:
    """A functional aten operator of the list, by `aten.<name>.<overload>`."""
    if not is_listed(name):
        raise _refusal(name, "it is not in the table of operators")
    found = torch_operator(name)
    if found is None:
        raise _refusal(name, f"PyTorch {torch.__version__} has no such operator")
    if found._schema.is_mutable:
        raise _refusal(name, "it changes its argument in place")
    return found


@cache
def makes_tensor_from_nothing(name: str) -> bool:
    """Whether the operator must be told the device: it takes one, and no tensor to copy it from."""
    if name in OWN_KERNELS:
        return name in FROM_NOTHING
    arguments = aten_operator(name)._schema.arguments
    takes_tensor = any("Tensor" in str(argument.type) for argument in arguments)
    return not takes_tensor and any(argument.name == "device" for argument in arguments)


def _refusal(name: str, reason: str) -> ArtifactError:
    return ArtifactError(
        f"operator {name!r} is refused: {reason}",
        rule="a rank program calls functional aten operators, hspmd kernels, getitem and comm only",
        fix="compile the artifact again with this version",
    )
