"""The dynamic program over live values: the cheapest chain of choices for each way to hold what is live.

Variables: a way of each row, a type of each value that may move, a type of each parameter. Objective: the sum
of their prices. State: the codes of all live values, which are the same values whatever was chosen. Exact:
what comes later depends on the state alone. A state is left out where another that costs no more serves
wherever it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from operator import itemgetter
from typing import Any, TypeAlias

from .priced_steps import PricedStep
from .space.codes import REPLICATE, WHOLE
from .space.regions import StepPlace, StepRegion
from .space.row_ways import NOTHING

Key = tuple[int, ...]
Chain: TypeAlias = Any
"""Linked choices, last first, None at the start: (what came before, (place of the step, what was chosen)).
Where a region has parts, as a block has, chains of these stand in the second place."""
Front = dict[Key, tuple[float, Chain]]
FEW = 3
"""Values of a state of which all sets are tried when another state is looked for that serves as well."""


@dataclass(slots=True)
class Frontier:
    """Pushes states through regions of steps.

    only: the codes that results of some steps must have, by place.
    """

    steps: Sequence[PricedStep]
    dominance: bool = True
    stats: Counter[str] = field(default_factory=Counter)
    only: Mapping[int, int] = field(default_factory=dict)
    _known: dict[tuple[int, int, Key, bool], tuple[tuple[Key, float, Chain], ...]] = field(
        default_factory=dict
    )

    def run(self, regions: Sequence[StepRegion], front: Front, *, recomputed: bool = False) -> Front:
        """Through regions one after another; empty where no state gets through."""
        for region in regions:
            front = self._region(region, front, recomputed)
            self.stats["states"] += len(front)
            self.stats["width"] = max(self.stats["width"], len(front))
            if self.dominance and len(front) > 1:
                front = undominated(front)
        return front

    def _region(self, region: StepRegion, front: Front, recomputed: bool) -> Front:
        take, keep = picker(region.take), picker(region.keep)
        made: Front = {}
        for key, (price, chain) in front.items():
            rest = keep(key)
            for gives, more, inner in self._through(region, take(key), recomputed):
                new, total = rest + gives, price + more
                old = made.get(new)
                if old is None or total < old[0]:
                    made[new] = (total, (chain, inner))
        return made

    def _through(
        self, region: StepRegion, held: Key, recomputed: bool
    ) -> tuple[tuple[Key, float, Chain], ...]:
        """What a region makes of the values that it reads."""
        key = (region.first, region.level, held, recomputed)
        found = self._known.get(key)
        if found is None:
            front: Front = {held: (0.0, None)}
            if region.parts:
                front = self.run(region.parts, front, recomputed=recomputed)
            for number, place in enumerate(region.places, region.first):
                front = self._step(number, place, front, recomputed)
            made = [(gives, price, chain) for gives, (price, chain) in front.items()]
            found = self._known[key] = tuple(made)
        return found

    def _step(self, number: int, place: StepPlace, front: Front, recomputed: bool) -> Front:
        step = self.steps[number]
        take, keep = picker(place.take), picker(place.keep)
        only = self.only.get(number, NOTHING)
        made: Front = {}
        for key, (price, chain) in front.items():
            rest = keep(key)
            for gives, more, chosen in step.outcomes(take(key), recomputed=recomputed, only=only):
                new, total = rest + gives, price + more
                old = made.get(new)
                if old is None or total < old[0]:
                    made[new] = (total, (chain, (number, chosen)))
        self.stats["steps"] += len(made)
        return undominated(made) if self.dominance and len(made) > 1 else made


@cache
def picker(places: tuple[int, ...]) -> Callable[[Key], Key]:
    """A quick way to take these places of a tuple, as a tuple."""
    if not places:
        return lambda key: ()
    if len(places) == 1:
        (place,) = places
        return lambda key: (key[place],)
    return itemgetter(*places)


def undominated(front: Front) -> Front:
    """Without states of which some values that all have could as well have pending gradients, for no more."""
    return {
        key: found
        for key, found in front.items()
        if REPLICATE not in key or not _beaten(front, key, found[0])
    }


def _beaten(front: Front, key: Key, price: float) -> bool:
    """Whether a state that serves as well costs no more."""
    places = [place for place, code in enumerate(key) if code == REPLICATE]
    for place in places:
        other = front.get((*key[:place], WHOLE, *key[place + 1 :]))
        if other is not None and other[0] <= price:
            return True
    if not 1 < len(places) <= FEW:
        return False
    return any(
        _is_beaten(front, key, price, several)
        for count in range(2, len(places) + 1)
        for several in combinations(places, count)
    )


def _is_beaten(front: Front, key: Key, price: float, places: Sequence[int]) -> bool:
    other = list(key)
    for place in places:
        other[place] = WHOLE
    found = front.get(tuple(other))
    return found is not None and found[0] <= price


def links(chain: Chain) -> list[Any]:
    """What was chosen, in order."""
    found = []
    while chain is not None:
        chain, one = chain
        found.append(one)
    return found[::-1]


def cheapest(front: Front) -> tuple[Key, float, Chain]:
    """The first of the cheapest states."""
    key = min(front, key=lambda one: (front[one][0], one))
    return key, *front[key]
