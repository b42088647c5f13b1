"""Which rows of a backward pass may wait: those that gradients of weights alone need.

A stage whose schedule has gradients of weights apart (`0W0`) runs them in a segment of their own. All else
of its backward pass, what other stages wait for and shares of sums over the batch, stays where it is, and
so does what both need: it is kept until then.
"""

from __future__ import annotations

from ...ir.annotated import AnnotatedRow, AnnotatedValue
from ...ir.graph import Phase
from ...program.program import GETITEM
from ..batch_levels import BatchLevels
from ..liveness import StageRows


def weight_rows(rows: StageRows, levels: BatchLevels) -> frozenset[int]:
    """The values of a stage's backward pass, at its first level, that nothing but its gradients needs."""
    made = {row.out.id: row for row in rows.backward}
    needed = _needed(_waited_for(rows), made)
    for row in rows.backward:  # several results of one row are taken apart where it runs
        if row.op == GETITEM and row.reads[0].id in needed:
            needed.add(row.out.id)
    first = (Phase.BACKWARD, levels.turn)
    return frozenset(
        row.out.id for row in rows.backward if row.out.id not in needed and levels.part(rows, row) == first
    )


def _waited_for(rows: StageRows) -> list[AnnotatedValue]:
    """What other stages, or all ranks, wait for."""
    return [*(each.source for each in rows.departures), *(item.share for item in rows.sums)]


def _needed(roots: list[AnnotatedValue], made: dict[int, AnnotatedRow]) -> set[int]:
    found: set[int] = set()
    while roots:
        number = roots.pop().id
        if number in made and number not in found:
            found.add(number)
            roots += made[number].reads
    return found
