"""Copies of pieces of a state that too few nodes have, kept up by ranks of other nodes. No torch.

A copy is a flat run of elements of one parameter, kept as ZeRO-3 stores what a rank owns: its value in the
trained type and its moments. So plans and moves of a state serve copies, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...base.comm_plan import Box
from ..program import ZERO_PARAMS, OutputKind, Program, RankProgram, Shard
from ..switch_plan import SwitchPlan


@dataclass(frozen=True, slots=True)
class StateCopies:
    """The copies that the ranks of a generation keep, and how these get there.

    shards: by world rank. gradients: the type that each copied parameter's gradient is summed in. make: all
    of their state. each_step: synchronised gradients of what is trained. buffers: values that a step changes.
    wanted: lost nodes that were to be survived without a checkpoint. survived: any so many are. memory_bytes:
    of the rank with most, values and moments and gradients; step_bytes: that all ranks send each step.
    """

    shards: tuple[tuple[Shard, ...], ...]
    gradients: dict[str, str]
    make: SwitchPlan
    each_step: SwitchPlan
    buffers: SwitchPlan
    wanted: int
    survived: int
    memory_bytes: int
    step_bytes: int


def copy_of(shard: Shard, view: tuple[int, ...], boxes: Iterable[Box]) -> Shard:
    """A copy of these elements of a shard's whole, seen as `view`."""
    kept = tuple((box, box) for box in boxes)
    return replace(
        shard,
        shape=shard.whole_shape,
        view=view,
        whole_view=view,
        boxes=kept,
        owned=kept,
        zero=ZERO_PARAMS,
    )


def copies_as_program(shards: Iterable[Shard], programs: Mapping[int, RankProgram]) -> RankProgram:
    """A rank that has nothing but copies, for whoever plans by programs. programs: all of the strategy."""
    buckets = {
        piece.param: bucket
        for own in programs.values()
        for bucket in own.grad_buckets
        for piece in bucket.kept
    }
    some = next(iter(programs.values()))
    distinct = {id(bucket): bucket for bucket in buckets.values()}
    return replace(some, shards=list(shards), grad_buckets=list(distinct.values()), param_buckets=[])


def changing_buffers(program: Program) -> frozenset[str]:
    """Buffers that a step writes."""
    return frozenset(
        output.name
        for each in program.classes.values()
        for segment in each.segments
        for output in segment.outputs
        if output.kind is OutputKind.BUFFER
    )
