"""What it costs that a value changes how it is held, forward and, for its gradient, backward."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from .link_prices import LinkPrice
from .machine import SearchMachine
from .space.codes import PENDING, REPLICATE, WHOLE, cut_of, is_cut
from .space.cuts import ValueCut
from .whole_shares import SAMPLES

GATHER, SCATTER, REDUCE, EXCHANGE = "all-gather", "reduce-scatter", "all-reduce", "all-to-all"


class TypeMove(NamedTuple):
    """Seconds of all micro-batches, and the collective of each half, "" for none."""

    forward_s: float
    backward_s: float
    forward: str
    backward: str

    @property
    def seconds(self) -> float:
        """Of both halves."""
        return self.forward_s + self.backward_s


FREE = TypeMove(0.0, 0.0, "", "")


def move(
    machine: SearchMachine,
    size_bytes: int,
    cuts: tuple[ValueCut, ...],
    before: int,
    after: int,
    *,
    fractions: bool,
    static: bool = False,
    samples: Collection[int] = (),
) -> TypeMove | None:
    """From one code to another of a value of so many bytes; None: no exchange gives that.

    fractions: whether it has a gradient. static: whether it is made of parameters alone, so that each
    micro-batch moves all of it. samples: keys of cuts that share out samples. Nothing becomes a pending sum.
    """
    if before == after:
        return FREE
    if after == PENDING:
        return None
    halves = _halves(machine, cuts, before, after, samples)
    size = size_bytes if static else size_bytes * machine.batch
    prices = [machine.micro_batches * price.seconds(size) for price, _ in halves]
    (_, forward), (_, backward) = halves
    if not fractions:
        prices[1], backward = 0.0, ""
    return TypeMove(prices[0], prices[1], forward, backward)


def _halves(
    machine: SearchMachine, cuts: tuple[ValueCut, ...], before: int, after: int, samples: Collection[int]
) -> tuple[tuple[LinkPrice, str], tuple[LinkPrice, str]]:
    nothing = (LinkPrice(), "")
    reduce, vertices = (machine.reduces, REDUCE), len(machine.vertices)
    if before == WHOLE:
        return nothing, nothing
    if not is_cut(before) and not is_cut(after):
        if before == REPLICATE:
            return nothing, reduce
        return reduce, reduce if after == WHOLE else nothing
    if is_cut(before) and is_cut(after):
        (one, old), (other, new) = (_cut(code, cuts, vertices, samples) for code in (before, after))
        same = one == other or _same_pieces(one, other)
        there, back = machine.exchange(old, new, same_dim=same), machine.exchange(new, old, same_dim=same)
        return (there, EXCHANGE), (back, EXCHANGE)
    _, cut = _cut(after if is_cut(after) else before, cuts, vertices, samples)
    gather, scatter = (machine.gather(*cut), GATHER), (machine.scatter(*cut), SCATTER)
    if is_cut(after):
        return nothing if before == REPLICATE else scatter, gather
    return gather, scatter if after == WHOLE else nothing


def _cut(
    code: int, cuts: tuple[ValueCut, ...], vertices: int, samples: Collection[int]
) -> tuple[ValueCut, tuple[int, int]]:
    """The cut that a code names, with (vertex, units)."""
    place, vertex = cut_of(code, vertices)
    cut = cuts[place]
    return cut, (vertex, SAMPLES if cut.key in samples else cut.units)


def _same_pieces(one: ValueCut, other: ValueCut) -> bool:
    """Whether two cuts of a dim give each rank the same run of it, but for rounding."""
    return one.dim == other.dim and one.repeats == other.repeats == 1
