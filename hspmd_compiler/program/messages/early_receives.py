"""Which receives are posted before their turn: a message leaves when both of its ends are posted.

While a rank waits for a message, and works on it, so many of its next receives are posted already; each
holds the memory of its message from then on. A posted receive keeps no rank from going on, and receives are
posted in the order in which they are waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ..program import Instruction, Op

EarlyReceives: TypeAlias = Mapping[int, Sequence[Instruction]]
"""Per position of a RECV, the RECVs that are posted with it."""


def early_receives(instructions: Sequence[Instruction], ahead: int) -> EarlyReceives:
    """With its first RECV a rank posts the `ahead` that follow, with each other one the next."""
    receives = [(at, each) for at, each in enumerate(instructions) if each.op is Op.RECV]
    found: dict[int, Sequence[Instruction]] = {}
    for number, (at, _) in enumerate(receives if ahead else ()):
        first = number + ahead if number else 1
        posted = [each for _, each in receives[first : number + ahead + 1]]
        if posted:
            found[at] = posted
    return found
