"""Where documents of a micro-batch begin: a value on the host, made of positions before they are moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ...errors import RunError
from ..program import ClassProgram, InputKind

if TYPE_CHECKING:
    from torch import Tensor

STARTS = "hspmd.document_starts"
"""The kernel that makes them of positions; of an input's positions they are an input of their own."""


def documents_read(shared: ClassProgram) -> frozenset[str]:
    """Batch keys of positions whose documents a class program reads."""
    inputs = (item for segment in shared.segments for item in segment.inputs)
    return frozenset(item.name for item in inputs if item.kind is InputKind.DOCUMENTS)


def documents_key(name: str) -> str:
    """Where a micro-batch has the documents that positions `name` tell."""
    return f"{name} (documents)"


def with_documents(micro_batch: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """A micro-batch with the documents of its positions, which are still on the host."""
    from ..kernels.packed_kernels import document_starts  # late, with torch: prices read programs without

    return {**micro_batch, **{documents_key(name): document_starts(micro_batch[name]) for name in names}}


def cut_documents(rows: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Rows of positions that go on with the document that the row before ends in: (row, first position)."""
    found = []
    for number, (before, row) in enumerate(pairwise(rows), start=1):
        first = int(row[0]) if len(row) else 0
        if first > 0 and len(before) and first == int(before[-1]) + 1:
            found.append((number, first))
    return found


def refuse_cut_documents(name: str, rows: Sequence[Tensor], whole: bool = True) -> None:
    """RunError where a document goes on in the next row: it would be trained as two.

    whole: all rows of a step are there, in order. Else what stands before one isn't known: each begins at 0.
    """
    first = [(number, int(row[0])) for number, row in enumerate(rows) if len(row)]
    found = cut_documents(rows) if whole else [(number, at) for number, at in first if at]
    if found:
        raise RunError(
            f"documents of {name} are cut between rows",
            details=[(f"row {row}", f"goes on at position {at}") for row, at in found],
            rule="rows don't see each other, so that what is left of a document would be another one",
            fix="pack whole documents into each row, and begin their positions at 0",
        )
