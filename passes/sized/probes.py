"""At which sizes a strategy with `sizes` is compiled: two small ones, and the end of the range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import gcd
from random import Random

from ...errors import StrategyError
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Count, MicroSizes
from ...program.sized.step_plan import StepPlan
from ...strategy.strategy import Strategy
from .explain import explainer_of
from .shared_probes import drawn_ring, least_row, member_tokens

LEAST = 11
"""The first probe, unless the range, or cuts into many pieces, ask for more."""
TRIES = 64
PRIMES = 2 * 3 * 5 * 7 * 11 * 13
COUNTS = {Count.TOKENS: (4, 5, 3), Count.SAMPLES: (3, 4, 3)}
"""Micro-batches of the first pipeline at each probe. The others have 2, at no probe as many: what is done
only where all have as many, as gathers of parameters inside a step, is done at none. Rows are odd at one end.
"""
Cuts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """One compile. strategy: with the micro-batches of `plan`. cuts: tokens per rank, by degree, of rows that
    one pipeline has."""

    plan: StepPlan
    strategy: Strategy
    tokens: int
    cuts: Mapping[int, tuple[int, ...]]

    def cuts_of(self, pipeline: int) -> dict[int, tuple[int, ...]]:
        """Of what a pipeline runs, which may be a piece of a row."""
        return {len(cut): cut for cut in self.plan.pipelines[pipeline][0].cuts}


def probes_of(strategy: Strategy, unit: Count, low: int, high: int) -> list[Probe]:
    """The compiles; a StrategyError where the range has too few sizes to tell sums of pieces apart."""
    degrees = degrees_of(strategy, unit)
    least = max(low, least_size(strategy, degrees))
    for attempt, one in enumerate(_first_sizes(least, high)):
        two = one + one // 2 + 2 + (one + attempt) % 2
        if two >= high and attempt:
            continue
        sizes = [size for size in (one, two) if size < high] + [high]
        if len(sizes) < 3:
            sizes = sorted({max(low, 1), (low + high) // 2, high})
        drawn = Random(attempt)
        made = [_probe(strategy, unit, size, degrees, number, drawn) for number, size in enumerate(sizes)]
        if len(made) == 3 and None not in made:
            found = [each for each in made if each is not None]
            if not coincidences(found, strategy, unit, degrees):
                return found
    raise StrategyError(
        "the range of sizes is too short",
        details=[
            (f"sizes.{unit.value}", f"[{low}, {high}]"),
            ("cuts", ", ".join(map(str, degrees)) or "none"),
        ],
        rule="numbers that vary are told apart by compiles at three sizes of the range",
        fix=f"end the range later, above {2 * least + 4}, or give micro-batches of one size without `sizes`",
    )


def _first_sizes(least: int, high: int) -> Iterator[int]:
    """Sizes to begin with: those that leave other rests than `high` go first. Code that rounds to a multiple,
    or asks for a rest, does not do the same at both ends then."""
    every = range(least, least + 2 * TRIES)
    yield from sorted(every, key=lambda size: gcd(high - size, PRIMES) != 1)


def coincidences(
    probes: Sequence[Probe], strategy: Strategy, unit: Count, degrees: Sequence[int]
) -> list[tuple[str, str]]:
    """Sizes that the probes do not tell apart: of one pipeline that shares no rows, or of a member."""
    plans = [probe.plan for probe in probes]
    alone = [(each,) for each in range(len(strategy.pipelines)) if strategy.context_of(each) is None]
    for group in (*alone[:1], *groups_of(strategy)):
        for pipeline in group:
            found = explainer_of(plans, unit, degrees, group, pipeline).coincidences()
            if found:
                return found
    return []


def groups_of(strategy: Strategy) -> tuple[tuple[int, ...], ...]:
    """Pipelines that share rows, members in the order of their tokens."""
    return tuple(spec.pipelines for spec in strategy.context)


def least_size(strategy: Strategy, degrees: Sequence[int]) -> int:
    """Of the first probe at least: room for cuts, and for pieces of rows."""
    weights = len(_boundaries(degrees)) + 1
    one = max(LEAST, 2 * weights * (weights + 1) // 2)
    return max([one, *(least_row(spec, one) for spec in strategy.context)])


def range_of(strategy: Strategy, unit: Count, low: int, high: int, probes: Sequence[Probe]) -> SizeRange:
    """What the sized program says of itself."""
    return SizeRange(
        unit,
        low,
        high,
        tuple(probe.plan for probe in probes),
        tuple(len(pipeline.stages) for pipeline in strategy.pipelines),
        strategy.schedule,
        degrees_of(strategy, unit),
        groups_of(strategy),
        shares_of(strategy),
    )


def shares_of(strategy: Strategy) -> tuple[float, ...]:
    """Samples of a step by pipeline, as if sizes did not vary; a member has its part of its group's."""
    found = []
    for number, pipeline in enumerate(strategy.pipelines):
        spec, part = strategy.context_of(number), 1.0
        if spec is not None:
            weights = spec.lengths or (1,) * len(spec.pipelines)
            part = weights[spec.pipelines.index(number)] / sum(weights)
        found.append(pipeline.batch_size * strategy.accumulation * part)
    return tuple(found)


