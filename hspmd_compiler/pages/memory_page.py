"""What each rank stores, in bytes: parameters, gradients, optimizer state, values kept for backward."""

from __future__ import annotations

from ..artifact.store import Artifact
from ..cost_models.steps.stored_bytes import StoredBytes, stored_bytes
from .sections import Cell, Table


def memory_table(artifact: Artifact) -> Table:
    """A line per rank."""
    rows: list[tuple[Cell, ...]] = []
    known: dict[object, StoredBytes] = {}  # ranks of many pipelines hold the same
    for own in artifact.program.ranks:
        alike = (*map(id, own.shards), *map(id, own.grad_buckets), *own.saved)
        if alike not in known:
            known[alike] = stored_bytes(own, artifact.manifest.optimizer)
        held = known[alike]
        rows.append((own.rank, held.parameters, held.gradients, held.state, held.saved))
    columns = ("rank", "parameters", "gradients", "optimizer state", "kept for backward")
    return Table(
        "memory", "bytes stored between steps; kept for backward: per micro-batch", columns, tuple(rows)
    )
