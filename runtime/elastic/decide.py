"""What the survivors go on from, out of what they hold. A pure function: reports in, decision out.

Two claims make it sound, both by a meeting of all ranks that whoever passed it knows the others have entered:
a step's vote (all who vote are `ready`), and the end of a carry (all who meet have the new state beside the
old). A rank that lives is never in the middle of an update, which is local and can't be interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import InternalError
from .messages import NOTHING_HELD, HeldReport


@dataclass(frozen=True, slots=True)
class Decision:
    """What is in force. held: generation of the state that goes on, NOTHING_HELD where nobody has one.

    steps: completed. forward: who takes the last of them alone. adopting: who turns to the state that it has
    beside. holders: who has state. stale: those whose local copies are not of this step, only what they own.
    """

    held: int
    steps: int
    forward: tuple[int, ...] = ()
    adopting: tuple[int, ...] = ()
    holders: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()


def decide(reports: Mapping[int, HeldReport]) -> Decision:
    """The furthest state that anybody has; everybody who has a state can get there alone."""
    held = max((each.generation for each in reports.values()), default=NOTHING_HELD)
    if held == NOTHING_HELD:
        return Decision(NOTHING_HELD, 0)
    adopting = [who for who, each in reports.items() if each.generation != held and each.beside == held]
    holders = [who for who, each in reports.items() if each.generation == held or who in adopting]
    turned = {who: _turned(reports[who]) if who in adopting else reports[who] for who in holders}
    steps = max(each.steps for each in turned.values())
    forward = [who for who, each in turned.items() if each.steps < steps]
    wrong = {
        **{who: each for who, each in reports.items() if who not in holders and each.generation >= 0},
        **{who: reports[who] for who in forward if not _can_follow(turned[who], steps)},
    }
    if wrong:
        raise InternalError(
            "the ranks that are left can't come to one step",
            details=[(f"process {who}", str(each)) for who, each in wrong.items()],
            rule="a rank that has passed the vote of a step knows that all others have their gradients",
        )
    stale = [who for who, each in turned.items() if not each.whole or (each.gathers and who in forward)]
    return Decision(held, steps, *(tuple(sorted(each)) for each in (forward, adopting, holders, stale)))


def _turned(held: HeldReport) -> HeldReport:
    """What a rank holds once it has turned to the state that it has beside, all of which has just come."""
    return HeldReport(held.beside, held.beside_steps)


def _can_follow(held: HeldReport, steps: int) -> bool:
    return held.ready and held.steps == steps - 1
