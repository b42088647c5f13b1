"""What a wish for a layout says on the ranks of one stage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ..annotations.split import Split
from ..annotations.states import DistributedStates, Duplicate, Partial, Placement
from ..annotations.text import parse_states

OVER_ALL = re.compile(r"\s*(?:S(?P<dim>\d{1,9})(?:/(?P<unit>\d{1,9}))?|D|P)\s*")
"""A placement without parts: over all ranks of a stage."""


@lru_cache(maxsize=1024)
def wish_states(to: str, ranks: int, shares: Sequence[int] | None = None) -> DistributedStates | None:
    """The states that `to` means for so many ranks; None if it is for another number of them.

    shares: of the stage, by which a split over all its ranks is cut. AnnotationError: it can't be read.
    """
    found = OVER_ALL.fullmatch(to)
    if found is not None:
        return DistributedStates((_over_all(found, ranks, shares),))
    states = parse_states(to)
    if ranks == 1:  # it has all there is
        return DistributedStates()
    return states if states.size == ranks else None


def fixed_states(to: str) -> DistributedStates | None:
    """The states of one number of ranks; None: it is for any number. AnnotationError: it can't be read."""
    found = OVER_ALL.fullmatch(to)
    if found is None:
        return parse_states(to)
    _over_all(found, 1, None)  # where its unit is 0, this says so
    return None


def _over_all(found: re.Match[str], ranks: int, shares: Sequence[int] | None) -> Placement:
    if found["dim"] is None:
        return Duplicate(ranks) if found[0].strip() == "D" else Partial(ranks)
    weights = None if shares is None or ranks == 1 else tuple(shares)
    return Split(int(found["dim"]), ranks, weights, unit=int(found["unit"] or 1))
