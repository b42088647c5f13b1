"""Types of the results of common operators by rule.

PyTorch's own kernels without data are Python, and the first of them imports what symbolic shapes need: most
of a second. Within `QuickTypes` a common operator on operands of plain types is answered here, every other
one by PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Shape = tuple[int, ...]
Rule = Callable[..., Tensor | tuple[Tensor, ...] | None]
"""The result of an operator, or None: PyTorch answers."""

aten = torch.ops.aten


class QuickTypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """In this block common operators on tensors of the device `meta` are answered by rule."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """What PyTorch asks before it imports its compiler, to keep it away: nothing compiles here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        rule = RULES.get(func)
        answer = None
        if rule is not None and not any(isinstance(each, Tensor) and not each.is_meta for each in args):
            answer = rule(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if answer is None else answer


def _made(shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Tensor:
    if strides is None:
        return torch.empty(tuple(shape), dtype=dtype, device="meta")
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="meta")


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    found = []
    for sizes in zip(*padded, strict=True):
        others = {size for size in sizes if size != 1}
        if len(others) > 1:
            return None
        found.append(others.pop() if others else 1)
    return tuple(found)


def _strides(shape: Shape, operands: Sequence[Tensor]) -> Shape:
    """As PyTorch lays out what it computes element by element: in the order of the operands' strides."""
    if all(each.is_contiguous() for each in operands):
        return _in_order(shape, range(len(shape)))
    if all(each.shape == shape and each.stride() == operands[0].stride() for each in operands) and _is_dense(
        shape, operands[0].stride()
    ):
        return operands[0].stride()
    steps = [_expanded(shape, each) for each in operands]
    order = list(reversed(range(len(shape))))
    for last in range(1, len(order)):
        place = last
        for before in range(last - 1, -1, -1):
            turned = _compared(shape, steps, order[before], order[place])
            if turned > 0:
                order[before], order[place] = order[place], order[before]
                place = before
            elif turned < 0:
                break
    return _in_order(shape, list(reversed(order)))


def _compared(shape: Shape, steps: Sequence[Shape], inner: int, outer: int) -> int:
    """Above 0 where the dims must change places, below where they must not: the first operand that tells."""
    for step in steps:
        if not step[inner] or not step[outer]:
            continue
        if step[inner] != step[outer]:
            return -1 if step[inner] < step[outer] else 1
        if shape[inner] > shape[outer]:
            return 1
    return 0


def _expanded(shape: Shape, operand: Tensor) -> Shape:
    missing = len(shape) - operand.dim()
    own = zip(operand.shape, operand.stride(), shape[missing:], strict=True)
    return (0,) * missing + tuple(0 if size == 1 and size != whole else step for size, step, whole in own)


def _in_order(shape: Shape, order: Sequence[int]) -> Shape:
    """Strides of a dense tensor whose dims lie in this order, the outermost first."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def _is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether every element has a place of its own, and no place is empty."""
    step = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def _each(operands: Sequence[object], dtype: torch.dtype) -> Tensor | None:
    """Computed element by element."""
    tensors = [each for each in operands if isinstance(each, Tensor)]
    shape = _broadcast([tuple(each.shape) for each in tensors])
    if shape is None or 0 in shape:
        return None
    return _made(shape, dtype, _strides(shape, tensors))


def _arithmetic(*operands: Any, **named: Any) -> Tensor | None:
    """Of the operands' common type."""
    dtype = torch.result_type(*operands) if len(operands) == 2 else operands[0].dtype
    is_plain = len(operands) <= 2 and not named and dtype is not torch.bool
    return _each(operands, dtype) if is_plain else None


def _real(*operands: Any, **named: Any) -> Tensor | None:
    """As arithmetic, of floating-point numbers only."""
    dtypes = [each.dtype for each in operands if isinstance(each, Tensor)]
    return _arithmetic(*operands, **named) if all(dtype.is_floating_point for dtype in dtypes) else None


def _truth(*operands: Any, **named: Any) -> Tensor | None:
    return None if named else _each(operands, torch.bool)


def _bits(*operands: Any) -> Tensor | None:
    dtypes = {each.dtype if isinstance(each, Tensor) else None for each in operands}
    return _each(operands, operands[0].dtype) if len(dtypes) == 1 else None


def _where(condition: Tensor, one: Tensor, other: Tensor) -> Tensor | None:
    return _each((condition, one, other), one.dtype) if one.dtype == other.dtype else None


def _masked_fill(value: Tensor, mask: Tensor, number: object) -> Tensor | None:
    fits = mask.dtype is torch.bool and _broadcast([value.shape, mask.shape]) == value.shape
    return _made(value.shape, value.dtype) if fits else None


def _like(value: Tensor, *rest: Any, dtype: torch.dtype | None = None, **named: Any) -> Tensor | None:
    """A tensor of the same shape and layout."""
    wanted = named.pop("memory_format", torch.preserve_format)
    if rest or any(item is not None and item is not False for item in named.values()):
        return None
    if 0 in value.shape or wanted not in (torch.preserve_format, torch.contiguous_format):
        return None
    kept = wanted is torch.preserve_format
    return _made(value.shape, dtype or value.dtype, _strides(value.shape, [value]) if kept else None)


def _clone(value: Tensor, memory_format: torch.memory_format | None = None) -> Tensor | None:
    return _like(value, memory_format=memory_format or torch.preserve_format)


def _product(one: Tensor, other: Tensor, bias: Tensor | None = None) -> Tensor | None:
    ranks = one.dim() == other.dim() and one.dtype == other.dtype
    if not ranks or one.shape[:-2] != other.shape[:-2] or one.shape[-1] != other.shape[-2]:
        return None
    return _made((*one.shape[:-1], other.shape[-1]), one.dtype)


def _add_product(bias: Tensor, one: Tensor, other: Tensor, **named: Any) -> Tensor | None:
    found = None if named or bias.dtype != one.dtype else _product(one, other)
    fits = found is not None and _broadcast([bias.shape, found.shape]) == found.shape
    return found if fits else None


def _reduced(
    value: Tensor, dims: int | Sequence[int] | None = None, keep: bool = False, dtype: object = None
) -> Tensor | None:
    """Reduced over some dims, floating-point numbers in their own type."""
    if not value.is_contiguous() or not value.dtype.is_floating_point or dtype not in (None, value.dtype):
        return None
    given = [dims] if isinstance(dims, int) else dims or range(value.dim())
    gone = {dim % value.dim() for dim in given if -value.dim() <= dim < value.dim()}
    if 0 in value.shape or len(gone) != len(given):
        return None
    sizes = [1 if dim in gone else size for dim, size in enumerate(value.shape) if keep or dim not in gone]
    return _made(sizes, value.dtype)


def _cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    first = parts[0]
    rest = [
        tuple(size for at, size in enumerate(each.shape) if at != dim % max(each.dim(), 1)) for each in parts
    ]
    plain = all(
        each.is_meta and each.dim() and each.dtype == first.dtype and _is_usual(each) for each in parts
    )
    if not plain or len(set(rest)) > 1 or not -first.dim() <= dim < first.dim():
        return None
    sizes = list(first.shape)
    sizes[dim] = sum(each.shape[dim] for each in parts)
    return None if 0 in sizes else _made(sizes, first.dtype)


def _is_usual(value: Tensor) -> bool:
    """Whether it does not lie with its channels last, as images may."""
    return value.is_contiguous() or value.dim() < 4 or (value.stride(-1) == 1 < value.stride(1))


def _softmax(value: Tensor, dim: int, widened: bool) -> Tensor | None:
    plain = value.is_contiguous() and value.dim() and value.dtype.is_floating_point and not widened
    return _made(value.shape, value.dtype) if plain else None


def _softmax_backward(grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor | None:
    plain = (
        dtype.is_floating_point
        and grad.is_contiguous()
        and output.is_contiguous()
        and grad.dtype == output.dtype == dtype
    )
    return _made(grad.shape, dtype) if plain and grad.dim() else None


def _embedding(table: Tensor, ids: Tensor, *rest: object) -> Tensor | None:
    return _made((*ids.shape, table.shape[1]), table.dtype) if table.dim() == 2 else None


def _embedding_backward(grad: Tensor, ids: Tensor, rows: int, *rest: object) -> Tensor | None:
    return _made((rows, grad.shape[-1]), grad.dtype)


def _slice_backward(grad: Tensor, sizes: Sequence[int], *rest: object) -> Tensor | None:
    return _made(sizes, grad.dtype)


def _arange(end: object, **named: Any) -> Tensor | None:
    dtype = named.pop("dtype", None)
    plain = type(end) is int and named.pop("device", None) == torch.device("meta")
    if not plain or any(item not in (None, False, torch.strided) for item in named.values()):
        return None
    return _made((end,), dtype or torch.int64)  # type: ignore[arg-type]


def _gather(value: Tensor, dim: int, index: Tensor, **named: Any) -> Tensor | None:
    return None if named or value.dim() != index.dim() else _made(index.shape, value.dtype)


def _scattered(value: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor | None:
    """In place."""
    fits = value.dim() == index.dim() == source.dim() and value.dtype == source.dtype
    return value if fits and index.dtype is torch.int64 and index.shape == source.shape else None


def _flash_attention(
    query: Tensor, key: Tensor, value: Tensor, *rest: object, **named: object
) -> tuple[Tensor, Tensor] | None:
    """With its statistics in float32."""
    if 0 in query.shape or query.dtype is torch.float64:
        return None
    batch, heads, length, _ = query.shape
    statistics = _made((batch, heads, length), torch.float32, (length * heads, 1, heads))
    return _made(query.shape, query.dtype, _strides(query.shape, [query])), statistics


def _view(value: Tensor, sizes: Sequence[int]) -> Tensor | None:
    return value.view(tuple(sizes)) if prod(sizes) == value.numel() else None


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
)
TRUTH = tuple(
    f"{name}.{kind}" for name in ("ge", "gt", "le", "lt", "eq", "ne") for kind in ("Scalar", "Tensor")
)
BITS = ("bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_not.default")


def _operator(name: str) -> Any:
    packet, overload = name.split(".")
    return getattr(getattr(aten, packet), overload)


RULES: Mapping[object, Rule] = {
    **{_operator(name): _arithmetic for name in ARITHMETIC},
    **{_operator(name): _real for name in REAL},
    **{_operator(name): _truth for name in TRUTH},
    **{_operator(name): _bits for name in BITS},
    aten.where.self: _where,
    aten.masked_fill.Scalar: _masked_fill,
    aten.zeros_like.default: _like,
    aten.ones_like.default: _like,
    aten.empty_like.default: _like,
    aten.clone.default: _clone,
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: _add_product,
    aten.sum.dim_IntList: _reduced,
    aten.sum.default: _reduced,
    aten.mean.dim: _reduced,
    aten.amax.default: _reduced,
    aten.cat.default: _cat,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten._log_softmax_backward_data.default: _softmax_backward,
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.slice_backward.default: _slice_backward,
    aten.arange.default: _arange,
    aten.gather.default: _gather,
    aten.scatter_.src: _scattered,
    aten._unsafe_view.default: _view,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _flash_attention,
}
