"""Every HAP program of a small graph, one by one, with its price: what the search is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from hspmd_compiler.synthesizer.hap.costs import HapPrices, Seconds
from hspmd_compiler.synthesizer.hap.operators import (
    PENDING,
    HapAlternative,
    HapGraph,
    HapOperator,
    HapValue,
    following,
    is_cut,
)

Held = Mapping[HapValue, frozenset[int]]
Slices = tuple[HapValue, int]


def prices_of_all(graph: HapGraph, prices: HapPrices, vectors: Mapping[int, int] | None) -> Iterator[float]:
    """vectors: by segment; None: each operator has its own."""
    yield from _after(graph.operators, prices, vectors, {}, frozenset(), 0.0)


def _after(
    operators: tuple[HapOperator, ...],
    prices: HapPrices,
    vectors: Mapping[int, int] | None,
    held: Held,
    spent: frozenset[HapValue],
    seconds: float,
) -> Iterator[float]:
    if not operators:
        (loss,) = list(held)[-1:]
        if PENDING in held[loss]:
            yield seconds
        return
    operator, rest = operators[0], operators[1:]
    own = range(len(prices.vectors)) if vectors is None else [vectors[operator.segment]]
    for alternative, vector in product(operator.rule.alternatives, own):
        for volumes, by, now, used in _placed(operator, alternative, vector, prices, held, spent):
            term = prices.compute(operator.rule.flops, by if alternative.shared else None)
            term += max((sum(part) for part in zip(*volumes, strict=True)), default=0.0)
            given = {
                value: frozenset([following(placement, vector)])
                for value, placement in zip(operator.outputs, alternative.gives, strict=True)
            }
            yield from _after(rest, prices, vectors, {**now, **given}, used, seconds + term)


def _placed(
    operator: HapOperator,
    alternative: HapAlternative,
    vector: int,
    prices: HapPrices,
    held: Held,
    spent: frozenset[HapValue],
) -> Iterator[tuple[list[Seconds], Slices | None, Held, frozenset[HapValue]]]:
    """All ways to have the operands as an alternative needs them: volumes, and the slices of its flops."""
    ways: list[tuple[list[Seconds], Slices | None, Held, frozenset[HapValue]]] = [([], None, held, spent)]
    for value, need in zip(operator.inputs, alternative.needs, strict=True):
        ways = [new for way in ways for new in _operand(operator, value, need, vector, prices, way)]
    pairs = zip(operator.inputs, alternative.needs, strict=True)
    leaf = next(((one, following(need, vector)) for one, need in pairs if is_cut(need) and one.leaf), None)
    for volumes, first, now, used in ways:
        yield volumes, first or leaf, now, used


def _operand(operator, value, need, vector, prices, way):
    volumes, first, held, spent = way
    if value.leaf is not None:
        volume = prices.load(value, following(need, vector))
        return [] if volume is None else [([*volumes, volume], first, held, spent)]
    wanted = [following(need, vector)]
    if is_cut(need) and value.segment != operator.segment:
        wanted = [following(need, one) for one in range(len(prices.vectors))]
    found = []
    for placement in wanted:
        slices = (value, placement) if first is None and is_cut(placement) else first
        if placement in held[value]:
            found.append((volumes, slices, held, spent))
        elif value.exchangeable and value not in spent:
            for before in held[value]:
                volume = prices.exchange(value, before, placement)
                if volume is not None:
                    now = {**held, value: held[value] | {placement}}
                    found.append(([*volumes, volume], slices, now, spent | {value}))
    return found
