"""The table's lines of convolutions: a product over channels, or groups of channels side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from ...ir.annotated import AnnotatedValue, PerCoordinate
from ...ir.graph import Row
from ...layout.layout import Layout, make_layout
from ...layout.view_maps import map_view
from ..call_rule import CallRule, bound
from ..op_apply import computed, put
from ..op_rule import Linear, OpRule, parse
from ..rules import Result, RuleContext, items, local_shape

CONVOLUTION = "aten.convolution.default"
CONVOLUTION_BACKWARD = "aten.convolution_backward.default"
SPACE, KERNEL, OUT = "x y z", "u v w", "X Y Z"
GROUPS = (("g", "groups"),)


class Window(NamedTuple):
    """The literals of a convolution. groups: blocks of channels, each with filters of its own."""

    stride: tuple[object, ...]
    padding: object
    dilation: object
    transposed: bool
    output_padding: object
    groups: Any


def _window(row: Row) -> Window:
    first = 3 if row.op == CONVOLUTION else 4
    return Window._make(row.args[first : first + 6])


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
    window = _window(row)._replace(groups=_groups(image, call, "c"))  # type: ignore[arg-type]
    return ctx.emit("hspmd.convolution", (image, filters, bias, local_shape(results[0]), *window), results[0])


def gradient(op: str) -> Callable[..., Result]:
    """Of the input or of the weight."""

    def emit(
        ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
    ) -> Result:
        window = _window(row)._replace(groups=_groups(values[0], call, "m"))
        args = (*values, local_shape(results[0]), *window)
        return ctx.emit(op, args, results[0], dtype=values[0].dtype)

    return emit


def bias_gradient(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    """The sum over samples and space."""
    (grad,) = values
    outside = tuple(dim for dim in range(len(grad.layout.dims)) if dim != 1)
    return ctx.emit("aten.sum.dim_IntList", (grad, outside), results[0], dtype=grad.dtype)


def _letters(window: Window) -> tuple[str, str, str, str]:
    """Input, weight, result and channels of the result; k channels are read, m made, or c and m a group."""
    space, kernel, out = (" ".join(all.split()[: len(window.stride)]) for all in (SPACE, KERNEL, OUT))
    if window.groups == 1:
        filters = "k m" if window.transposed else "m k"
        return f"n k {space}", f"{filters} {kernel}", f"n m {out}", "m"
    filters = "(g c) m" if window.transposed else "(g m) c"
    return f"n (g c) {space}", f"{filters} {kernel}", f"n (g m) {out}", "(g m)"


def _whole(window: Window) -> str:
    """Windows overlap: space and kernels are not cut, nor are the channels of a group."""
    return f"{SPACE} {KERNEL} {OUT} c m" if window.groups > 1 else f"{SPACE} {KERNEL} {OUT}"


def _line(row: Row, window: Window, text: str, over: str = "", **more: Any) -> OpRule:
    """over: what an ungrouped product sums over."""
    named = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    more["whole"] = " ".join(sorted(named.intersection(_whole(window).split())))
    if window.groups > 1:
        return parse(row.op, text, lengths=GROUPS, **more)
    products = dict[str, Any](sum=over, linear=Linear.EACH)
    return parse(row.op, text, **products | more)


def _idle(window: Window, image: str, out: str) -> str:
    """The space that windows move over is not counted: each element of the other side meets one window."""
    return (out if window.transposed else image).split(")")[-1].removeprefix("n k ").removeprefix("n m ")


def _convolution(row: Row) -> OpRule:
    window = _window(row)
    image, weight, out, channels = _letters(window)
    more = dict[str, Any](added=2, emit=convolution, flops=2, idle=_idle(window, image, out))
    return _line(row, window, f"{image}, {weight}, {channels} -> {out}", "k", **more)


def _backward(row: Row) -> OpRule:
    """What the three products have in common."""
    window = _window(row)
    image, weight, grad, channels = _letters(window)
    summed = "n" if window.groups > 1 else "n m"
    text = f"{grad}, {image}, {weight} -> {image}, {weight}, {channels}"
    more = dict[str, Any](code=convolution_backward, flops=4, idle=_idle(window, image, grad))
    return _line(row, window, text, sum=summed, linear=Linear.NO, **more)


def _products(row: Row) -> tuple[OpRule, OpRule, OpRule]:
    """Gradients of the input, of the weight and of the bias, each split in its own way."""
    window = _window(row)
    image, weight, grad, _ = _letters(window)
    of_input, of_weight = (gradient(f"hspmd.convolution_{name}_gradient") for name in ("input", "weight"))
    summed = {"sum": "n"} if window.groups > 1 else {}
    space = " ".join(grad.split(")")[-1].split()) if window.groups > 1 else grad.removeprefix("n m ")
    bias = dict[str, Any](sum=f"n {space}", linear=Linear.ONE, emit=bias_gradient)
    return (
        _line(row, window, f"{grad}, {weight} -> {image}", "m", emit=of_input),
        _line(row, window, f"{grad}, {image} -> {weight}", "n", emit=of_weight, **summed),
        parse(row.op, f"n m {space} -> m", whole=space, **bias),
    )


def convolution_backward(ctx: RuleContext, row: Row) -> Result:
    """Three products; those that nobody wants are not computed."""
    grad, image, weight = (ctx.operand(argument) for argument in row.args[:3])
    operands = ([grad, weight], [grad, image], [grad])
    shapes = (image.layout.shape, weight.layout.shape, grad.layout.shape[1:2])
    made = [
        _product(ctx, row, place, operands[place], shapes[place]) if wanted else None
        for place, wanted in enumerate(items(row.args[10]))
    ]
    present = next(value for value in made if value is not None)
    return tuple(present if value is None else value for value in made)  # no row picks what nobody wants


def _product(
    ctx: RuleContext, row: Row, place: int, operands: list[AnnotatedValue], shape: tuple[int, ...]
) -> AnnotatedValue:
    part = replace(row, shape=shape, dtype=operands[0].dtype, outs=None)
    known, key = ctx.call_rule(row).known, ("product", place)
    if key not in known:
        known[key] = bound(part, _products(row)[place], [value.layout.shape for value in operands])
    found = computed(ctx, part, known[key], (), operands)
    assert isinstance(found, AnnotatedValue)
    return found


put(OpRule(CONVOLUTION, variants=_convolution))
put(OpRule(CONVOLUTION_BACKWARD, variants=_backward))
