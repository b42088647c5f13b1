"""The dynamic program over live values: the cheapest chain of choices for each way to hold what is live.

Variables: a way of each row, a type of each value that may move, a type of each parameter. Objective: the sum
of their prices. State: the codes of all live values, which are the same values whatever was chosen. Exact:
what comes later depends on the state alone. A state is left out where another that costs no more serves
wherever it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias

from .codes import REPLICATE, WHOLE
from .priced_steps import PricedStep
from .row_ways import NOTHING
from .space import StepPlace, picker

Key = tuple[int, ...]
Chain: TypeAlias = Any
"""Linked choices, last first, None at the start: (what came before, place of the step, what was chosen)."""
Front = dict[Key, tuple[float, Chain]]
FEW = 3
"""Values of a state of which all sets are tried when another state is looked for that serves as well."""


@dataclass(slots=True)
class Frontier:
    """Pushes states through steps.

    only: the codes that results of some steps must have, by place.
    """

    steps: Sequence[PricedStep]
    places: Sequence[StepPlace]
    dominance: bool = True
    stats: Counter[str] = field(default_factory=Counter)
    only: Mapping[int, int] = field(default_factory=dict)

    def run(self, first: int, last: int, front: Front, *, recomputed: bool = False) -> Front:
        """Through steps [first, last); empty where no state gets through."""
        for number in range(first, last):
            front = self._step(number, number - first, front, recomputed)
            if not front:
                return {}
        return front

    def _step(self, number: int, local: int, front: Front, recomputed: bool) -> Front:
        step, place = self.steps[number], self.places[number]
        take, keep = picker(place.take), picker(place.keep)
        only = self.only.get(number, NOTHING)
        made: Front = {}
        for key, (price, chain) in front.items():
            rest = keep(key)
            for gives, more, chosen in step.outcomes(take(key), recomputed=recomputed, only=only):
                new, total = rest + gives, price + more
                old = made.get(new)
                if old is None or total < old[0]:
                    made[new] = (total, (chain, local, chosen))
        self.stats["states"] += len(made)
        self.stats["width"] = max(self.stats["width"], len(made))
        if self.dominance and step.targets and len(made) > 1:
            made = undominated(made)
        return made


def undominated(front: Front) -> Front:
    """Without states of which some values that all have could as well have pending gradients, for no more."""
    kept: Front = {}
    for key, found in front.items():
        open_places = [i for i, code in enumerate(key) if code == REPLICATE]
        most = len(open_places) if len(open_places) <= FEW else 1
        if not any(
            _is_beaten(front, key, found[0], places)
            for count in range(1, most + 1)
            for places in combinations(open_places, count)
        ):
            kept[key] = found
    return kept


def _is_beaten(front: Front, key: Key, price: float, places: Sequence[int]) -> bool:
    other = list(key)
    for place in places:
        other[place] = WHOLE
    found = front.get(tuple(other))
    return found is not None and found[0] <= price


def cheapest(front: Front) -> tuple[Key, float, Chain]:
    """The first of the cheapest states."""
    key = min(front, key=lambda one: (front[one][0], one))
    return key, *front[key]
