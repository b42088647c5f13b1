"""How operators on images are called: what their operands are, and every kind of window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hspmd_compiler.ir.graph import Ref
from hspmd_compiler.verify.rules.split_operands import Operand
from hspmd_compiler.verify.rules.split_operator import OperandSketch

B, C, OUT = 4, 6, 4
BATCH_NORM = "aten._native_batch_norm_legit_functional.default"
BATCH_NORM_ALONE = "aten._native_batch_norm_legit.no_stats"
BATCH_NORM_EVALUATION = "aten._native_batch_norm_legit_no_training.default"
Take = Callable[[Operand], Ref]


@dataclass(frozen=True)
class Call:
    """One way to call an operator. coupled: with split samples it may be refused."""

    op: str
    build: Callable[[OperandSketch, Take], object]
    coupled: bool = False


@dataclass(frozen=True)
class Filters:
    """A convolution: sizes of image and weight, and its literals."""

    image: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool = False
    output_padding: tuple[int, ...] = (0, 0)
    groups: int = 1

    @property
    def literals(self) -> tuple[object, ...]:
        """The arguments after the tensors."""
        return (
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            self.groups,
        )


FILTERS = (
    Filters((5, 5), (OUT, C, 3, 3), (1, 1), (1, 1), (1, 1)),
    Filters((6, 5), (OUT, C, 3, 2), (2, 1), (0, 1), (1, 2)),
    Filters((4,), (OUT, C, 3), (1,), (1,), (1,), output_padding=(0,)),
    Filters((3, 4, 2), (OUT, C, 2, 1, 2), (1, 2, 1), (0, 0, 1), (1, 1, 1), output_padding=(0, 0, 0)),
    Filters((3, 3), (OUT, C // 2, 3, 3), (1, 1), (1, 1), (1, 1), groups=2),
    Filters((4, 4), (C, 1, 3, 3), (2, 2), (1, 1), (1, 1), groups=C),
    Filters((4, 4), (2 * C, 2, 2, 2), (1, 1), (0, 0), (1, 1), groups=3),
    Filters((3, 3), (C, OUT, 3, 3), (2, 2), (1, 1), (1, 1), True, (1, 1)),
    Filters((3, 3), (C, 2, 2, 2), (2, 2), (0, 0), (1, 1), True, groups=3),
)


def normal(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def plain(*shape: int) -> Operand:
    """A parameter or another value without samples."""
    return Operand(shape, normal, sample=None)


def image(*shape: int) -> Operand:
    """A value per sample."""
    return Operand((B, *shape), normal)


def convolution_calls() -> Iterator[Call]:
    """All of them."""
    yield from _convolutions()
    yield from _pooling_calls()
    yield from _group_norm_calls()
    yield from _batch_norm_calls()
    for op in ("aten._unsafe_index.Tensor", "aten._unsafe_index_put.default"):
        yield Call(op, _resampled)


def _convolutions() -> Iterator[Call]:
    for filters in FILTERS:
        for biased in (True, False):
            yield Call("aten.convolution.default", lambda s, t, f=filters, b=biased: _forward(s, t, f, b))  # type: ignore[misc]
        for wanted in ((True, True, True), (False, True, False), (True, False, True)):
            yield Call(
                "aten.convolution_backward.default",
                lambda s, t, f=filters, w=wanted: _backward(s, t, f, w),  # type: ignore[misc]
            )


def _channels(filters: Filters) -> int:
    return filters.weight[1] * filters.groups if filters.transposed else filters.weight[0]


def _forward(s: OperandSketch, take: Take, filters: Filters, biased: bool) -> Ref:
    values = take(image(C, *filters.image)), take(plain(*filters.weight))
    bias = take(plain(_channels(filters))) if biased else None
    return s.call("aten.convolution.default", (*values, bias, *filters.literals))


def _backward(s: OperandSketch, take: Take, filters: Filters, wanted: tuple[bool, ...]) -> None:
    value, weight = take(image(C, *filters.image)), take(plain(*filters.weight))
    made = s.call("aten.convolution.default", (value, weight, None, *filters.literals))
    shape = s.rows[made.id].shape
    assert shape is not None
    sizes = (_channels(filters),)
    given = take(image(*shape[1:]))
    args = (given, value, weight, sizes, *filters.literals, wanted)
    grads = s.call("aten.convolution_backward.default", args)
    for index, asked in enumerate(wanted):
        if asked:
            s.pick(grads, index)


def _pooled(s: OperandSketch, take: Take, name: str, value: Operand, rest: tuple[object, ...]) -> None:
    """A pooling and its backward."""
    image = take(value)
    made = s.call(f"aten.{name}.default", (image, *rest))
    shape = s.rows[made.id].shape
    if shape is None:
        metas = s.rows[made.id].outs
        assert metas is not None and metas[0] is not None
        shape = metas[0][0]
        s.pick(made, 0)
        picked: tuple[object, ...] = (s.pick(made, 1),)
    else:
        picked = ()
    given = take(Operand(shape, normal))
    literals = () if "adaptive" in name else rest
    s.call(f"aten.{name}_backward.default", (given, image, *literals, *picked))


def _pooling_calls() -> Iterator[Call]:
    flat, deep = image(3, 4, 5), image(3, 3, 4, 2)
    pair, triple = (2, 2), (2, 2, 1)
    uneven: tuple[object, ...] = ((3, 2), (2, 1), (1, 0))
    calls: list[tuple[str, Operand, tuple[object, ...]]] = [
        ("max_pool2d_with_indices", flat, (pair, pair, (0, 0), (1, 1), False)),
        ("max_pool2d_with_indices", flat, (*uneven, (1, 2), True)),
        ("max_pool3d_with_indices", deep, (triple, triple, (0, 0, 0), (1, 1, 1), False)),
        ("adaptive_max_pool2d", flat, ((2, 3),)),
        ("adaptive_max_pool3d", deep, ((2, 3, 1),)),
        ("avg_pool2d", flat, (pair, pair, (0, 0), False, True, None)),
        ("avg_pool2d", flat, (*uneven, True, False, None)),
        ("avg_pool3d", deep, (triple, triple, (0, 0, 0), False, True, None)),
        ("_adaptive_avg_pool2d", flat, ((3, 2),)),
        ("_adaptive_avg_pool3d", deep, ((2, 3, 1),)),
    ]
    for name, value, rest in calls:
        for op in (f"aten.{name}.default", f"aten.{name}_backward.default"):
            yield Call(op, lambda s, t, n=name, v=value, r=rest: _pooled(s, t, n, v, r))  # type: ignore[misc]


def _group_norm(s: OperandSketch, take: Take, groups: int, affine: bool) -> None:
    value = take(image(C, 2, 3))
    scale, shift = (take(plain(C)), take(plain(C))) if affine else (None, None)
    sizes = (B, C, 6, groups)
    made = s.call("aten.native_group_norm.default", (value, scale, shift, *sizes, 1e-5))
    _, mean, spread = (s.pick(made, index) for index in range(3))
    args = (take(image(C, 2, 3)), value, mean, spread, scale, *sizes, (True, affine, affine))
    grads = s.call("aten.native_group_norm_backward.default", args)
    for index in range(3 if affine else 1):
        s.pick(grads, index)


def _group_norm_calls() -> Iterator[Call]:
    for op in ("aten.native_group_norm.default", "aten.native_group_norm_backward.default"):
        for groups in (1, 2, 3, C):
            for affine in (True, False):
                yield Call(op, lambda s, t, g=groups, a=affine: _group_norm(s, t, g, a))  # type: ignore[misc]


def spreads(shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) + 0.5


def _batch_norm(s: OperandSketch, take: Take, op: str, affine: bool, merged: bool) -> None:
    """merged: samples and channels are one dim, as in instance norm."""
    channels = B * C if merged else C
    value = take(image(C, 2, 3))
    grad = take(image(C, 2, 3))
    if merged:
        value, grad = (s.call("aten.view.default", (item, (1, channels, 2, 3))) for item in (value, grad))
    parameters = (take(plain(channels)), take(plain(channels))) if affine else (None, None)
    kept = Operand((channels,), spreads, sample=None, linear=False)
    training = op != BATCH_NORM_EVALUATION
    running = (None, None) if op == BATCH_NORM_ALONE else (take(kept), take(kept))
    flag = () if op == BATCH_NORM_EVALUATION else (True,)
    given = [item for item in running if item is not None]
    made = s.call(op, (value, *parameters, *given, *flag, 0.1, 1e-5))
    _, mean, spread, *moved = (s.pick(made, index) for index in range(len(s.rows[made.id].outs or ())))
    running = tuple(moved) if moved else running
    wanted = (True, affine, affine)
    args = (grad, value, parameters[0], *running, mean, spread, training, 1e-5, wanted)
    grads = s.call("aten.native_batch_norm_backward.default", args)
    for index in range(3 if affine else 1):
        s.pick(grads, index)


def _batch_norm_calls() -> Iterator[Call]:
    for op in (BATCH_NORM, BATCH_NORM_ALONE, BATCH_NORM_EVALUATION):
        for affine, merged in ((True, False), (False, False), (False, True)):
            for name in (op, "aten.native_batch_norm_backward.default"):
                yield Call(name, lambda s, t, o=op, a=affine, m=merged: _batch_norm(s, t, o, a, m))  # type: ignore[misc]


def _resampled(s: OperandSketch, take: Take) -> None:
    rows = s.call("aten.unsqueeze.default", (s.call("aten.arange.default", (2,)), 1))
    columns = s.call("aten.arange.default", (3,))
    indices = (None, None, rows, columns)
    s.call("aten._unsafe_index.Tensor", (take(image(C, 2, 4)), indices))
    zeros = s.call("aten.zeros_like.default", (take(image(C, 2, 4)),))
    args = (zeros, indices, take(image(C, 2, 3)), True)
    s.call("aten._unsafe_index_put.default", args)
