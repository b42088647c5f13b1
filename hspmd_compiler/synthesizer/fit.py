"""A program that fits the memory of its machines: bytes get a price until the cheapest program fits.

Variables: a price of a byte on each lane. The cheapest price at any prices of bytes, less what all memory
costs at these, is a bound on every program that fits (Lagrange); the bound kept is the greatest seen. Prices
are where the lines of a program that holds too much and of one that fits cross, until no program lies below.
Then both are optimal at that price; blocks of the first, as many as fit, go before blocks of the second. A
search of a machine that is cut in groups in another way begins around the price that the last one ended at:
as a rule it is that of the same gathers and recomputed layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .block_chain import BlockChain, Choice, Passage
from .found import FoundChoices
from .hidden_sums import HiddenSums, StepSeconds
from .machine import SearchMachine
from .nothing_fits import refused
from .options import MemoryPrices
from .param_prices import ZERO_STATE
from .priced_steps import PricedSteps
from .space.search_space import SearchSpace

CUTS, DEAR, REWEIGHTED = 10, 1e4, 4
"""Most prices that are tried; how many times a step's seconds all memory costs when only memory counts; how
often lanes are weighted anew when some still hold too much."""
ALIKE = 1e-9
AROUND = 0.05
"""How far from a price that is known two others are, between which a like machine's is looked for."""


@dataclass(frozen=True, slots=True)
class BlockPart:
    """Of a block in a program. step_s: with all sums of gradients, one after the other; weighted_s: as it was
    searched. sums: by place in the block. zero: the greatest level."""

    step_s: float
    weighted_s: float
    held: tuple[float, ...]
    sums: tuple[StepSeconds, ...]
    zero: int

    @classmethod
    def of(cls, priced: PricedSteps, choices: Sequence[Choice], first: int) -> BlockPart:
        """choices: of the block whose first step this is."""
        made = FoundChoices(priced, choices)
        step_s, held = made.totals()
        weighted_s = step_s
        for place, sums_s, backward_s in made.sums:
            weight = priced.weight(place)
            weighted_s -= (1.0 - weight.sums) * sums_s + weight.backward * backward_s
        sums = tuple(one._replace(place=one.place - first) for one in made.sums)
        return cls(step_s, weighted_s, held, sums, made.zero)


@dataclass(slots=True)
class FoundAt:
    """The cheapest program at some prices of bytes. price: with bytes. seconds: without. held: by lane.
    hidden: which sums a backward pass hides; seconds are of the weights that were searched with, `step_s`
    is what it takes."""

    priced: PricedSteps
    chain: BlockChain
    passages: list[Passage]
    price: float
    parts: list[BlockPart]
    hidden: HiddenSums
    _exposed: list[float] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        priced: PricedSteps,
        chain: BlockChain,
        passages: list[Passage],
        price: float,
        hidden: HiddenSums,
    ) -> FoundAt:
        """With seconds and bytes of each block; blocks that are alike are summed once."""
        known: dict[object, BlockPart] = {}
        parts = []
        for number, passage in enumerate(passages):
            key = (chain.kinds[number], id(passage.chain), passage.again)
            if key not in known:
                first = chain.blocks[number][0]
                known[key] = BlockPart.of(priced, passage.choices(first), first)
            parts.append(known[key])
        return cls(priced, chain, passages, price, parts, hidden)

    @property
    def seconds(self) -> float:
        """Of a step, by the weights of sums."""
        return sum(part.weighted_s for part in self.parts)

    @property
    def series_s(self) -> float:
        """Of a step without the sums that could be hidden."""
        return sum(part.step_s - sum(one.sums_s for one in part.sums) for part in self.parts)

    @property
    def exposed(self) -> list[float]:
        """By run of gradients what is left of the sums, if that is the run that is waited for."""
        if not self._exposed:
            blocks = zip(self.parts, self.chain.blocks, strict=True)
            every = [
                one._replace(place=first + one.place) for part, (first, _) in blocks for one in part.sums
            ]
            self._exposed = self.hidden.exposed(every)
        return self._exposed

    @property
    def waited(self) -> int:
        """The run that is waited for."""
        return max(range(len(self.exposed)), key=self.exposed.__getitem__)

    @property
    def step_s(self) -> float:
        """Of a step."""
        if not self.hidden.hides or max(part.zero for part in self.parts) > ZERO_STATE:
            return sum(part.step_s for part in self.parts)
        return self.series_s + max(0.0, *self.exposed)

    @property
    def held(self) -> list[float]:
        """Bytes on each lane."""
        return [sum(sizes) for sizes in zip(*(part.held for part in self.parts), strict=True)]

    @property
    def over(self) -> float:
        """By how much the worst lane's memory is exceeded, as a part of it."""
        lanes = self.priced.prices.machine.lanes
        return max(size / lane.capacity_bytes - 1 for size, lane in zip(self.held, lanes, strict=True))

    def choices(self) -> list[Choice]:
        """All, in order."""
        blocks = self.chain.blocks
        return [
            choice
            for number, passage in enumerate(self.passages)
            for choice in passage.choices(blocks[number][0])
        ]


