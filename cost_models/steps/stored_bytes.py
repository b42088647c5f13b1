"""What each rank stores, in bytes: parameters, gradients, optimizer state, values kept for backward."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...base.dtypes import BYTES
from ...options import OptimizerConfig, OptimizerName
from ...program.boxes import volume
from ...program.program import ZERO_GRADS, ZERO_PARAMS, RankProgram, Shard

NARROW = frozenset({"bfloat16", "float16"})
SUM_TYPE = "float32"


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """One rank's memory. parameters: between steps, buffers and what is trained apart from them too.

    gradients: summed over all ranks. saved: most that is kept from forward to backward of a micro-batch.
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
        parameters=sum(map(parameter_bytes, own.shards)),
        gradients=sum(gradient_bytes(shard) for shard in shards),
        state=sum(moments * volume(shard.kept) * BYTES[shard.dtype] for shard in shards),
        saved=max(own.saved, default=0),
    )


def parameter_bytes(shard: Shard) -> int:
    """The local tensor, unless it is gathered for each use, and the row that is trained apart from it."""
    local = prod(shard.shape) * BYTES[shard.local_dtype] if shard.zero < ZERO_PARAMS else 0
    return local + (volume(shard.kept) * BYTES[shard.dtype] if shard.is_flat else 0)


def gradient_bytes(shard: Shard) -> int:
    """The summed gradient, or what the rank keeps of it."""
    elements = volume(shard.kept) if shard.zero >= ZERO_GRADS else prod(shard.shape)
    return elements * BYTES[sum_type(shard)]


def moments_of(optimizer: OptimizerConfig) -> int:
    """Numbers that the optimizer keeps for each element."""
    if optimizer.name is OptimizerName.ADAMW:
        return 2
    return 1 if optimizer.momentum else 0


def sum_type(shard: Shard) -> str:
    """The type that a parameter's gradients are summed in."""
    return SUM_TYPE if shard.dtype in NARROW else shard.dtype
