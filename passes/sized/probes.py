"""At which sizes a strategy with `sizes` is compiled: two small ones, and the end of the range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from ...errors import StrategyError
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Count, MicroSizes
from ...program.sized.step_plan import StepPlan
from ...strategy.strategy import Strategy
from .explain import Explainer

LEAST = 11
"""The first probe, unless the range, or cuts into many pieces, ask for more."""
TRIES = 64
Cuts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """One compile. strategy: with the micro-batches of `plan`. cuts: tokens per rank, by degree."""

    plan: StepPlan
    strategy: Strategy
    tokens: int
    cuts: Mapping[int, tuple[int, ...]]


def probes_of(strategy: Strategy, unit: Count, low: int, high: int) -> list[Probe]:
    """The compiles; a StrategyError where the range has too few sizes to tell sums of pieces apart."""
    degrees = degrees_of(strategy, unit)
    weights = len(_boundaries(degrees)) + 1
    least = max(low, LEAST, 2 * weights * (weights + 1) // 2)
    for attempt in range(TRIES):
        one = least + 2 * attempt
        two = one + one // 2 + 2 + (one + attempt) % 2
        if two >= high and attempt:
            break
        sizes = [size for size in (one, two) if size < high] + [high]
        if len(sizes) < 3:
            sizes = sorted({max(low, 1), (low + high) // 2, high})
        made = [_probe(strategy, unit, size, degrees, number) for number, size in enumerate(sizes)]
        if len(made) == 3 and None not in made:
            found = [each for each in made if each is not None]
            if not coincidences(found, unit, degrees):
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


def coincidences(probes: Sequence[Probe], unit: Count, degrees: Sequence[int]) -> list[tuple[str, str]]:
    """Sizes that the probes do not tell apart."""
    micros = [probe.plan.pipelines[0][0] for probe in probes]
    return Explainer(micros, [probe.plan.total(unit) for probe in probes], unit, degrees).coincidences()


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
    )


def degrees_of(strategy: Strategy, unit: Count) -> tuple[int, ...]:
    """Into how many pieces stages cut the tokens of a micro-batch."""
    if unit is not Count.TOKENS or not strategy.sequence_parallel:
        return ()
    return tuple(sorted({stage.tp for each in strategy.pipelines for stage in each.stages if stage.tp > 1}))


def _probe(strategy: Strategy, unit: Count, size: int, degrees: Sequence[int], number: int) -> Probe | None:
    """One of them; None where the size is too small for its cuts. All have unlike micro-batches."""
    cuts = cuts_of(size, degrees, number)
    if cuts is None:
        return None
    packed = unit is Count.TOKENS
    samples, tokens = (1, size) if packed else (size, 0)
    counts = [2 + number * (index == 0) for index in range(len(strategy.pipelines))]
    micros: list[tuple[MicroSizes, ...]] = []
    first = 0
    for count in counts:
        own = [
            MicroSizes(samples, tokens, tuple(cuts.values()), (), first + size * at) for at in range(count)
        ]
        micros.append(tuple(own))
        first += size * count
    pipelines = [
        replace(each, micro_batches=(samples,) * count)
        for each, count in zip(strategy.pipelines, counts, strict=True)
    ]
    probed = replace(strategy, pipelines=tuple(pipelines), accumulation=1)
    return Probe(StepPlan(tuple(micros)), probed, tokens, cuts)


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
