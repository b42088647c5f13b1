"""What kind of work an operator is, and how much of it one call does: flops, and bytes read and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import prod
from typing import Any

from ..errors import HspmdError
from ..ir.graph import Ref, Row
from ..program.interpret import RowCall
from ..program.kernels.visible_blocks import visible_blocks
from ..program.program import ALIASES, GETITEM, Value

Typed = tuple[tuple[int, ...], Any, tuple[int, ...]]
"""Shape, element type (an ElementType, or torch's), strides."""


class OperatorClass(StrEnum):
    """Operators of one class cost alike by flop and by byte; a calibration has a fit for each."""

    MATMUL = "matmul"  # products and convolutions
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORM = "norm"
    COPY = "copy"  # copies, joins, fills
    INDEX = "index"  # lookups by numbers
    OTHER = "other"
    VIEW = "view"  # another look at the same memory: no work for the device


@dataclass(frozen=True, slots=True)
class Work:
    """One call. dtype: of its arithmetic, by torch's name. workspace_bytes: held inside it for a moment.

    name: of the operator, without namespace and overload.
    """

    of: OperatorClass
    dtype: str
    flops: float
    bytes: float
    workspace_bytes: float = 0.0
    name: str = ""


CLASSES: Mapping[OperatorClass, tuple[str, ...]] = {
    OperatorClass.MATMUL: (
        *("mm", "bmm", "addmm", "mv", "dot", "vdot", "baddbmm", "matmul", "linear", "grouped_mm"),
        *("expert_mm", "expert_grad"),
        *("grouped_mm_backward", "convolution", "convolution_backward", "convolution_input_gradient"),
        *("convolution_weight_gradient", "_cdist_forward", "_cdist_backward"),
    ),
    OperatorClass.ATTENTION: (
        *("piece_attention", "piece_attention_backward"),
        *("attention", "attention_backward", "packed_attention", "packed_attention_backward"),
        *("_scaled_dot_product_flash_attention_for_cpu",),
        *("_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_efficient_attention"),
    ),
    OperatorClass.NORM: (
        *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "group_norm"),
        *("native_group_norm_backward", "group_norm_backward", "native_batch_norm", "_fused_rms_norm"),
        *("_fused_rms_norm_backward", "native_batch_norm_backward", "_native_batch_norm_legit_functional"),
        *("channel_sum", "channel_squares", "channel_normalise", "channel_gradient_sums"),
        *("channel_moving_average", "channel_input_gradient"),
    ),
    OperatorClass.REDUCTION: (
        *("sum", "mean", "amax", "amin", "max", "min", "prod", "var", "std", "var_mean", "logsumexp", "any"),
        *("all", "argmax", "argmin", "cumsum", "cumprod", "linalg_vector_norm", "_softmax", "_log_softmax"),
        *("_softmax_backward_data", "_log_softmax_backward_data", "row_max", "exp_sum", "valid_count"),
        *("log_softmax_finish", "log_softmax_backward", "nll_rowsum", "expert_counts"),
    ),
    OperatorClass.COPY: (
        *("_to_copy", "clone", "cat", "stack", "constant_pad_nd", "slice_backward", "select_backward"),
        *("copy", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "empty_like", "repeat"),
        *("new_zeros", "new_ones", "new_full", "arange", "scalar_tensor", "flip", "roll", "zero_unless"),
        *("tril", "triu", "take", "factor_take", "place", "view_as_complex", "unless_empty", "expand_copy"),
        *("rows_slice_backward", "rows_select_backward", "host_counts"),
    ),
    OperatorClass.INDEX: (
        *("embedding", "embedding_dense_backward", "index", "index_select", "index_put", "gather", "scatter"),
        *("scatter_add", "index_add", "vocab_embedding", "vocab_embedding_backward", "checked_index"),
        *("expert_order", "own_rows", "rows_back", "rows_placed"),
        *(
            "nll_loss_forward",
            "nll_loss_backward",
            "nll_pick",
            "nll_backward",
            "sort",
            "topk",
            "masked_select",
        ),
    ),
}
"""Operators by their names without namespace and overload; the rest is found by what they give."""

