"""The dims of every forward row, as terms, while they are being inferred."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ...errors import InternalError
from ...ir.graph import Ref, Row
from ...rules.call_rule import GraphCalls
from .dim_terms import DimTerms

Dims: TypeAlias = tuple[int, ...]
Found: TypeAlias = Dims | list[Dims] | None


@dataclass(slots=True)
class DimFlow:
    """The dims of every forward row so far. A row without an entry has only FREE dims.

    outs: dims of the outputs of a row with several. data: rows that depend on a batch input. ids:
    rows that hold elements of a batch input, rearranged or masked. classes: by row of a log-softmax,
    the classes it is over, and a new atom for the classes of its result. losses: rows of `classes`
    whose result a negative log-likelihood reads.
    """

    rows: list[Row]
    calls: GraphCalls
    terms: DimTerms = field(default_factory=DimTerms)
    dims: dict[int, Dims] = field(default_factory=dict)
    outs: dict[int, list[Dims]] = field(default_factory=dict)
    data: set[int] = field(default_factory=set)
    ids: set[int] = field(default_factory=set)
    classes: dict[int, tuple[int, int]] = field(default_factory=dict)
    losses: set[int] = field(default_factory=set)

    def row(self, operand: object) -> Row:
        """The row an operand refers to."""
        if not isinstance(operand, Ref):
            raise InternalError(f"{operand!r} is not a reference to a row")
        return self.rows[operand.id]

    def of(self, operand: object) -> Dims:
        """The dims of an operand."""
        row = self.row(operand)
        return self.dims.get(row.id) or self.free(row.shape or ())

    def free(self, shape: Sequence[int]) -> Dims:
        """FREE dims of a shape."""
        return tuple(self.terms.free(size) for size in shape)

    def store(self, row: Row, found: Found) -> None:
        """Keep what a rule found; FREE dims are kept by having no entry."""
        if isinstance(found, list):
            self.outs[row.id] = found
        elif found is not None and not all(map(self.terms.is_free, found)):
            self.dims[row.id] = found

    def is_weight(self, operand: object) -> bool:
        """Whether an operand comes from parameters alone."""
        return isinstance(operand, Ref) and operand.id in self.dims and operand.id not in self.data

    def unify_all(self, lists: Sequence[Dims]) -> Dims:
        """Say that operands of one shape have the same dims."""
        joined = list(lists[0])
        for dims in lists[1:]:
            joined = [self.terms.unify(a, b) for a, b in zip(joined, dims, strict=True)]
        return tuple(joined)

    def broadcast(self, lists: Sequence[Dims], shape: Sequence[int]) -> Dims:
        """The dims of operands that are broadcast to `shape`; broadcast dims of an operand are FREE."""
        joined = list(self.free(shape))
        for dims in lists:
            start = len(shape) - len(dims)
            for place, term in enumerate(dims, start):
                if self.terms.sizes[term] == shape[place]:
                    joined[place] = self.terms.unify(joined[place], term)
        return tuple(joined)

    def mark_whole(self, dims: Sequence[int], reason: str) -> None:
        """Forbid splits of some dims."""
        for term in dims:
            self.terms.mark_whole(term, reason)


Rule: TypeAlias = Callable[[DimFlow, Row], Found]
