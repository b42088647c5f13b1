"""HAP's program and ratios together, at the optimum of its space.

Without parameters that are gathered at use a price is linear in the largest compute share and the largest
slice, so one search over the vertices of `ratios.vertices` is the proven optimum over all ratios and
programs; HAP's alternation of search and linear program can end above it. With them (extra_ps) an operator
may exchange an activation and gather a parameter in one term, whose slices follow two vectors: the price is
then a maximum of sums, and search and linear program take turns from several starts, HAP's own among them.
With a vector for each segment or tensor: the optimum over the vertices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..ratios import LinearForm, RatioProblem, Vector, solve, vertices
from .costs import HapMachine, HapPrices
from .operators import HapGraph, HapOperator, is_cut
from .search import HapProgram, VectorFor, cheapest
from .transitions import HapStep, decisive_cut

CLOSER = 1e-12
"""A round that gains less, relatively, is the last."""


@dataclass(frozen=True, slots=True)
class HapPlan:
    """A program with the ratios that it was priced with. rounds: searches that were made."""

    program: HapProgram
    prices: HapPrices
    vectors_for: VectorFor
    rounds: int

    @property
    def seconds(self) -> float:
        return self.program.seconds

    @property
    def rounded_s(self) -> float:
        """Seconds of the same program with slices of whole lengths."""
        prices = replace(self.prices, whole=True)
        return sum(step_s(prices, operator, step) for operator, step in self.program.steps)

    @property
    def used(self) -> tuple[Vector, ...]:
        """The vectors that cuts of the program follow, in the order of their first use."""
        found = dict.fromkeys(step.vector for _, step in self.program.steps if has_cuts(step))
        return tuple(self.prices.vectors[vector] for vector in found)


def has_cuts(step: HapStep) -> bool:
    return any(map(is_cut, (*step.alternative.needs, *step.alternative.gives)))


def plan_hap(
    graph: HapGraph,
    machine: HapMachine,
    vectors_for: VectorFor = VectorFor.PROGRAM,
    extra_ps: bool = False,
    free_ones: bool = True,
    whole: bool = False,
) -> HapPlan:
    """The cheapest program with its ratios. extra_ps: whole parameters lie in slices, gathered at use."""
    start = HapPrices(machine, corners(machine), machine.even if extra_ps else None, free_ones, whole)
    found = HapPlan(cheapest(graph, start, vectors_for), start, vectors_for, 1)
    if not extra_ps or whole or len(machine.kinds) == 1:
        return found
    one = (
        found if vectors_for is VectorFor.PROGRAM else HapPlan(cheapest(graph, start), start, vectors_for, 1)
    )
    begun = replace(start, vectors=(machine.proportional,), parameters=machine.proportional)
    others = [one, HapPlan(cheapest(graph, begun), begun, vectors_for, 1)]
    ended = [in_turns(graph, other) for other in others]
    best = min((found, *ended), key=lambda plan: plan.seconds)
    return replace(best, rounds=found.rounds + sum(plan.rounds for plan in ended))


def step_s(prices: HapPrices, operator: HapOperator, step: HapStep) -> float:
    """Seconds of a step of a program at other prices than it was found by."""
    by = decisive_cut(operator, step.placements) if step.alternative.shared else None
    return prices.compute(operator.rule.flops, by) + max(total(prices, operator, step), default=0.0)


def corners(machine: HapMachine) -> tuple[Vector, ...]:
    """The vertices by kind of device."""
    speeds = [speed for speed, count in machine.kinds for _ in range(count)]
    firsts = [speeds.index(speed) for speed, _ in machine.kinds]
    return tuple(tuple(vector[first] for first in firsts) for vector in vertices(speeds))


def in_turns(graph: HapGraph, plan: HapPlan) -> HapPlan:
    """Ratios for the program, a program for the ratios, until neither is cheaper."""
    while True:
        vectors = solve(problem(plan))
        if vectors is None:
            return plan
        cuts, parameters = vectors
        prices = replace(plan.prices, vectors=(cuts,), parameters=parameters)
        found = HapPlan(cheapest(graph, prices), prices, plan.vectors_for, plan.rounds + 1)
        if found.seconds >= plan.seconds * (1 - CLOSER):
            return replace(plan, rounds=found.rounds)
        plan = found


def problem(plan: HapPlan) -> RatioProblem:
    """The price of a program as a function of two vectors: of its cuts, and of gathered parameters.

    Whole operators cost the same for any ratios and are left out.
    """
    machine = plan.prices.machine
    shared = sum(o.rule.flops for o, step in plan.program.steps if step.alternative.shared)
    compute = tuple(
        LinearForm({(0, kind): 3 * shared / speed}) for kind, (speed, _) in enumerate(machine.kinds)
    )
    terms = [compute, *(exchange_forms(plan.prices, o, step) for o, step in plan.program.steps)]
    return RatioProblem(tuple(count for _, count in machine.kinds), 2, tuple(term for term in terms if term))


def exchange_forms(prices: HapPrices, operator: HapOperator, step: HapStep) -> tuple[LinearForm, ...]:
    """One form for each kind of device: what an operator's loads and exchanges take, by the shares.

    Volumes are linear: at ratios of 1 less at ratios of 0 is the factor.
    """
    kinds = range(len(prices.machine.kinds))
    zero, one = ((value,) * len(kinds) for value in (0.0, 1.0))
    count = len(prices.vectors)
    base = replace(prices, vectors=(zero,) * count, parameters=zero)
    by_cuts = replace(base, vectors=(one,) * count)
    by_parameters = replace(base, parameters=one)
    constant, cuts, parameters = (total(each, operator, step) for each in (base, by_cuts, by_parameters))
    if not any(cuts) and not any(parameters):
        return ()
    return tuple(
        LinearForm({(0, k): cuts[k] - constant[k], (1, k): parameters[k] - constant[k]}, constant[k])
        for k in kinds
    )


def total(prices: HapPrices, operator: HapOperator, step: HapStep) -> list[float]:
    """Seconds of an operator's loads and exchanges on each lane."""
    volumes = [volume for volume in parts(prices, operator, step) if volume is not None]
    return [sum(volume) for volume in zip(*volumes, strict=True)] or [0.0] * len(prices.machine.kinds)


def parts(prices: HapPrices, operator: HapOperator, step: HapStep) -> Iterator[tuple[float, ...] | None]:
    for value, need in zip(operator.inputs, step.placements, strict=True):
        if value.leaf is not None:
            yield prices.load(value, need)
    for operand, before, after in step.moves:
        yield prices.exchange(operator.inputs[operand], before, after)
