"""Operators of PyTorch that compute: element by element, products, reductions, lookups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.dtypes import ELEMENT_TYPES, ElementType
from .plain import Outline, broadcast, made, strides_of_each

BOOL, INT, FLOAT, COMPLEX = range(4)


def category(dtype: ElementType) -> int:
    """Truth, whole, real or complex: a higher one takes a lower one in."""
    if dtype.is_complex:
        return COMPLEX
    return FLOAT if dtype.is_floating_point else BOOL if dtype.name == "bool" else INT


def common_type(one: Outline, other: object) -> ElementType | None:
    """Of a tensor, and another tensor or a number; None where PyTorch is to tell."""
    own = category(one.dtype)
    if not isinstance(other, Outline):
        number = (bool, int, float, complex).index(type(other)) if type(other) in NUMBERS else COMPLEX + 1
        return one.dtype if number <= own else None
    if one.dtype == other.dtype:
        return one.dtype
    if (one.dim > 0) == (other.dim > 0):
        return None
    wide, narrow = (one, other) if one.dim else (other, one)
    return wide.dtype if category(narrow.dtype) <= category(wide.dtype) else None


NUMBERS = (bool, int, float, complex)


def each(operands: Sequence[object], dtype: ElementType | None) -> Outline | None:
    """Computed element by element."""
    tensors = [item for item in operands if isinstance(item, Outline)]
    shape = broadcast([item.shape for item in tensors])
    if shape is None or dtype is None or 0 in shape:
        return None
    return made(shape, dtype, strides_of_each(shape, tensors))


def arithmetic(*operands: Any, **named: Any) -> Outline | None:
    """Of the operands' common type."""
    first = operands[0]
    if len(operands) > 2 or named or not isinstance(first, Outline):
        return None
    dtype = common_type(first, operands[1]) if len(operands) == 2 else first.dtype
    return None if dtype is None or dtype.name == "bool" else each(operands, dtype)


def real(*operands: Any, **named: Any) -> Outline | None:
    """As arithmetic, of floating-point numbers only."""
    dtypes = [item.dtype for item in operands if isinstance(item, Outline)]
    return arithmetic(*operands, **named) if all(dtype.is_floating_point for dtype in dtypes) else None


def truth(*operands: Any, **named: Any) -> Outline | None:
    """Comparisons."""
    return None if named else each(operands, ELEMENT_TYPES["bool"])


def bits(*operands: Any) -> Outline | None:
    """Of one type."""
    dtypes = {item.dtype if isinstance(item, Outline) else None for item in operands}
    return each(operands, operands[0].dtype) if len(dtypes) == 1 else None


def where(condition: Outline, one: Outline, other: Outline) -> Outline | None:
    """Of one type."""
    return each((condition, one, other), one.dtype) if one.dtype == other.dtype else None


def masked_fill(value: Outline, mask: Outline, number: object) -> Outline | None:
    """A new tensor of the usual layout."""
    fits = mask.dtype.name == "bool" and broadcast([value.shape, mask.shape]) == value.shape
    return made(value.shape, value.dtype) if fits else None


PRESERVE, CONTIGUOUS = "preserve_format", "contiguous_format"
UNSAID = (None, False, "strided")
"""What other keywords say where they say nothing."""


def like(value: Outline, *rest: Any, dtype: ElementType | None = None, **named: Any) -> Outline | None:
    """A tensor of the same shape and layout."""
    wanted = named.pop("memory_format", PRESERVE) or PRESERVE
    if rest or any(item not in UNSAID for item in named.values()):
        return None
    if 0 in value.shape or wanted not in (PRESERVE, CONTIGUOUS):
        return None
    kept = wanted == PRESERVE
    return made(value.shape, dtype or value.dtype, strides_of_each(value.shape, [value]) if kept else None)


def clone(value: Outline, memory_format: str | None = None) -> Outline | None:
    """As it lies, or side by side."""
    return like(value, memory_format=memory_format)


def product(one: Outline, other: Outline) -> Outline | None:
    """Of matrices, or of as many of them."""
    ranks = one.dim == other.dim and one.dtype == other.dtype
    if not ranks or one.shape[:-2] != other.shape[:-2] or one.shape[-1] != other.shape[-2]:
        return None
    return made((*one.shape[:-1], other.shape[-1]), one.dtype)


def add_product(bias: Outline, one: Outline, other: Outline, **named: Any) -> Outline | None:
    """A product and a bias."""
    found = None if named or bias.dtype != one.dtype else product(one, other)
    fits = found is not None and broadcast([bias.shape, found.shape]) == found.shape
    return found if fits else None


def reduced(
    value: Outline, dims: int | Sequence[int] | None = None, keep: bool = False, dtype: object = None
) -> Outline | None:
    """Reduced over some dims, floating-point numbers in their own type."""
    if not value.dtype.is_floating_point or dtype not in (None, value.dtype):
        return None
    given = [dims] if isinstance(dims, int) else dims or range(value.dim)
    gone = {dim % value.dim for dim in given if -value.dim <= dim < value.dim}
    if 0 in value.shape or len(gone) != len(given):
        return None
    sizes = [1 if dim in gone else size for dim, size in enumerate(value.shape) if keep or dim not in gone]
    return made(sizes, value.dtype)


