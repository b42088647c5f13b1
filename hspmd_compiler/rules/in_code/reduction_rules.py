"""Rules of reductions over dims: cut dims become pending sums; counts stay global."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.layout import Dim, Layout, make_layout, summed_over
from ..call_rule import CallRule, argument_of, argument_place, dims_along
from ..rules import RuleContext

MEAN, SUM = 1, 2
"""How a loss is reduced."""


def reduced_layout(layout: Layout, reduced: Sequence[int], keep: bool) -> Layout:
    """Cuts of reduced dims become pending sums, other dims stay."""
    partial = set(layout.partial)
    dims: list[Dim] = []
    for index, dim in enumerate(layout.dims):
        if index not in reduced:
            dims.append(dim)
            continue
        partial |= summed_over(dim)
        if keep:
            dims.append(())
    return make_layout(tuple(dims), frozenset(partial))


def per_channel(layout: Layout) -> Layout:
    """What is left of a value when all dims but that of the channels are summed."""
    return reduced_layout(layout, [dim for dim in range(len(layout.dims)) if dim != 1], keep=False)


def mean(
    ctx: RuleContext, row: Row, call: CallRule, args: tuple[object, ...], layout: Layout, cut: frozenset[str]
) -> AnnotatedValue:
    """A mean or its gradient: local over whole letters, else a sum over the count of the whole."""
    scale, over = call.rule.scale, call.summed or frozenset(call.sizes)
    assert scale is not None
    op, kwargs, averages = row.op, row.kwargs, not cut.isdisjoint(over)
    if scale.argument:
        reduction = argument_of(row, scale.argument)
        averages = averages and reduction == MEAN
        place = argument_place(op, scale.argument)[0]
        left_out = (None,) * (place - len(args))  # weights
        args = (*args[:place], *left_out, SUM if averages else reduction, *args[place + 1 :])
    elif averages:
        rank = len(call.operands[0])
        over_dims = tuple(dims_along(row, call.rule.along, rank))
        op, args = scale.kernel, (args[0], over_dims, len(layout.dims) == rank)
        kwargs = {key: value for key, value in kwargs.items() if key == "dtype" and value is not None}
    found = ctx.emit(op, args, layout, kwargs=kwargs)
    return ctx.emit("aten.div.Scalar", (found, call.size(tuple(over))), layout) if averages else found
