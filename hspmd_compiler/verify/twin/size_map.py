"""Do two numbers say the same in two sizes of one model? Products of sizes that correspond do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

from ...errors import VerifyError

Pair = tuple[int, int]

DEPTH = 5
"""Most factors that are not equal on both sides."""
NEAR = 1e-9


class SizeMap:
    """Numbers of the whole model and of its twin. pairs: sizes, lengths and boundaries that correspond."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._pairs = sorted({pair for pair in pairs if pair[0] > 1 and pair[1] > 0 and pair[0] != pair[1]})
        self._known: dict[Pair, bool] = {}

    def same(self, whole: object, twin: object) -> bool:
        """Whether two literals are equal, or the same product of sizes; floats also as roots and inverses."""
        if type(whole) is not type(twin):
            return False
        if isinstance(whole, (tuple, list)) and isinstance(twin, (tuple, list)):
            return len(whole) == len(twin) and all(map(self.same, whole, twin))
        if isinstance(whole, float) and isinstance(twin, float):
            return whole == twin or repr(whole) == repr(twin) or self._same_fraction(whole, twin)
        if type(whole) is int and type(twin) is int:
            return (whole < 0) == (twin < 0) and self._same_product(abs(whole), abs(twin))
        return whole == twin

    def _same_product(self, whole: int, twin: int, depth: int = DEPTH) -> bool:
        if whole == twin:
            return True
        if not depth or not whole or not twin:
            return False
        key = (whole, twin)
        if key not in self._known:
            self._known[key] = any(
                not whole % one
                and not twin % other
                and self._same_product(whole // one, twin // other, depth - 1)
                for one, other in self._pairs
            )
        return self._known[key]

    def _same_fraction(self, whole: float, twin: float) -> bool:
        if not (whole > 0 and twin > 0 and math.isfinite(whole) and math.isfinite(twin)):
            return False
        forms = ((whole, twin), (1 / whole, 1 / twin))
        return any(self._same_number(a, b) or self._same_number(a * a, b * b) for a, b in forms)

    def _same_number(self, whole: float, twin: float) -> bool:
        one, other = round(whole), round(twin)
        near = abs(whole - one) <= NEAR * whole and abs(twin - other) <= NEAR * twin
        return near and one > 0 and other > 0 and self._same_product(one, other)


def split_pairs(whole: int, twin: int, degrees: Iterable[int]) -> list[Pair]:
    """Boundaries of even splits of both sizes into these numbers of parts, and the distances between them.

    A VerifyError where boundaries do not lie in the same order.
    """
    ends = {(0, 0)}
    for parts in degrees:
        ends |= set(zip(_ends(whole, parts), _ends(twin, parts), strict=True))
    ordered = sorted(ends)
    if any(low[1] >= high[1] or low[0] >= high[0] for low, high in pairwise(ordered)):
        raise VerifyError(f"boundaries of {whole} do not keep their order in {twin}")
    return [
        (high[0] - low[0], high[1] - low[1])
        for index, low in enumerate(ordered)
        for high in ordered[index + 1 :]
    ]


def reduced(size: int, parts: int, units: int) -> int:
    """A smaller size with the same boundaries between even splits into any divisors of `parts`.

    The end of part i of n is i/n of the multiple of `parts` in the size, plus a number that depends on the
    rest alone. With more than `rest` multiples the order of all such ends is that of any larger size.
    units: multiples that are kept at least, so that no piece is of length one.
    """
    count, rest = divmod(size, parts)
    return min(count, max(units, rest + 1)) * parts + rest


def _ends(size: int, parts: int) -> list[int]:
    base, rest = divmod(size, parts)
    return [(i + 1) * base + min(i + 1, rest) for i in range(parts)]