@dataclass(slots=True)
class Fitting:
    """at: the search at prices of bytes. first: the cheapest program, which does not fit.

    near: seconds that all memory may cost, from a search like this one; 0: nothing is known. rate: what it
    cost in the end.
    """

    machine: SearchMachine
    space: SearchSpace
    at: Callable[[MemoryPrices], FoundAt]
    first: FoundAt
    near: float = 0.0
    bound_s: float = 0.0
    rate: float = 0.0
    weights: list[float] = field(default_factory=list)

    def run(self) -> FoundAt:
        """The cheapest found that fits; NothingFits where none does."""
        self.bound_s = self.first.seconds
        excess = self._shares(self.first)
        self.weights = [float(one == max(excess)) for one in excess]
        over, fits = self._started()
        best = fits
        for _ in range(CUTS):
            room = self._measure(over) - self._measure(fits)
            if room <= 0 or fits.seconds <= over.seconds:
                break
            rate = (fits.seconds - over.seconds) / room
            found = self._at(rate)
            crossing = over.seconds + rate * self._measure(over)
            if found.price >= crossing * (1 - ALIKE):
                break
            if found.over <= 0:
                fits, self.rate = found, rate
                best = min(best, fits, key=lambda one: one.seconds)
            else:
                over = found
        return min(best, self._mixed(over, fits), key=lambda one: one.seconds)

    def _started(self) -> tuple[FoundAt, FoundAt]:
        """A program that holds too much and one that fits: around a price that is known, else far apart."""
        high = self._at(self.near * (1 + AROUND)) if self.near else self.first
        if high.over > 0:
            return self.first, self._least()
        self.rate = self.near * (1 + AROUND)
        low = self._at(self.near * (1 - AROUND))
        if low.over > 0:
            return low, high
        self.rate = self.near * (1 - AROUND)
        return self.first, low

    def _least(self) -> FoundAt:
        """A program that fits if only memory counts."""
        least = self.first
        self.rate = DEAR * self.first.seconds
        for _ in range(REWEIGHTED):
            found = self._at(self.rate)
            least = min(least, found, key=lambda one: one.over)
            if found.over <= 0:
                return found
            shares = self._shares(found)
            self.weights = [
                max(weight, float(share > 1)) * share
                for weight, share in zip(self.weights, shares, strict=True)
            ]
        raise refused(tuple(map(round, least.held)), self.machine, self.space)

    def _at(self, rate: float) -> FoundAt:
        """rate: seconds of all memory, on all lanes that count."""
        total = sum(self.weights)
        self.weights = [weight / total for weight in self.weights]
        per_byte = tuple(
            rate * weight / lane.capacity_bytes
            for weight, lane in zip(self.weights, self.machine.lanes, strict=True)
        )
        found = self.at(MemoryPrices(per_byte))
        self.bound_s = max(self.bound_s, found.price - rate)
        return found

    def _shares(self, found: FoundAt) -> list[float]:
        lanes = self.machine.lanes
        return [size / lane.capacity_bytes for size, lane in zip(found.held, lanes, strict=True)]

    def _measure(self, found: FoundAt) -> float:
        """What is held, as a part of all memory, by the weights of lanes."""
        return sum(w * share for w, share in zip(self.weights, self._shares(found), strict=True))

    def _mixed(self, over: FoundAt, fits: FoundAt) -> FoundAt:
        """Blocks of a program that holds too much, as many as fit, before those of one that fits."""
        best = fits
        for number in range(1, len(fits.passages)):
            if over.passages[number - 1].after != fits.passages[number - 1].after:
                continue
            made = FoundAt(
                fits.priced,
                fits.chain,
                over.passages[:number] + fits.passages[number:],
                fits.price,
                over.parts[:number] + fits.parts[number:],
                fits.hidden,
            )
            if made.over <= 0 and made.seconds < best.seconds:
                best = made
        return best
