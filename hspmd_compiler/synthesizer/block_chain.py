"""One search per kind of block: blocks with the same steps lead from the same states to the same states."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from .dynamic_program import Chain, Front, Frontier, Key, links, picker
from .priced_steps import StepChoice
from .space.regions import StepRegion


class Passage(NamedTuple):
    """Through a block, from a state to another. again: whether it is computed again in backward. first: of
    the steps of the block that was searched."""

    before: Key
    after: Key
    chain: Chain
    again: bool
    first: int

    def choices(self, first: int) -> list[Choice]:
        """Of a block like it whose steps begin at `first`, in order."""
        shift = first - self.first
        return [
            (place + shift, chosen, self.again)
            for half in links(self.chain)
            for region in links(half)
            for place, chosen in links(region)
        ]


Exits = tuple[tuple[Passage, float], ...]
"""(passage, price) from one state before a block to each behind it."""
Choice = tuple[int, StepChoice, bool]
"""(place of the step, what was chosen, whether it is computed again)."""


@dataclass(slots=True)
class BlockChain:
    """The walk as blocks, each of which is searched once for each way to hold what it touches.

    recompute: whether layers may be computed again. exits: per block, by the state before it.
    """

    frontier: Frontier
    blocks: list[tuple[int, int]]
    regions: list[StepRegion]
    kinds: list[int]
    layered: list[bool]
    recompute: bool = False
    templates: bool = True
    exits: list[dict[Key, Exits]] = field(default_factory=list)
    fronts: list[Front] = field(default_factory=list)
    _known: dict[Hashable, Exits] = field(default_factory=dict)
    _among: dict[Hashable, dict[Key, Exits]] = field(default_factory=dict)

    def run(self) -> Front:
        """From nothing to the loss."""
        front: Front = {(): (0.0, None)}
        for number in range(len(self.blocks)):
            self.fronts.append(front)
            front = self._block(number, front)
        return front

    def least_from(self, number: int, front: Front) -> float | None:
        """The least price from these states before a block to the end; None where none gets there."""
        for later in range(number, len(self.blocks)):
            front, _ = self._through(later, front)
        return min((price for price, _ in front.values()), default=None)

    def _block(self, number: int, front: Front) -> Front:
        front, exits = self._through(number, front)
        self.exits.append(exits)
        return front

    def _through(self, number: int, front: Front) -> tuple[Front, dict[Key, Exits]]:
        """To the states behind a block, and how each before it gets there."""
        exits: dict[Key, Exits] = {}
        known = self._states(number)
        made: Front = {}
        for key, (price, chain) in front.items():
            found = known.get(key)
            if found is None:
                found = known[key] = self._exits(number, key)
            exits[key] = found
            for passage, more in found:
                total = price + more
                old = made.get(passage.after)
                if old is None or total < old[0]:
                    made[passage.after] = (total, (chain, passage))
        return made, exits

    def _states(self, number: int) -> dict[Key, Exits]:
        """Exits that are known of blocks like it, among as many live values in the same places."""
        region = self.regions[number]
        kind = self.kinds[number] if self.templates else ("block", number)
        return self._among.setdefault((kind, region.take, region.keep), {})

    def _exits(self, number: int, key: Key) -> Exits:
        """Of a state, from those of what the block touches."""
        region = self.regions[number]
        rest = picker(region.keep)(key)
        return tuple(
            (passage._replace(before=key, after=rest + passage.after), price)
            for passage, price in self._touched(number, picker(region.take)(key))
        )

    def _touched(self, number: int, held: Key) -> Exits:
        kind = (self.kinds[number], held)
        if not self.templates:
            return self._searched(number, held)
        if kind not in self._known:
            self.frontier.stats["templates"] += 1
            self._known[kind] = self._searched(number, held)
        return self._known[kind]

    def _searched(self, number: int, held: Key) -> Exits:
        first, _ = self.blocks[number]
        best: dict[Key, tuple[Passage, float]] = {}
        for again in (False, True) if self.recompute and self.layered[number] else (False,):
            front = self.frontier.run(self.regions[number].parts, {held: (0.0, None)}, recomputed=again)
            for after, (price, chain) in front.items():
                if after not in best or price < best[after][1]:
                    best[after] = (Passage(held, after, chain, again, first), price)
        return tuple(best.values())

    def to_go(self) -> list[dict[Key, float]]:
        """The least price from each state before each block to the end, and from the states at the end."""
        last = {passage.after: 0.0 for found in self.exits[-1].values() for passage, _ in found}
        prices = [last]
        for exits in reversed(self.exits):
            behind = prices[-1]
            prices.append(
                {
                    key: min(
                        more + behind[passage.after] for passage, more in found if passage.after in behind
                    )
                    for key, found in exits.items()
                    if any(passage.after in behind for passage, _ in found)
                }
            )
        return prices[::-1]
