"""The readings under which published points are priced: what sends wait for, and what a link carries."""

from __future__ import annotations

from dataclasses import dataclass

from hspmd_compiler.cost_models.semantics import SendMode, SendSemantics


@dataclass(frozen=True, slots=True)
class Form:
    """by_nic: a link between two kinds is the slower one's own, not the published entry of the pair."""

    semantics: SendSemantics
    by_nic: bool = False

    @property
    def name(self) -> str:
        return f"{self.semantics}, links {'by NIC' if self.by_nic else 'as tabled'}"


SEMANTICS = (
    SendSemantics(SendMode.BLOCKING),
    SendSemantics(SendMode.BUFFERED),
    SendSemantics(SendMode.ASYNC),
    SendSemantics(SendMode.ASYNC, posted_ahead=True),
)
FORMS = tuple(Form(semantics, by_nic) for by_nic in (False, True) for semantics in SEMANTICS)
DOCUMENTED = Form(SendSemantics(SendMode.BUFFERED))
"""What NCCL documents, and links as published: the form that the bars hold for."""
