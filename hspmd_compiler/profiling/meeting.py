"""The program by which the runtime brings the ranks of a profile together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..base.comm_plan import CommKind
from ..program.program import ClassProgram, Program, RankProgram
from .exchanges import COLLECTIVES, collective_step
from .plan import GroupShape

NAME = "profile"
LOCAL_COUNT = "LOCAL_WORLD_SIZE"


def hosts_of(world_size: int, environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """The machine of each rank, counted as torchrun fills them; all on one where nothing is said."""
    text = environment.get(LOCAL_COUNT, "")
    local = int(text) if text.isdecimal() and int(text) else world_size
    return tuple(rank // local for rank in range(world_size))


def step_number(shape: int, kind: CommKind) -> int:
    """The id of a collective in a group, by the number of its shape."""
    return shape * len(COLLECTIVES) + COLLECTIVES.index(kind)


def meeting_program(world_size: int, device_kind: str, shapes: Sequence[GroupShape]) -> Program:
    """What computes nothing, with a process group for each shape."""
    everyone = tuple(range(world_size))
    groups = list(dict.fromkeys((*(shape.ranks for shape in shapes), everyone)))
    ranks = [_rank(rank, device_kind, shapes) for rank in everyone]
    return Program(world_size, world_size, {}, {}, {NAME: ClassProgram(NAME, [])}, ranks, groups)


def _rank(rank: int, device_kind: str, shapes: Sequence[GroupShape]) -> RankProgram:
    """Its collectives stand there, for the ranks to agree how each is done."""
    comms = [
        collective_step(kind, step_number(number, kind), shape.ranks, len(shape.ranks))
        for number, shape in enumerate(shapes)
        for kind in COLLECTIVES
        if rank in shape.ranks
    ]
    return RankProgram(
        rank=rank,
        device=rank,
        pipeline=0,
        stage=0,
        coordinate=0,
        class_name=NAME,
        device_kind=device_kind,
        rows=[],
        literals=[],
        comms=comms,
        transfers=[],
        shards=[],
        grad_buckets=[],
        instructions=[],
    )
