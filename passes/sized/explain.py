"""What a number that differs between probes is: a Size, the only one that gives it at every probe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from ...program.sized.sizes import RING, Count, MicroSizes, Size
from ...program.sized.step_plan import StepPlan

Numbers = tuple[int, ...]
PLUS = (0, 1, -1, 2)


class AmbiguousSize(Exception):
    """Several sizes give the same numbers at all probes."""


@dataclass(slots=True)
class Explainer:
    """Explains numbers of one pipeline. micros: its micro-batch at each probe.

    totals: what its graph has for what ALL counts; none: no number counts that. member, members: its place
    among the pipelines that share its rows, and their number.
    """

    micros: Sequence[MicroSizes]
    totals: Sequence[int]
    unit: Count
    degrees: Sequence[int]
    member: int = 0
    members: int = 1
    forms: list[tuple[Size, Numbers]] = field(init=False)
    known: dict[Numbers, Size | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = [Size(1, self.unit), *([Size(1, Count.ALL)] if self.totals else [])]
        for degree in self.degrees:
            runs = combinations(range(degree + 1), 2)
            sizes += [Size(1, Count.TOKENS, degree, *run) for run in runs if run != (0, degree)]
        if self.micros[0].ring:
            sizes += ring_sizes(self.member, self.members, len(self.micros[0].ring))
        self.forms = [(size, self._numbers(size)) for size in sizes]

    def _numbers(self, size: Size) -> Numbers:
        totals = self.totals or [0] * len(self.micros)
        return tuple(size.at(micro, total) for micro, total in zip(self.micros, totals, strict=True))

    def size(self, numbers: Numbers) -> Size | None:
        """The size with these numbers; None: there is none. AmbiguousSize: there are several."""
        if numbers not in self.known:
            found = list(self._found(numbers)) or list(self._differences(numbers))
            if len(found) > 1:
                raise AmbiguousSize(f"{list(numbers)}: {', '.join(each.text for each in found)}")
            self.known[numbers] = found[0] if found else None
        return self.known[numbers]

    def _found(self, numbers: Numbers) -> Iterator[Size]:
        for size, at in self.forms:
            for plus in PLUS:
                factor, left = divmod(numbers[0] - plus, at[0])
                if (
                    factor
                    and not left
                    and all(factor * each + plus == wanted for each, wanted in zip(at, numbers, strict=True))
                ):
                    minus = None if size.minus is None else replace(size.minus, factor=factor)
                    yield replace(size, factor=factor, plus=plus, minus=minus)

    def _differences(self, numbers: Numbers) -> Iterator[Size]:
        """Between unlike cuts, what lies between a boundary of the one and a boundary of the other."""
        starts = [(size, at) for size, at in self.forms if size.parts > 0 and size.low == 0]
        starts += [form for form in self.forms if form[0].of is Count.TOKENS and not form[0].parts]
        for (size, at), (less, below) in ((one, two) for one in starts for two in starts):
            apart = [high - low for high, low in zip(at, below, strict=True)]
            if size.parts != less.parts and apart[0] and not numbers[0] % apart[0]:
                factor = numbers[0] // apart[0]
                if factor > 0 and all(factor * gap == each for gap, each in zip(apart, numbers, strict=True)):
                    yield replace(size, factor=factor, minus=replace(less, factor=factor))

    def coincidences(self) -> list[tuple[str, str]]:
        """Sizes that some factors and small constants make equal at all probes: which one would be meant?"""
        found = []
        for (one, left), (two, right) in combinations(self.forms, 2):
            shifted = ((low, high) for low in PLUS for high in PLUS)
            if any(_proportional(left, right, low, high) for low, high in shifted):
                found.append((one.text, two.text))
        return found


def explainer_of(
    plans: Sequence[StepPlan],
    unit: Count,
    degrees: Sequence[int],
    group: Sequence[int],
    pipeline: int,
    counts_all: bool = True,
) -> Explainer:
    """Of a pipeline. plans: of the probes. group: the pipelines that share its rows, itself where none do.

    counts_all: a number may be that of all tokens of a step.
    """
    micros = [plan.pipelines[pipeline][0].shape for plan in plans]
    pairs = zip(plans, micros, strict=True) if counts_all else ()
    totals = [_traced_total(plan, micro, unit) for plan, micro in pairs]
    return Explainer(micros, totals, unit, degrees, list(group).index(pipeline), len(group))


def _traced_total(plan: StepPlan, micro: MicroSizes, unit: Count) -> int:
    """What `Count.ALL` is in the graph by which a pipeline is laid out: all rows have its own tokens."""
    return plan.total(unit) if unit is Count.SAMPLES else micro.tokens * sum(map(len, plan.pipelines))


def ring_sizes(member: int, members: int, pieces: int) -> list[Size]:
    """Runs of pieces of a row that is shared, and both pieces of each member; but what is all of one's own,
    which is its tokens."""
    runs = [Size(1, Count.TOKENS, RING, *run) for run in combinations(range(pieces + 1), 2)]
    if pieces == members:
        return [size for size in runs if (size.low, size.high) != (member, member + 1)]
    both = [
        Size(1, Count.TOKENS, RING, other, pieces - other, minus=between)
        for other in range(members - 1)
        if other != member
        for between in [Size(1, Count.TOKENS, RING, other + 1, pieces - other - 1)]
    ]
    inner = (members - 1, members + 1) if member == members - 1 else None
    return [size for size in runs if (size.low, size.high) != inner] + both


def _proportional(left: Numbers, right: Numbers, low: int, high: int) -> bool:
    """Whether f * left + low = g * right + high has a solution in f and g, beside none of both."""
    shift = high - low
    for factor in range(1, 5):
        other, rest = divmod(factor * left[0] - shift, right[0])
        fits = (factor * a - shift == other * b for a, b in zip(left, right, strict=True))
        if other > 0 and not rest and all(fits):
            return True
    return False
