"""Rules of convolutions: products over channels, so that they split as matrix products do."""

from __future__ import annotations

from dataclasses import dataclass

from ..annotations.layout import Axis, Dim, Factor, Layout, make_layout
from .annotated import AnnotatedValue
from .channel_groups import held_groups, in_groups, meet_in_groups, same_samples
from .contraction_rules import Contraction, contract
from .cuts import exact, whole_dim
from .ir import Row
from .reduction_rules import reduced_layout
from .rules import Result, RuleContext, integer, items, local_shape, rule_for

CONVOLUTION = "aten.convolution.default"
CONVOLUTION_BACKWARD = "aten.convolution_backward.default"
SPACE, KERNEL = "xyz", "uvw"


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


def _letters(left: str, right: str, out: str, value: AnnotatedValue) -> Contraction:
    rank = len(value.layout.dims)
    return Contraction(left[:rank], right[:rank], out)


def _whole_tail(ctx: RuleContext, value: AnnotatedValue) -> AnnotatedValue:
    """Windows overlap: space and kernels are not cut."""
    for dim in range(2, len(value.layout.dims)):
        value = whole_dim(ctx, value, dim)
    return value


def _whole(shape: tuple[int, ...]) -> tuple[Dim, ...]:
    return tuple((Factor(size),) for size in shape[2:])


@rule_for(CONVOLUTION_BACKWARD)
def convolution_backward(ctx: RuleContext, row: Row) -> Result:
    """Three products, each split in its own way: for the input, for the weight, and the sum for the bias."""
    window, wanted = Window.of(row.args[4:10]), items(row.args[10])
    grad, image, weight = (_whole_tail(ctx, ctx.operand(argument)) for argument in row.args[:3])
    made: list[AnnotatedValue | None] = [None, None, None]
    split = _split_in_groups if window.groups > 1 else _split
    if wanted[0]:
        made[0] = split(ctx, row, window, grad, weight, image.layout.shape, for_weight=False)
    if wanted[1]:
        made[1] = split(ctx, row, window, grad, image, weight.layout.shape, for_weight=True)
    if wanted[2]:
        made[2] = _bias_gradient(ctx, grad)
    present = next(value for value in made if value is not None)
    return tuple(present if value is None else value for value in made)  # no row picks what nobody wants


def _split(
    ctx: RuleContext,
    row: Row,
    window: Window,
    grad: AnnotatedValue,
    other: AnnotatedValue,
    shape: tuple[int, ...],
    *,
    for_weight: bool,
) -> AnnotatedValue:
    """The gradient of the input (other: the weight) or of the weight (other: the input)."""
    if for_weight:
        left, right, out = "km" + SPACE, "kn" + SPACE, "nm" if window.transposed else "mn"
    else:
        left, right, out = "nk" + SPACE, ("mk" if window.transposed else "km") + KERNEL, "nm"
    grad, other, met = contract(ctx, row, _letters(left, right, out, grad), grad, other)
    layout = make_layout((*met.dims, *_whole(shape)), met.partial)
    return _emit_gradient(ctx, window, (grad, other), layout, 1, for_weight)


def _split_in_groups(
    ctx: RuleContext,
    row: Row,
    window: Window,
    grad: AnnotatedValue,
    other: AnnotatedValue,
    shape: tuple[int, ...],
    *,
    for_weight: bool,
) -> AnnotatedValue:
    operands = [(grad, 1), (other, 1 if for_weight else 0)]
    (grad, other), blocks = meet_in_groups(ctx, window.groups, operands)
    if for_weight:
        grad, other = same_samples(ctx, [grad, other])
        partial = frozenset({Axis.BATCH} if grad.layout.cut(ranks=False) is not None else ())
        lead: tuple[Dim, ...] = (in_groups(blocks, shape[0] // window.groups), (Factor(shape[1]),))
    else:
        partial = grad.layout.partial
        lead = (grad.layout.dims[0], in_groups(blocks, shape[1] // window.groups))
    layout = make_layout((*lead, *_whole(shape)), partial)
    return _emit_gradient(ctx, window, (grad, other), layout, held_groups(blocks), for_weight)


def _emit_gradient(
    ctx: RuleContext,
    window: Window,
    operands: tuple[AnnotatedValue, AnnotatedValue],
    layout: Layout,
    groups: object,
    for_weight: bool,
) -> AnnotatedValue:
    op = "hspmd.convolution_weight_gradient" if for_weight else "hspmd.convolution_input_gradient"
    args = (*operands, local_shape(layout), *window.literals(groups))
    return ctx.emit(op, args, layout, dtype=operands[0].dtype)


def _bias_gradient(ctx: RuleContext, grad: AnnotatedValue) -> AnnotatedValue:
    """The sum over samples and space."""
    reduced = [dim for dim in range(len(grad.layout.dims)) if dim != 1]
    cut = grad.layout.cut(ranks=True)
    value = exact(ctx, grad) if cut is not None and cut[0] in reduced else grad
    layout = reduced_layout(value.layout, reduced, keep=False)
    return ctx.emit("aten.sum.dim_IntList", (value, tuple(reduced)), layout, dtype=value.dtype)
