"""The layout that a marker's annotation asks for, on the ranks of one stage."""

from __future__ import annotations

from collections.abc import Sequence

from ..annotations.annotation import Annotation
from ..annotations.split import Split
from ..annotations.states import PARTIAL, DistributedStates
from ..layout.intervals import Sets, at_local, union
from ..layout.layout import Axis, Factor, Layout
from ..layout.several_cuts import with_cuts, without_ranks
from ..layout.view_maps import flat_factor
from .rules import RuleContext

TOKEN_DIM = 1
TOKEN_RANK = 3


def states_of(devices: Sequence[int], annotation: Annotation) -> DistributedStates | None:
    """The states of the subgroup with exactly these devices."""
    for group, states in zip(annotation.groups, annotation.states, strict=True):
        if set(group.devices) == set(devices):
            return states
    return None


def target_layout(
    ctx: RuleContext, annotation: Annotation, states: DistributedStates, layout: Layout, *, settled: bool
) -> Layout:
    """The layout on this stage's ranks; what the batch axis does to the value stays.

    settled: a gradient is whole where its value is a pending sum.
    """
    base = without_ranks(layout)
    places = _places(ctx.stage_devices, annotation)
    coordinates = [states.coordinates(place) for place in places]
    cuts = {
        split.dim: _cut(ctx, base, split, [found[split.dim] for found in coordinates])
        for split in states.splits
        if split.parts > 1
    }
    pending = states.factor(PARTIAL) > 1 and not settled
    return with_cuts(base, cuts, [found[PARTIAL] for found in coordinates] if pending else None)


def _places(devices: Sequence[int], annotation: Annotation) -> list[int]:
    """Where the stage's devices stand in the annotation's subgroup, which may have another order."""
    group = next(found for found in annotation.groups if set(found.devices) == set(devices))
    return [group.devices.index(device) for device in devices]


def _cut(ctx: RuleContext, base: Layout, split: Split, places: Sequence[int]) -> Factor:
    """What each rank holds of a dim. places: the coordinate of each rank."""
    factor = flat_factor(base.dims[split.dim])
    if factor.sets is None:
        pieces = split.pieces(factor.size)
        return Factor(factor.size, _axis(ctx, base, split.dim), tuple(pieces[place] for place in places))
    by_rank = _of_samples(factor.sets, split, places)
    return Factor(factor.size, factor.axis, factor.sets, by_rank=by_rank)


def _of_samples(batch: Sets, split: Split, places: Sequence[int]) -> Sets:
    """Each micro-batch is cut on its own; one whose length the shares don't fit is another pipeline's."""
    found: list[list[tuple[int, int]]] = [[] for _ in places]
    for held in batch:
        length = sum(high - low for low, high in held)
        if any(split.problems_on(length)):
            continue
        pieces = split.pieces(length)
        for rows, place in zip(found, places, strict=True):
            rows += at_local(held, pieces[place])
    return tuple(map(union, found))


def _axis(ctx: RuleContext, layout: Layout, dim: int) -> Axis:
    """Tokens of [batch, tokens, features] are cut along SEQUENCE, so that operators gather them first."""
    shape = layout.shape
    tokens = dim == TOKEN_DIM and len(shape) == TOKEN_RANK and shape[0] == ctx.batch
    return Axis.SEQUENCE if tokens else Axis.TENSOR
