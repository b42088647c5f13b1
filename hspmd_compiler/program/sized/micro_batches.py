"""What a rank reads of a batch: its micro-batches, their documents on the host, its piece of each sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..context.row_piece import RowPiece, cut_input
from .documents import documents_read, with_documents

if TYPE_CHECKING:
    from torch import Tensor

    from ..execute import RankPlan


def micro_batches(plan: RankPlan, batch: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """This rank's rows of a global batch, one dict per micro-batch; views."""
    program, documents = plan.program, documents_read(plan.shared)
    rows = [
        {key: value.narrow(program.row_dim, low, high - low) for key, value in batch.items()}
        for low, high in program.rows
    ]
    return [as_read(each, documents, program.piece_of(mb)) for mb, each in enumerate(rows)]


def as_read(
    micro_batch: Mapping[str, Tensor], documents: Collection[str], piece: RowPiece | None
) -> dict[str, Tensor]:
    """A micro-batch of whole samples as a rank reads it. Documents are those of the whole samples."""
    whole = with_documents(micro_batch, documents)
    return {key: cut_input(piece, key, value) for key, value in whole.items()}
