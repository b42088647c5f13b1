"""Two addends of a sum in one layout, so that they are added piece by piece without communication."""

from __future__ import annotations

from ..ir.annotated import AnnotatedValue
from ..layout.intervals import union
from ..layout.layout import Axis, Dim, Factor, Layout, make_layout
from ..layout.refine import refine_dim
from .rules import RuleContext, uncut


def as_equal_addends(
    ctx: RuleContext, first: AnnotatedValue, second: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue]:
    """Two addends in one layout, by local zero padding: the union of their sets, or whole pending sums."""
    if first.layout == second.layout:
        return first, second
    joint = _union_dims(first.layout, second.layout)
    if joint is None:
        joint = uncut(first.layout, ranks=True).dims
        partial = first.layout.partial | {Axis.TENSOR}
    else:
        partial = first.layout.partial
    batch = {Axis.BATCH} & second.layout.partial
    return (
        ctx.convert(first, make_layout(joint, partial)),
        ctx.convert(second, make_layout(joint, (partial - {Axis.BATCH}) | batch)),
    )


def _union_dims(first: Layout, second: Layout) -> tuple[Dim, ...] | None:
    """Dims whose sets are the union of both sides' sets, None where they are not cut alike."""
    if Axis.TENSOR in first.partial or Axis.TENSOR in second.partial:
        return None
    dims: list[Dim] = []
    for a, b in zip(first.dims, second.dims, strict=True):
        pairs = refine_dim(a, b)
        if pairs is None:
            return None
        joined = [_union_factor(left, right) for left, right in pairs]
        if any(factor is None for factor in joined):
            return None
        dims.append(tuple(factor for factor in joined if factor is not None))
    return tuple(dims)


def _union_factor(first: Factor, second: Factor) -> Factor | None:
    if first == second:
        return first
    if first.axis is not second.axis or first.sets is None or second.sets is None or not first.axis:
        return None
    if not first.axis.on_ranks:
        return None
    sets = tuple(union((*a, *b)) for a, b in zip(first.sets, second.sets, strict=True))
    return Factor(first.size, first.axis, sets, contrib=True)
