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
        split.dim: _cut(base, split, [found[split.dim] for found in coordinates])
        for split in states.splits
        if split.parts > 1
    }
    pending = states.factor(PARTIAL) > 1 and not settled
    return with_cuts(base, cuts, [found[PARTIAL] for found in coordinates] if pending else None)


def _places(devices: Sequence[int], annotation: Annotation) -> list[int]:
    """Where the stage's devices stand in the annotation's subgroup, which may have another order."""
    group = next(found for found in annotation.groups if set(found.devices) == set(devices))
    return [group.devices.index(device) for device in devices]


def _cut(base: Layout, split: Split, places: Sequence[int]) -> Factor:
    """What each rank holds of a dim. places: the coordinate of each rank."""
    factor = flat_factor(base.dims[split.dim])
    if factor.sets is None:
        pieces = split.pieces(factor.size)
        return Factor(factor.size, Axis.TENSOR, tuple(pieces[place] for place in places))
    by_rank = _of_samples(factor.sets, split, places)
    return Factor(factor.size, factor.axis, factor.sets, by_rank=by_rank)


def _of_samples(batch: Sets, split: Split, places: Sequence[int]) -> Sets:
    """Each micro-batch is cut on its own. One whose length the shares don't fit is another pipeline's: no
    rank here computes it, so that the first place has it."""
    found: list[list[tuple[int, int]]] = [[] for _ in places]
    for held in batch:
        length = sum(high - low for low, high in held)
        fits = not any(split.problems_on(length))
        pieces = split.pieces(length) if fits else (((0, length),),) + ((),) * (split.parts - 1)
        for rows, place in zip(found, places, strict=True):
            rows += at_local(held, pieces[place])
    return tuple(map(union, found))
