"""How operators are called that pick or place elements along one dim, for the brute-force test of rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hspmd_compiler.rules.lines.along_lines import SCATTERS
from hspmd_compiler.verify.rules.split_operands import Operand
from hspmd_compiler.verify.rules.split_operator import OperandSketch

from .rule_cases import FULL, INDEX, MATRIX, B, Case, F, T, Take, below, normal

LAST = 2**63 - 1


def placements() -> Iterator[Case]:
    """All of them."""
    yield from gathers()
    yield from scatters()
    yield from replacements()


def gathers() -> Iterator[Case]:
    """By an index that is as long as the operand in the other dims, or shorter, or has no samples."""
    op = "aten.gather.default"
    for operand, dim, index in indexed():
        yield Case(op, lambda s, take, o=operand, d=dim, i=index: s.call(op, (take(o), d, take(i))))  # type: ignore[misc]
    samples = replace(INDEX, shape=(3, T, F), sample=None, make=below(B))
    yield Case(op, lambda s, take: s.call(op, (take(FULL), 0, take(samples))), coupled=True)
    table = Operand((1, F), normal, sample=None)
    fixed = replace(samples, shape=(1, T), make=below(F))
    yield Case(op, lambda s, take: s.call(op, (take(table), 1, take(fixed))))
    rows = replace(table, shape=(B, F))
    turned = replace(INDEX, shape=(B, 3), make=below(F))
    yield Case(op, lambda s, take: s.call(op, (take(rows), 1, take(turned))))


def indexed() -> Iterator[tuple[Operand, int, Operand]]:
    """Operand, dim, and an index along it."""
    for dim, shape in ((1, (B, 3, F)), (2, (B, T, 8)), (1, (B, 3, 4)), (2, (B, 2, F))):
        yield FULL, dim, replace(INDEX, shape=shape, make=below(FULL.shape[dim]))


def scatters() -> Iterator[Case]:
    """A place that several elements share is only defined where they are added up."""
    for operand, dim, index in indexed():
        source = replace(FULL, shape=tuple(map(max, index.shape, operand.shape)))
        for op in SCATTERS:
            if op == "aten.scatter.src" and index.shape[dim] > operand.shape[dim]:
                continue
            yield Case(
                op,
                lambda s, take, op=op, o=operand, d=dim, i=index, f=source: scatter(s, take, op, o, d, i, f),  # type: ignore[misc]
            )


def scatter(
    s: OperandSketch, take: Take, op: str, operand: Operand, dim: int, index: Operand, source: Operand
) -> None:
    """One call; for `scatter.src` the places of a dim are all different."""
    given: list[object] = [0.7 if op == "aten.scatter.value" else take(source)]
    given += ["amax"] if op == "aten.scatter_reduce.two" else []
    if op == "aten.scatter.src":
        order = s.call("aten.sort.default", (take(replace(FULL, shape=index.shape)), dim))
        places = s.pick(order, 1)
    else:
        places = take(index)
    s.call(op, (take(operand), dim, places, *given))


def replacements() -> Iterator[Case]:
    """One index, or a stretch, of a dim replaced."""
    select, stretch = "aten.select_scatter.default", "aten.slice_scatter.default"
    for dim, source in ((1, MATRIX), (2, replace(FULL, shape=(B, T))), (-2, MATRIX)):
        yield Case(select, lambda s, take, d=dim, o=source: s.call(select, (take(FULL), take(o), d, -1)))  # type: ignore[misc]
    bounds: list[tuple[tuple[int, ...], tuple[object, ...]]] = [
        ((B, T, 4), (2, 1, 5)),
        ((B, 3, F), (1, 1, LAST)),
        ((B, T, 3), (2, 0, 6, 2)),
    ]
    for shape, rest in bounds:
        part = replace(FULL, shape=shape)
        yield Case(stretch, lambda s, take, o=part, r=rest: s.call(stretch, (take(FULL), take(o), *r)))  # type: ignore[misc]
