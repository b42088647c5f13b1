"""The table's lines of products: matrices, vectors, convolutions, distances."""

from __future__ import annotations

from math import prod
from typing import Any

from ..annotations.layout import Layout, make_layout
from .annotated import AnnotatedValue, PerCoordinate
from .call_rule import CallRule
from .convolution_rules import CONVOLUTION, Window
from .ir import Row
from .op_apply import line, put
from .op_rule import Linear, OpRule, parse
from .rules import Result, RuleContext, local_shape
from .view_maps import map_view

SPACE, KERNEL, OUT = "x y z", "u v w", "X Y Z"

line("aten.mm.default", "m k, k n -> m n", sum="k", linear=Linear.EACH, flops=2, empty_ok=True)
line("aten.bmm.default", "b m k, b k n -> b m n", sum="k", linear=Linear.EACH, flops=2, empty_ok=True)
line(
    "aten.addmm.default", "m n, m k, k n -> m n", sum="k", linear=Linear.EACH, flops=2, added=0, empty_ok=True
)
line("aten.mv.default", "m k, k -> m", sum="k", flops=2)
line("aten.dot.default", "k, k -> ", sum="k", flops=2)
line("aten.vdot.default", "k, k -> ", sum="k", flops=2)

# Between all pairs of points: PyTorch computes few points in another way than many.
line("aten._cdist_forward.default", "... p d, ... r d -> ... p r", whole="p r d", flops=3)
line("aten._cdist_backward.default", "... p r, ... p d, ... r d, ... p r -> ... p d", whole="p r d", flops=3)


def _dims(letters: str, window: Window) -> str:
    return " ".join(letters.split()[: len(window.stride)])


def _convolution(row: Row) -> OpRule:
    """By groups and direction: a product over channels, or groups of channels side by side."""
    window = Window.of(row.args[3:9])
    space, kernel, out = (_dims(letters, window) for letters in (SPACE, KERNEL, OUT))
    whole, more = f"{space} {kernel} {out}", dict[str, Any](added=2, emit=_emit, flops=2, idle=space)
    if window.groups == 1:
        filters = "k m" if window.transposed else "m k"
        text = f"n k {space}, {filters} {kernel}, m -> n m {out}"
        return parse(row.op, text, sum="k", whole=whole, linear=Linear.EACH, **more)
    filters = "(g c) m" if window.transposed else "(g m) c"
    text = f"n (g c) {space}, {filters} {kernel}, (g m) -> n (g m) {out}"
    return parse(row.op, text, whole=f"{whole} c m", lengths=(("g", "groups"),), **more)


def _emit(
    ctx: RuleContext, row: Row, call: CallRule, values: list[AnnotatedValue], results: list[Layout]
) -> Result:
    window = Window.of(row.args[3:9])
    groups: object = 1
    if window.groups > 1:
        apart = map_view(make_layout((values[0].layout.dims[1],)), (call.sizes["g"], call.sizes["c"]))
        assert apart is not None, "operands met in groups"
        blocks = apart.target.dims[0]  # of a periodic cut more than one factor
        groups = PerCoordinate(lambda at: prod([factor.length(at) for factor in blocks]))
    bias = values[2] if len(values) > 2 else None
    args = (values[0], values[1], bias, local_shape(results[0]), *window.literals(groups))
    return ctx.emit("hspmd.convolution", args, results[0])


put(OpRule(CONVOLUTION, variants=_convolution))
