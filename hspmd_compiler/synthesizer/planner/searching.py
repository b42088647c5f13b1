"""Which search finds programs for a plan, and how what it finds becomes candidates."""

from __future__ import annotations

from ...options import PlanChoice
from .plan import Searcher


def searcher_of(choice: PlanChoice) -> Searcher | None:
    """The search of a space by a cost."""
    return None
