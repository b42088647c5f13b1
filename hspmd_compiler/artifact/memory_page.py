"""What each rank stores, in bytes: parameters, gradients, optimizer state, values kept for backward."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..options import OptimizerConfig, OptimizerName
from .dtypes import BYTES
from .program import RankProgram, Shard
from .sections import Cell, Table
from .store import Artifact

NARROW = frozenset({"bfloat16", "float16"})
SUM_TYPE = "float32"


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """One rank's memory. parameters: buffers too. gradients: of all micro-batches, as they are summed.

    saved: most that is kept between forward and backward of one micro-batch.
    """

    parameters: int
    gradients: int
    state: int
    saved: int


def stored_bytes(own: RankProgram, optimizer: OptimizerConfig) -> StoredBytes:
    """From the shards of a rank that its gradient buckets train."""
    trained = {piece.param for bucket in own.grad_buckets for piece in bucket.pieces}
    shards = [shard for shard in own.shards if shard.name in trained]
    moments = moments_of(optimizer)
    return StoredBytes(
        parameters=sum(prod(shard.shape) * BYTES[shard.dtype] for shard in own.shards),
        gradients=sum(prod(shard.shape) * BYTES[sum_type(shard)] for shard in shards),
        state=sum(moments * prod(shard.shape) * BYTES[shard.dtype] for shard in shards),
        saved=max(own.saved, default=0),
    )


def moments_of(optimizer: OptimizerConfig) -> int:
    """Numbers that the optimizer keeps for each element."""
    if optimizer.name is OptimizerName.ADAMW:
        return 2
    return 1 if optimizer.momentum else 0


def sum_type(shard: Shard) -> str:
    """The type that a parameter's gradients are summed in."""
    return SUM_TYPE if shard.dtype in NARROW else shard.dtype


def memory_table(artifact: Artifact) -> Table:
    """A line per rank."""
    rows: list[tuple[Cell, ...]] = []
    for own in artifact.program.ranks:
        held = stored_bytes(own, artifact.manifest.optimizer)
        rows.append((own.rank, held.parameters, held.gradients, held.state, held.saved))
    columns = ("rank", "parameters", "gradients", "optimizer state", "kept for backward")
    return Table("memory", "bytes stored; kept for backward: per micro-batch", columns, tuple(rows))
