"""How an artifact's parameters are trained: the optimizer, what decays, and in which types."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ..base.name_groups import grouped
from ..options import OptimizerConfig, OptimizerName
from ..program.program import Program, Shard
from .sections import Table

NARROW = ("bfloat16", "float16")


def optimizer_text(config: OptimizerConfig) -> str:
    """Every option that is used, in one line."""
    return ", ".join(_options(config))


def _options(config: OptimizerConfig) -> Iterator[str]:
    yield config.name.value
    yield f"lr {config.lr:g}"
    if config.name is OptimizerName.ADAMW:
        yield f"betas {config.betas[0]:g} and {config.betas[1]:g}"
        yield f"eps {config.eps:g}"
    if config.momentum:
        yield f"momentum {config.momentum:g}{' (nesterov)' if config.nesterov else ''}"
    yield f"weight decay {config.weight_decay:g}"
    if config.max_grad_norm == math.inf:
        yield "the gradients' norm is reported"
    elif config.max_grad_norm is not None:
        yield f"gradients clipped to norm {config.max_grad_norm:g}"
    schedule = config.schedule
    if schedule.warmup_steps or schedule.total_steps is not None:
        end = "" if schedule.total_steps is None else f", {schedule.total_steps} in all"
        yield f"{schedule.name.value} after {schedule.warmup_steps} steps of warm-up{end}"


def trained_shards(program: Program) -> Mapping[str, Shard]:
    """A shard of each parameter that a step updates, by name, in the order of the names."""
    buckets = {id(bucket): bucket for own in program.ranks for bucket in own.grad_buckets}
    updated = {piece.param for bucket in buckets.values() for piece in bucket.kept}
    shards = {id(shard): shard for own in program.ranks for shard in own.shards}
    found = {shard.name: shard for shard in shards.values() if shard.name in updated}
    return dict(sorted(found.items()))


def decay_table(program: Program, config: OptimizerConfig) -> Table:
    """Parameters by the weight decay that they get, those of all layers in one row."""
    decays = [(name, config.decay_of(name)) for name in trained_shards(program)]
    groups = sorted(grouped(decays).items(), key=lambda group: -group[0][1])
    rows = ((pattern, len(names), f"{decay:g}") for (pattern, decay), names in groups)
    return Table("weight decay", "weight decay", ("parameters", "number", "weight decay"), tuple(rows))


def narrow_warning(program: Program) -> str | None:
    """What is to be said where parameters are trained in a type that loses small updates."""
    narrow = [shard for shard in trained_shards(program).values() if shard.dtype in NARROW]
    if not narrow:
        return None
    kinds = " and ".join(sorted({shard.dtype for shard in narrow}))
    scaling = ", and there is no loss scaling for float16" if "float16" in kinds.split() else ""
    return (
        f"{len(narrow)} parameters are trained in {kinds} itself, as the model is made: an update smaller"
        f" than the last digit of a weight is lost{scaling}; --precision bfloat16 (precision='bfloat16')"
        " computes in bfloat16 beside masters in float32"
    )
