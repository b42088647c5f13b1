"""How a torch-level call is read as one of HAP's operators: which arguments are operands, which details.

Each reader has the parameters of the torch function that it reads, so that arguments bind as in the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class HapReading:
    """An operator's kind, its operands and details; None: the call is none of HAP's.

    uncounted: parameters of the call that HAP's operator doesn't have.
    """

    kind: str
    operands: tuple[Tensor, ...]
    details: tuple[int | str, ...] = ()
    uncounted: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Alias:
    """A call whose result HAP takes for its operand."""

    of: Tensor


Read = HapReading | Alias | None


def present(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in tensors if tensor is not None)


def read_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Read:
    return HapReading("linear", present(input, weight, bias))


def read_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Read:
    """Groups and dilation have no rule; rows and columns are multiples of the stride."""
    strides = (stride, stride) if isinstance(stride, int) else tuple(stride)
    dilated = dilation != 1 if isinstance(dilation, int) else any(one != 1 for one in dilation)
    if (
        groups != 1
        or dilated
        or any(size % step for size, step in zip(input.shape[2:], strides, strict=True))
    ):
        return None
    return HapReading("conv2d", present(input, weight, bias))


def unary(kind: str) -> Callable[..., Read]:
    """An operator of one tensor, whatever its other arguments."""

    def read(input: Tensor, *_: object, **__: object) -> Read:
        return HapReading(kind, (input,))

    return read


def read_add(input: object, other: object, *, alpha: float = 1) -> Read:
    """Of two tensors that have equally many dims."""
    if not isinstance(input, Tensor) or not isinstance(other, Tensor) or alpha != 1:
        return None
    return HapReading("add", (input, other)) if input.dim() == other.dim() and input is not other else None


def read_mul(input: object, other: object) -> Read:
    """By a number, or by a tensor of the same shape."""
    if isinstance(input, Tensor) and isinstance(other, Tensor):
        return HapReading("mul", (input, other)) if input.shape == other.shape else None
    tensors = [one for one in (input, other) if isinstance(one, Tensor)]
    return HapReading("scale", (tensors[0],))


def read_sum(input: Tensor, dim: object = None, *_: object, **__: object) -> Read:
    """Of all elements."""
    return HapReading("sum", (input,)) if dim is None else None


def read_transpose(input: Tensor, dim0: int, dim1: int) -> Read:
    return HapReading("transpose", (input,), (dim0 % input.dim(), dim1 % input.dim()))


def read_flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Read:
    """To the last dim."""
    if end_dim % input.dim() != input.dim() - 1:
        return None
    return HapReading("flatten", (input,), (start_dim % input.dim(),))


def read_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *_: object,
    **__: object,
) -> Read:
    """HAP's norm has no weight and no bias."""
    return HapReading("layer_norm", (input,), (len(normalized_shape),), present(weight, bias))


def read_log_softmax(input: Tensor, dim: int | None = None, *_: object, **__: object) -> Read:
    return None if dim is None else HapReading("log_softmax", (input,), (dim % input.dim(),))


def read_nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *_: object, **options: object
) -> Read:
    """A sum: addends of ranks are then those of one device."""
    if weight is not None or options.get("reduction") != "sum":
        return None
    return HapReading("nll_loss", (input, target))


def read_embedding(input: Tensor, weight: Tensor, *_: object, **__: object) -> Read:
    return HapReading("embedding", (input, weight))


def read_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    **_: object,
) -> Read:
    """Of a batch of sequences with themselves."""
    odd = present(bias_k, bias_v, key_padding_mask)
    if odd or not query is key is value or query.dim() != 3 or in_proj_weight is None:
        return None
    weights = present(in_proj_weight, in_proj_bias, out_proj_weight, out_proj_bias)
    return HapReading("attention", (query, *weights, *present(attn_mask)))


def read_cat(tensors: Sequence[Tensor], dim: int = 0) -> Read:
    """A token before all others: [batch, 1, width] and [batch, tokens, width]."""
    if len(tensors) != 2 or dim != 1 or tensors[0].dim() != 3 or tensors[0].shape[1] != 1:
        return None
    return HapReading("append token", (tensors[1], tensors[0]))


def read_getitem(input: Tensor, index: object) -> Read:
    """One token of each sequence."""
    first = isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None)
    if not first or not isinstance(index, tuple) or not isinstance(index[1], int) or input.dim() != 3:
        return None
    return HapReading("take token", (input,))


def read_einsum(equation: str, *operands: Tensor) -> Read:
    """Of two tensors whose letters are all named."""
    if len(operands) != 2 or "..." in equation or "->" not in equation:
        return None
    return HapReading("einsum", operands, (equation.replace(" ", ""),))


def read_expand(input: Tensor, *_: object, **__: object) -> Read:
    """Rows that are alike: HAP adds a token without."""
    return Alias(input)


READERS: Mapping[str, Callable[..., Read]] = {
    "linear": read_linear,
    "conv2d": read_conv2d,
    "relu": unary("relu"),
    "sigmoid": unary("sigmoid"),
    "dropout": unary("dropout"),
    "add": read_add,
    "__add__": read_add,
    "mul": read_mul,
    "__mul__": read_mul,
    "__rmul__": read_mul,
    "sum": read_sum,
    "transpose": read_transpose,
    "flatten": read_flatten,
    "layer_norm": read_layer_norm,
    "log_softmax": read_log_softmax,
    "nll_loss": read_nll_loss,
    "max_pool2d": unary("max_pool2d"),
    "adaptive_avg_pool2d": unary("adaptive_avg_pool2d"),
    "embedding": read_embedding,
    "multi_head_attention_forward": read_attention,
    "cat": read_cat,
    "__getitem__": read_getitem,
    "einsum": read_einsum,
    "expand": read_expand,
}
"""By the name of the torch function."""
