"""The cheapest program of HAP's space: a dynamic program over the placements of live values.

Variables: each operator's alternative, and before it at most one exchange of each operand; in all each value
is computed once and exchanged once. Vectors of ratios: one for the program, one for each segment, or one for
each operator, out of given ones. Objective: HAP's price. Constraints: operands are in the placements that an
alternative needs; the loss ends as a pending sum. Bound: the optimum over all of these, proven: operators run
in the order of the calls (another order of independent operators costs the same), a price is a sum over
operators, and of two programs that leave the same placements only the cheaper is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter

from ...errors import RuleMissing
from .costs import HapPrices
from .operators import PENDING, HapGraph, HapOperator, HapValue
from .transitions import HapEntry, HapStep, HapSteps, fresh


class VectorFor(Enum):
    """What has a vector of ratios of its own."""

    PROGRAM = "program"
    SEGMENT = "segment"
    TENSOR = "tensor"


HapState = tuple[int | None, tuple[HapEntry, ...]]
"""The vector in use (None: any), and what is known of each live value."""
HapChain = tuple["HapChain | None", HapStep] | None


@dataclass(frozen=True, slots=True)
class HapProgram:
    """Operators with the steps through them, in order. seconds: HAP's price. states: how many were priced."""

    seconds: float
    steps: tuple[tuple[HapOperator, HapStep], ...]
    states: int

    @property
    def compute_s(self) -> float:
        return sum(step.compute_s for _, step in self.steps)

    @property
    def exchange_s(self) -> float:
        """Of loads too."""
        return self.seconds - self.compute_s


def cheapest(graph: HapGraph, prices: HapPrices, vectors: VectorFor = VectorFor.PROGRAM) -> HapProgram:
    """The optimum of the stated space."""
    search = _Search(graph, prices, vectors)
    for operator in graph.operators:
        search.take(operator)
    return search.best()


class _Search:
    """front: the cheapest way to each state. live: the values whose entries a state holds, in order."""

    def __init__(self, graph: HapGraph, prices: HapPrices, vectors: VectorFor) -> None:
        self.graph = graph
        self.prices = prices
        self.vectors = vectors
        self.live: list[HapValue] = []
        self.left = {value.number: value.readers for value in graph.values}
        self.segment = 0
        self.states = 0
        self.alike: dict[tuple[object, ...], HapSteps] = {}
        begun = range(len(prices.vectors)) if vectors is not VectorFor.TENSOR else (None,)
        self.front: dict[HapState, tuple[float, HapChain]] = {(vector, ()): (0.0, None) for vector in begun}

    def take(self, operator: HapOperator) -> None:
        """All states behind an operator."""
        if operator.segment != self.segment:
            self._begin_segment(operator.segment)
        operands = tuple(dict.fromkeys(value for value in operator.inputs if value.leaf is None))
        steps = self._steps(operator, operands)
        chosen = [self.live.index(value) for value in operands]
        others = [place for place in range(len(self.live)) if place not in chosen]
        picked, rest = picker(chosen), picker(others)
        self.live = [self.live[place] for place in others]
        self.live += [operands[place] for place in steps.survivors]
        self.live += [operator.outputs[place] for place in steps.live_results]
        front: dict[HapState, tuple[float, HapChain]] = {}
        for (vector, entries), (seconds, chain) in self.front.items():
            kept = rest(entries)
            for step in steps.through(vector, picked(entries)):
                state = vector, kept + step.kept
                total = seconds + step.seconds
                old = front.get(state)
                if old is None or total < old[0]:
                    front[state] = total, (chain, step)
        self.front = front
        self.states += len(front)
        if not front:
            raise no_program(operator)

    def best(self) -> HapProgram:
        """Of the programs that leave the loss as a pending sum."""
        operators = self.graph.operators
        finished = [found for state, found in self.front.items() if state[1] == (fresh(PENDING),)]
        if not finished:
            raise no_program(operators[-1])
        seconds, chain = min(finished, key=itemgetter(0))
        steps: list[HapStep] = []
        while chain is not None:
            chain, step = chain
            steps.append(step)
        return HapProgram(seconds, tuple(zip(operators, reversed(steps), strict=True)), self.states)

    def _begin_segment(self, segment: int) -> None:
        """Each segment chooses its vector anew."""
        self.segment = segment
        if self.vectors is not VectorFor.SEGMENT:
            return
        cheapest: dict[tuple[HapEntry, ...], tuple[float, HapChain]] = {}
        for (_, entries), found in self.front.items():
            if entries not in cheapest or found[0] < cheapest[entries][0]:
                cheapest[entries] = found
        vectors = range(len(self.prices.vectors))
        self.front = {(one, entries): found for entries, found in cheapest.items() for one in vectors}

    def _steps(self, operator: HapOperator, operands: tuple[HapValue, ...]) -> HapSteps:
        """Shared by operators that are alike."""
        for value in operator.inputs:
            self.left[value.number] -= 1
        survivors = tuple(place for place, value in enumerate(operands) if self.left[value.number])
        crossing = frozenset(
            place
            for place, value in enumerate(operator.inputs)
            if value.leaf is None and value.segment != operator.segment
        )
        if self.vectors is VectorFor.PROGRAM:
            crossing = frozenset()
        results = tuple(place for place, value in enumerate(operator.outputs) if value.readers)
        places = tuple(-1 if value.leaf else operands.index(value) for value in operator.inputs)
        traits = tuple((value.shape, value.leaf, value.exchangeable) for value in operator.inputs)
        key = id(operator.rule), survivors, crossing, results, places, traits
        if key not in self.alike:
            self.alike[key] = HapSteps(operator, self.prices, operands, survivors, crossing, results)
        return self.alike[key]


def picker(places: list[int]) -> Callable[[tuple[HapEntry, ...]], tuple[HapEntry, ...]]:
    """The entries at some places, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return (lambda entries: (entries[places[0]],)) if places else (lambda entries: ())


def no_program(operator: HapOperator) -> RuleMissing:
    return RuleMissing(
        f"HAP has no program for {operator.kind}",
        at=operator.at.text() if operator.at else "",
        rule="an operator runs in a placement that its operands have, or get by one exchange",
    )
