"""Local rows of convolutions: products over channels, so that they split as matrix products do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from ...ir.annotated import AnnotatedValue, PerCoordinate
from ...ir.graph import Row
from ...layout.layout import Layout, make_layout
from ...layout.view_maps import map_view
from ..call_rule import CallRule
from ..rules import Result, RuleContext, integer, items, local_shape


@dataclass(frozen=True, slots=True)
class Window:
    """The literals of a convolution. groups: blocks of channels, each with filters of its own."""

    stride: tuple[object, ...]
    padding: tuple[object, ...]
    dilation: tuple[object, ...]
    transposed: bool
    output_padding: tuple[object, ...]
    groups: int

    @staticmethod
    def of(arguments: tuple[object, ...]) -> Window:
        """From the six arguments after the tensors."""
        stride, padding, dilation, transposed, output_padding, groups = arguments
        return Window(
            items(stride), items(padding), items(dilation), bool(transposed), items(output_padding),
            integer(groups),
        )  # fmt: skip

    def literals(self, groups: object) -> tuple[object, ...]:
        """For a local kernel, which has some of the groups."""
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding, groups


def _groups(value: AnnotatedValue, call: CallRule, inner: str) -> object:
    """The number of groups that a rank has of a value with channels in dim 1; inner: those of a group."""
    if "g" not in call.sizes:
        return 1
    apart = map_view(make_layout((value.layout.dims[1],)), (call.sizes["g"], call.sizes[inner]))
    assert apart is not None, "operands met in groups"
    blocks = apart.target.dims[0]  # of a periodic cut more than one factor
    return PerCoordinate(lambda at: prod([factor.length(at) for factor in blocks]))


def convolution(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """The product, with the bias where it is added."""
    image, filters, bias = values if len(values) > 2 else (*values, None)
    literals = Window.of(row.args[3:9]).literals(_groups(image, call, "c"))  # type: ignore[arg-type]
    return ctx.emit(
        "hspmd.convolution", (image, filters, bias, local_shape(results[0]), *literals), results[0]
    )


def gradient(op: str) -> Callable[..., Result]:
    """Of the input or of the weight."""

    def emit(
        ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
    ) -> Result:
        literals = Window.of(row.args[4:10]).literals(_groups(values[0], call, "m"))
        args = (*values, local_shape(results[0]), *literals)
        return ctx.emit(op, args, results[0], dtype=values[0].dtype)

    return emit


def bias_gradient(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """The sum over samples and space."""
    (grad,) = values
    outside = tuple(dim for dim in range(len(grad.layout.dims)) if dim != 1)
    return ctx.emit("aten.sum.dim_IntList", (grad, outside), results[0], dtype=grad.dtype)
