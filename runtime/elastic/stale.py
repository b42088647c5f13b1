"""What a rank has of a step behind whose update the ranks could not exchange what each owns."""

from __future__ import annotations

from dataclasses import replace

from ...program.program import ZERO_PARAMS, RankProgram, Shard
from ..switching.held import StateLayout


def only_owned(shard: Shard) -> Shard:
    """A shard of which the rank has only what it owns: its copies of the rest are of the step before."""
    return replace(shard, boxes=shard.owned) if 0 < shard.zero < ZERO_PARAMS else shard


def layout_of_owned(layout: StateLayout) -> StateLayout:
    """Where a rank keeps what it has then."""
    return replace(layout, shards={name: only_owned(shard) for name, shard in layout.shards.items()})


def program_of_owned(program: RankProgram) -> RankProgram:
    """The same for whoever plans by programs."""
    return replace(program, shards=[only_owned(shard) for shard in program.shards])
