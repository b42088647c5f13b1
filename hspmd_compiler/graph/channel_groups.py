"""Channels in groups that are not cut inside: how several operands meet in one cut between groups."""

from __future__ import annotations

from ..annotations.layout import Axis, Dim, Factor, Layout
from .annotated import AnnotatedValue, PerCoordinate
from .pointwise_rules import most_split
from .rules import RuleContext, uncut
from .view_maps import flat_factor

Placed = tuple[AnnotatedValue, int]
"""An operand, and its dim whose outer factor are the groups."""


def meet_in_groups(
    ctx: RuleContext, groups: int, operands: list[Placed]
) -> tuple[list[AnnotatedValue], Factor]:
    """All operands settled and cut between the same groups, where one of them is; and how that is."""
    settled = [(ctx.settle(value), dim) for value, dim in operands]
    cuts = [(_between(value.layout, dim, groups) or Factor(groups),) for value, dim in settled]
    blocks = most_split(cuts)[0]
    return [_cut(ctx, value, dim, blocks) for value, dim in settled], blocks


def _between(layout: Layout, dim: int, groups: int) -> Factor | None:
    """How the ranks cut the groups, None where they cut another dim or inside of a group."""
    cut = layout.cut(ranks=True)
    if cut is None or cut[0] != dim or any(factor.axis is Axis.BATCH for factor in layout.dims[dim]):
        return None
    size = layout.shape[dim] // groups
    flat = flat_factor(layout.dims[dim])
    sets = flat.sets or ()
    if any(bound % size for held in sets for interval in held for bound in interval):
        return None
    return Factor(groups, flat.axis, tuple(tuple((a // size, b // size) for a, b in held) for held in sets))


def _cut(ctx: RuleContext, value: AnnotatedValue, dim: int, blocks: Factor) -> AnnotatedValue:
    plain = uncut(value.layout, ranks=True)
    size = value.layout.shape[dim] // blocks.size
    dims = (in_groups(blocks, size) if place == dim else own for place, own in enumerate(plain.dims))
    return ctx.convert(value, plain.with_dims(dims))


def in_groups(blocks: Factor, size: int) -> Dim:
    """A dim of groups with `size` channels each."""
    return blocks, Factor(size)


def held_groups(blocks: Factor) -> PerCoordinate:
    """The number of groups that a rank has, as a literal."""
    return PerCoordinate(lambda at: blocks.length(at))


def same_samples(ctx: RuleContext, values: list[AnnotatedValue]) -> list[AnnotatedValue]:
    """Values with the samples in dim 0, cut alike there."""
    samples = most_split([value.layout.dims[0] for value in values])
    return [ctx.convert(v, v.layout.with_dims((samples, *v.layout.dims[1:]))) for v in values]
