"""Sharding ratios: closed-form candidates where a price is linear, a linear program where it isn't.

`vertices`. Variables: the share b_d of each device, b_d >= 0, sum 1. Objective: F * max(b_d / speed_d) +
G * max(b_d), of which only F, G >= 0 are unknown. The Pareto frontier of the two maxima is
b_d = min(beta, alpha * speed_d); it has one vertex for each kind of device, and a linear function is least at
a vertex. So the least over ratios and programs is the least over vertices of the cheapest program.

`solve`. Variables: shares b[g][k] of a device of kind k in vector g, one bound t_i for each term. Objective:
sum of t_i. Constraints: t_i >= each of a term's linear forms (a maximum: of devices, of a roofline's sides);
limits (memory); sum over devices of a vector is 1; 0 <= b <= box. Bound: exact, by PuLP's CBC.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InternalError, OptionError

Vector = tuple[float, ...]
"""Shares by device, or of a device of each kind."""
Variable = tuple[int, int]
"""Vector and kind of device."""


def vertices(speeds: Sequence[float]) -> tuple[Vector, ...]:
    """Ratios by device, one tuple for each kind: the k fastest kinds are held to the speed of kind k.

    The first is proportional to speeds, the last even. Devices of speed 0 get nothing.
    """
    kinds = sorted({speed for speed in speeds if speed > 0}, reverse=True)
    levels = ([min(speed, kind) for speed in speeds] for kind in kinds)
    return tuple(tuple(one / sum(level) for one in level) for level in levels)


@dataclass(frozen=True, slots=True)
class LinearForm:
    """A linear form: constant + sum of factor * share."""

    factors: Mapping[Variable, float] = field(default_factory=dict)
    constant: float = 0.0

    def at(self, vectors: Sequence[Vector]) -> float:
        return self.constant + sum(factor * vectors[g][k] for (g, k), factor in self.factors.items())


@dataclass(frozen=True, slots=True)
class RatioProblem:
    """counts: devices by kind. terms: each costs its largest form. limits: (form, at most).

    boxes: (least, most) of a share, where it is not [0, 1].
    """

    counts: tuple[int, ...]
    vectors: int
    terms: tuple[tuple[LinearForm, ...], ...]
    limits: tuple[tuple[LinearForm, float], ...] = ()
    boxes: Mapping[Variable, tuple[float, float]] = field(default_factory=dict)

    def price(self, vectors: Sequence[Vector]) -> float:
        return sum(max(form.at(vectors) for form in term) for term in self.terms)


def solve(problem: RatioProblem) -> tuple[Vector, ...] | None:
    """Shares of a device of each kind, by vector, of the least price; None: no ratios keep the limits.

    Shares are scaled to their sum, which the solver holds to its own tolerance.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of names that PuLP 4 will have no more
        return _solved(problem, solver())


def solver() -> Any:
    """The module of PuLP, which an extra brings."""
    try:
        import pulp
    except ImportError:
        raise OptionError(
            "ratios need a linear program, and PuLP is not installed",
            fix="pip install hspmd-compiler[plan]",
        ) from None
    return pulp


def _solved(problem: RatioProblem, pulp: Any) -> tuple[Vector, ...] | None:
    scale = _scale(problem)
    program = pulp.LpProblem("ratios", pulp.LpMinimize)
    shares = {
        (g, k): pulp.LpVariable(f"b_{g}_{k}", *problem.boxes.get((g, k), (0.0, 1.0)))
        for g in range(problem.vectors)
        for k in range(len(problem.counts))
    }

    def written(form: LinearForm, by: float) -> Any:
        return (
            pulp.lpSum(shares[v] * (factor / by) for v, factor in form.factors.items()) + form.constant / by
        )

    bounds = [pulp.LpVariable(f"t_{index}") for index in range(len(problem.terms))]
    program += pulp.lpSum(bounds)
    for bound, term in zip(bounds, problem.terms, strict=True):
        for form in term:
            program += bound >= written(form, scale)
    for form, most in problem.limits:
        program += written(form, most or 1.0) <= (1.0 if most else 0.0)
    for g in range(problem.vectors):
        program += pulp.lpSum(count * shares[g, k] for k, count in enumerate(problem.counts)) == 1
    status = program.solve(pulp.PULP_CBC_CMD(msg=False))
    if status == pulp.LpStatusInfeasible:
        return None
    if status != pulp.LpStatusOptimal:
        raise InternalError(f"the linear program of ratios ended as {pulp.LpStatus[status]}")
    kinds = range(len(problem.counts))
    found = ([max(0.0, shares[g, k].value()) for k in kinds] for g in range(problem.vectors))
    return tuple(_to_one(vector, problem.counts) for vector in found)


def _scale(problem: RatioProblem) -> float:
    """The price of even ratios, so that the solver's tolerances are relative to it."""
    even = (1 / sum(problem.counts),) * len(problem.counts)
    return problem.price([even] * problem.vectors) or 1.0


def _to_one(shares: Sequence[float], counts: Sequence[int]) -> Vector:
    total = sum(share * count for share, count in zip(shares, counts, strict=True))
    return tuple(share / total for share in shares)
