"""Rows that several pipelines share: which tokens of them a pipeline runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...base.comm_plan import Interval
from ...base.context import member_runs
from ..context.row_piece import RowPiece
from .size_range import SizeRange
from .sizes import MicroSizes


def own_runs(micro: MicroSizes, member: int, members: int) -> tuple[Interval, ...]:
    """The runs of a row that one of its members has; nothing, of a micro-batch of nothing."""
    return member_runs(micro.ring, members)[member] if micro.ring else ((0, 0),)


def own_pieces(
    sizes: SizeRange, pipeline: int, micros: Sequence[MicroSizes], inputs: Iterable[str]
) -> list[RowPiece]:
    """What a pipeline runs of each of its micro-batches; empty where it shares none.

    inputs: by name, all of which have tokens.
    """
    group, names = sizes.group_of(pipeline), tuple(sorted(inputs))
    if len(group) == 1:
        return []
    member = group.index(pipeline)
    return [RowPiece(own_runs(micro, member, len(group)), names) for micro in micros]