def degrees_of(strategy: Strategy, unit: Count) -> tuple[int, ...]:
    """Into how many pieces stages cut the tokens of a micro-batch."""
    if unit is not Count.TOKENS or not strategy.sequence_parallel:
        return ()
    return tuple(sorted({stage.tp for each in strategy.pipelines for stage in each.stages if stage.tp > 1}))


def _probe(
    strategy: Strategy, unit: Count, size: int, degrees: Sequence[int], number: int, drawn: Random
) -> Probe | None:
    """One of them; None where the size is too small for its cuts. All have unlike micro-batches."""
    cuts, shared = cuts_of(size, degrees, number), shared_micros(strategy, size, degrees, number, drawn)
    if cuts is None or shared is None:
        return None
    samples, tokens = (1, size) if unit is Count.TOKENS else (size, 0)
    firsts: list[int] = []
    micros: list[tuple[MicroSizes, ...]] = []
    end = 0
    for index, head in enumerate(strategy.own_rows):
        count = COUNTS[unit][number] if head == strategy.own_rows[0] else 2
        firsts.append(end if head == index else firsts[head])
        end += size * count if head == index else 0
        one = shared.get(index, MicroSizes(samples, tokens, tuple(cuts.values())))
        micros.append(tuple(replace(one, first=firsts[index] + size * at) for at in range(count)))
    pipelines = [
        replace(each, micro_batches=(samples,) * len(own))
        for each, own in zip(strategy.pipelines, micros, strict=True)
    ]
    probed = replace(strategy, pipelines=tuple(pipelines), accumulation=1)
    return Probe(StepPlan(tuple(micros)), probed, tokens, cuts)


def shared_micros(
    strategy: Strategy, size: int, degrees: Sequence[int], number: int, drawn: Random
) -> dict[int, MicroSizes] | None:
    """What members of groups run of a row; None where it is too short."""
    made: dict[int, MicroSizes] = {}
    for spec in strategy.context:
        ring = drawn_ring(size, spec, drawn)
        if ring is None:
            return None
        for pipeline, tokens in zip(spec.pipelines, member_tokens(ring, len(spec.pipelines)), strict=True):
            cuts = cuts_of(tokens, degrees, number)
            if cuts is None:
                return None
            made[pipeline] = MicroSizes(1, tokens, tuple(cuts.values()), ring)
    return made


def cuts_of(size: int, degrees: Sequence[int], number: int) -> dict[int, tuple[int, ...]] | None:
    """Pieces that are pairwise unlike, boundaries of all degrees in the order of those of even cuts."""
    boundaries = _boundaries(degrees)
    weights = list(_weights(len(boundaries) + 1, number))
    ends: dict[tuple[int, int], int] = {}
    whole, before, last = sum(weights), 0, 0
    for (_, degree, part), weight in zip(boundaries, weights, strict=False):
        before += weight
        last = max(last + 1, size * before // whole)
        ends[degree, part] = last
    if last >= size:
        return None
    made = {}
    for degree in degrees:
        edges = [0, *(ends[degree, part] for part in range(1, degree)), size]
        pieces = tuple(high - low for low, high in pairwise(edges))
        if len(set(pieces)) < degree:
            return None
        made[degree] = pieces
    return made


def _boundaries(degrees: Sequence[int]) -> list[tuple[Fraction, int, int]]:
    return sorted((Fraction(part, degree), degree, part) for degree in degrees for part in range(1, degree))


def _weights(count: int, number: int) -> Iterator[int]:
    """1 to `count` in an order of each probe's own: sums of few of them are unlike."""
    step = next(step for step in (7, 5, 3, 11, 13, 17) if count % step) if count > 1 else 1
    order = sorted(range(count), key=lambda at: ((at + 1) * step + number * (at % 3)) % (count + 1 + number))
    yield from (1 + order.index(at) for at in range(count))
