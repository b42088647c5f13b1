"""A switch plan as a file: JSON, one part of a class a line, and back, checked."""

from __future__ import annotations

from collections.abc import Collection

from ..base.codec import decode, encode
from ..program.switch_plan import SwitchPlan
from .check_switch import check_switch_plan
from .json_text import parse, to_text

PLAN_DEPTH = 4


def plan_text(plan: SwitchPlan) -> str:
    """What a file of it holds."""
    return to_text(encode(plan), PLAN_DEPTH)


def plan_from(
    content: bytes, file: str, before: Collection[int], after: Collection[int], *, orphans: bool = False
) -> SwitchPlan:
    """The plan that a file holds; ArtifactError where it does not hang together.

    before, after: world ranks of the two strategies. orphans: elements that nobody holds may be left out.
    """
    plan = decode(SwitchPlan, parse(content, file), file)
    check_switch_plan(plan, file, before, after, orphans=orphans)
    return plan
