"""Which launchers may go on without the others: of two sides that don't hear each other, at most one."""

from __future__ import annotations

from collections.abc import Collection


def may_go_on(members: Collection[int], here: Collection[int], gone: Collection[int]) -> bool:
    """Whether this side goes on.

    members: launchers that took part in the last change. here: those of them on this side. gone: those that
    have ended in fact, which is known; the others may live, and not hear this side. More than half of those
    that may live must be here; of two halves, the one with the lowest launcher goes on.
    """
    living = set(members) - (set(gone) - set(here))
    side = living & set(here)
    return 2 * len(side) > len(living) or (2 * len(side) == len(living) and min(living) in side)
