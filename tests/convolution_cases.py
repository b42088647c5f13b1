"""How operators on images are called: what their operands are, and every kind of window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hspmd_compiler.graph.ir import Ref

from .sharded_rows import Operand, Sketch

B, C, OUT = 4, 6, 4
Take = Callable[[Operand], Ref]


@dataclass(frozen=True)
class Call:
    """One way to call an operator. coupled: with split samples it may be refused."""

    op: str
    build: Callable[[Sketch, Take], object]
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


def _forward(s: Sketch, take: Take, filters: Filters, biased: bool) -> Ref:
    values = take(image(C, *filters.image)), take(plain(*filters.weight))
    bias = take(plain(_channels(filters))) if biased else None
    return s.call("aten.convolution.default", (*values, bias, *filters.literals))


def _backward(s: Sketch, take: Take, filters: Filters, wanted: tuple[bool, ...]) -> None:
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