_CLASS = {name: kind for kind, names in CLASSES.items() for name in names}
SOFTMAX_FLOPS, ATTENTION_PRODUCTS = 8.0, {"forward": 2, "backward": 5}
ATTENTION_GRADIENTS = (5 * 2) / (2 * 2)
"""How many times as many flops as forward: five products for two."""
PIECES = frozenset({"piece_attention", "piece_attention_backward"})
TWICE_ITS_RESULT = frozenset({"exp_sum", "log_softmax_backward", "log_softmax_finish"})
"""Kernels of several steps, which hold a value of the size of their first operand on the way."""


def short_name(op: str) -> str:
    """`mm` of `aten.mm.default`."""
    return op.split(".")[1] if "." in op else op


@cache
def class_of(op: str) -> OperatorClass:
    """The class of an operator; elementwise where the table has no other."""
    if op in ALIASES or op == GETITEM:
        return OperatorClass.VIEW
    return _CLASS.get(short_name(op), OperatorClass.ELEMENTWISE)


def work_of(call: RowCall, operands: Sequence[Typed], results: Sequence[Typed | None], is_view: bool) -> Work:
    """What one call does. is_view: all its results lie in the memory of its operands."""
    made = [item for item in results if item is not None]
    name = short_name(call.row.op)
    if is_view or not made:
        return Work(OperatorClass.VIEW, _dtype(made or operands), 0.0, 0.0, 0.0, name)
    kind = class_of(call.row.op)
    moved = sum(map(dense_bytes, (*operands, *made)))
    if kind is OperatorClass.INDEX and operands:  # of a table only the rows that are looked up
        moved = min(moved, 2 * sum(map(dense_bytes, made)) + sum(map(dense_bytes, operands[1:])))
    room = float(dense_bytes(operands[0])) if name in TWICE_ITS_RESULT else 0.0
    dtype = _dtype(operands if kind in HEAVY else (*made, *operands))
    return Work(kind, dtype, _flops(kind, name, call, operands, made), moved, room, name)


HEAVY = frozenset({OperatorClass.MATMUL, OperatorClass.ATTENTION})


def dense_bytes(typed: Typed) -> int:
    """Bytes of the elements that a tensor really has: one that is expanded has few."""
    shape, dtype, stride = typed
    return prod([size for size, step in zip(shape, stride, strict=True) if step]) * int(dtype.itemsize)


def _dtype(typed: Sequence[Typed]) -> str:
    """The widest type with fractions among the first; else the first type."""
    names = [str(item[1]).removeprefix("torch.") for item in typed]
    real = [name for name in names if "float" in name or "complex" in name]
    return (real or names or ["float32"])[0]


def _flops(
    kind: OperatorClass, name: str, call: RowCall, operands: Sequence[Typed], made: Sequence[Typed]
) -> float:
    if name in PIECES:
        return _piece_flops(name, call, operands)
    if kind is OperatorClass.ATTENTION:
        return _attention_flops(name, call, operands)
    own = OWN_FLOPS.get(name)
    if own is not None and call.row.op.startswith("hspmd."):
        return own(call, operands, made)
    if kind is OperatorClass.COPY or kind is OperatorClass.INDEX:
        return 0.0
    by_rule = _flops_by_rule(call, operands, made)
    if by_rule is not None:
        return by_rule
    return float(max((prod(shape) for shape, _, _ in (*operands, *made)), default=0))


def _attention_flops(name: str, call: RowCall, operands: Sequence[Typed]) -> float:
    """Products of [queries, width] and [keys, width], half of them where it is causal."""
    backward = "backward" in name
    query, key = operands[1:3] if backward else operands[:2]
    batch, heads, queries, width = query[0]
    products = ATTENTION_PRODUCTS["backward" if backward else "forward"]
    causal = True in [item for item in call.args if isinstance(item, bool)]
    scores = batch * heads * queries * key[0][2] * (0.5 if causal else 1.0)
    return scores * (2 * products * width + SOFTMAX_FLOPS)


