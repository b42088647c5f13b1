"""What an annotation means on a shape, however it is written."""

from __future__ import annotations

from collections.abc import Hashable

from hspmd_compiler.annotations.annotation import Annotation, Shape

from .boxes import times_held


def layout_key(annotation: Annotation, shape: Shape) -> Hashable:
    """Equal where each device holds the same boxes, and overlapping pieces relate in the same way."""
    regions, addends = annotation.regions(shape), annotation.addends()
    held = {device: times_held(boxes, shape) for device, boxes in regions.items()}
    relations = {
        (a, b): (addends[a].alternative == addends[b].alternative, addends[a] == addends[b])
        for a in regions
        for b in regions
        if a < b and (held[a] & held[b]).any()
    }
    return frozenset(regions.items()), frozenset(relations.items())