def cat(parts: Sequence[Outline], dim: int = 0) -> Outline | None:
    """Joined along a dim."""
    first = parts[0]
    rest = [
        tuple(size for at, size in enumerate(item.shape) if at != dim % max(item.dim, 1)) for item in parts
    ]
    plain = all(item.dim and item.dtype == first.dtype and item.is_usual for item in parts)
    if not plain or len(set(rest)) > 1 or not -first.dim <= dim < first.dim:
        return None
    sizes = list(first.shape)
    sizes[dim] = sum(item.shape[dim] for item in parts)
    return None if 0 in sizes else made(sizes, first.dtype)


def layer_norm(value: Outline, sizes: Sequence[int], *rest: object) -> Any:
    """With mean and spread of each row, of narrow types in float32."""
    outer = value.dim - len(sizes)
    if not value.is_contiguous or not value.numel or value.shape[outer:] != tuple(sizes):
        return None
    kind = ELEMENT_TYPES["float32"] if value.dtype.itemsize < 4 else value.dtype
    row = made((*value.shape[:outer], *[1] * len(sizes)), kind)
    return made(value.shape, value.dtype), row, row


def layer_norm_backward(
    grad: Outline, value: Outline, sizes: Sequence[int], mean: Outline, spread: Outline, *rest: Any
) -> Any:
    """Gradients of value, weight and bias, as far as they are wanted."""
    weight, bias, wanted = rest
    plain = grad.is_contiguous and value.is_contiguous and value.numel and grad.dtype == value.dtype
    held = [item for item in (weight, bias) if item is not None]
    if not plain or any(item.dtype != value.dtype for item in held):
        return None
    shapes = (value.shape, tuple(sizes), tuple(sizes))
    pairs = zip(shapes, wanted, strict=True)
    return tuple(made(shape, value.dtype) if is_wanted else None for shape, is_wanted in pairs)


def softmax(value: Outline, dim: int, widened: bool) -> Outline | None:
    """Floating-point numbers in their own type."""
    plain = value.is_contiguous and value.dim and value.dtype.is_floating_point and not widened
    return made(value.shape, value.dtype) if plain else None


def softmax_backward(grad: Outline, output: Outline, dim: int, dtype: ElementType) -> Outline | None:
    """Of one type."""
    plain = (
        dtype.is_floating_point
        and grad.is_contiguous
        and output.is_contiguous
        and grad.dtype == output.dtype == dtype
    )
    return made(grad.shape, dtype) if plain and grad.dim else None


def embedding(table: Outline, ids: Outline, *rest: object) -> Outline | None:
    """Rows of a table."""
    return made((*ids.shape, table.shape[1]), table.dtype) if table.dim == 2 else None


def embedding_backward(grad: Outline, ids: Outline, rows: int, *rest: object) -> Outline | None:
    """The table's gradient."""
    return made((rows, grad.shape[-1]), grad.dtype)


def slice_backward(grad: Outline, sizes: Sequence[int], *rest: object) -> Outline | None:
    """Zeros around a gradient."""
    return made(sizes, grad.dtype)


def arange(end: object, **named: Any) -> Outline | None:
    """0, 1, 2, ..."""
    dtype = named.pop("dtype", None)
    if type(end) is not int or any(item not in UNSAID for item in named.values()):
        return None
    return made((end,), dtype or ELEMENT_TYPES["int64"])


def gather(value: Outline, dim: int, index: Outline, **named: Any) -> Outline | None:
    """Of the index's shape."""
    return None if named or value.dim != index.dim else made(index.shape, value.dtype)


def pad(value: Outline, widths: Sequence[int], number: object = 0) -> Outline | None:
    """Widths are (before, behind) of the last dim, then of the one before it."""
    pairs = [*zip(widths[::2], widths[1::2], strict=True)]
    if not value.is_contiguous or len(pairs) > value.dim or 0 in value.shape or not any(widths):
        return None
    added = [0] * (value.dim - len(pairs)) + [sum(pair) for pair in reversed(pairs)]
    sizes = [size + more for size, more in zip(value.shape, added, strict=True)]
    return made(sizes, value.dtype) if min(sizes) > 0 and min(widths) >= 0 else None


def flash_attention(query: Outline, key: Outline, value: Outline, *rest: object, **named: object) -> Any:
    """With its statistics in float32."""
    if 0 in query.shape or query.dtype.name == "float64":
        return None
    batch, heads, length, _ = query.shape
    statistics = made((batch, heads, length), ELEMENT_TYPES["float32"], (length * heads, 1, heads))
    return made(query.shape, query.dtype, strides_of_each(query.shape, [query])), statistics


def flash_attention_backward(
    grad: Outline, query: Outline, key: Outline, value: Outline, *rest: object, **named: object
) -> Any:
    """Rows of one position lie together."""
    if any(item.dim != 4 or 0 in item.shape for item in (query, key, value)):
        return None
    return tuple(by_sequence(item) for item in (query, key, value))


def by_sequence(value: Outline) -> Outline:
    """A new tensor whose heads lie side by side within a position."""
    _, heads, length, width = value.shape
    return made(value.shape, value.dtype, (length * heads * width, width, heads * width, 1))