def _piece_flops(name: str, call: RowCall, operands: Sequence[Typed]) -> float:
    """Scores of a piece's queries with the keys of another that they see, were the row one document."""
    backward = "backward" in name
    (samples, heads, _, width), *_ = operands[1 if backward else 0]
    numbers: tuple[Any, ...] = call.args[7 if backward else 5 :]
    q_runs, k_runs, _, causal, window = numbers[:5]
    products = ATTENTION_PRODUCTS["backward" if backward else "forward"]
    blocks = visible_blocks(q_runs, k_runs, None, causal, window)
    return float(samples * heads * sum(block.pairs for block in blocks)) * (
        2 * products * width + SOFTMAX_FLOPS
    )


def _convolution(call: RowCall, operands: Sequence[Typed], made: Sequence[Typed]) -> float:
    """Each element of the result, or of the image where it is transposed, meets a window of (out, in ...)."""
    outside = operands[0] if call.args[7] else made[0]
    return 2.0 * prod(outside[0]) * prod(operands[1][0][1:])


def _input_gradient(call: RowCall, operands: Sequence[Typed], made: Sequence[Typed]) -> float:
    outside = made[0] if call.args[6] else operands[0]
    return 2.0 * prod(outside[0]) * prod(operands[1][0][1:])


def _weight_gradient(call: RowCall, operands: Sequence[Typed], made: Sequence[Typed]) -> float:
    outside = operands[1] if call.args[6] else operands[0]
    return 2.0 * prod(outside[0]) * prod(made[0][0][1:])


def _expert_flops(held: Sequence[Any], rows: Typed, inner: Typed) -> float:
    """Rows of the experts that a rank has, (intervals, of how many), taken to be as many for each."""
    share = sum(high - low for low, high in held[0]) / held[1] if held else 1.0
    return 2.0 * prod(rows[0]) * inner[0][-1] * share


OWN_FLOPS: Mapping[str, Callable[[RowCall, Sequence[Typed], Sequence[Typed]], float]] = {
    "convolution": _convolution,
    "convolution_input_gradient": _input_gradient,
    "convolution_weight_gradient": _weight_gradient,
    "expert_mm": lambda call, operands, made: _expert_flops(call.args[3:], made[0], operands[0]),
    "expert_grad": lambda call, operands, made: _expert_flops(call.args[4:], operands[0], operands[1]),
    "grouped_mm": lambda call, operands, made: 2.0 * prod(made[0][0]) * operands[0][0][-1],
    "grouped_mm_backward": lambda call, operands, made: 4.0 * prod(operands[0][0]) * operands[1][0][-1],
}
"""Kernels of ours that are products; their letters stand in the rule of the operator that they are of."""


def _flops_by_rule(call: RowCall, operands: Sequence[Typed], made: Sequence[Typed]) -> float | None:
    """What the operator's rule says of a call with these local shapes; None where none fits."""
    from ..rules.call_rule import bind, tensors
    from ..rules.op_rule import OP_RULES
    from ..rules.rule_book import RULES

    if call.row.op not in OP_RULES or not RULES:
        return None
    numbers = {value: number for number, value in enumerate(call.reads)}
    args = tuple(_with_refs(item, numbers) for item in call.args)
    kwargs = {name: _with_refs(item, numbers) for name, item in call.kwargs.items()}
    first = made[0]
    row = Row(len(numbers), call.row.op, args, kwargs, first[0], first[1])
    if len(made) > 1:
        row.outs = tuple((shape, dtype) for shape, dtype, _ in made)
    try:
        given = [None if ref is None else operands[ref.id][0] for ref in tensors(row)]
        return bind(row, given).flops()
    except (HspmdError, IndexError, KeyError, TypeError, ValueError):
        return None


def _with_refs(argument: object, numbers: Mapping[int, int]) -> object:
    if isinstance(argument, Value):
        return Ref(numbers[argument.id])
    return [_with_refs(item, numbers) for item in argument] if isinstance(argument, tuple) else argument


def is_heavy(kind: OperatorClass) -> bool:
    """Whether its time follows its flops."""
    return kind in HEAVY
