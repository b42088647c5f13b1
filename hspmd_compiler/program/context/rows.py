"""The rows of one member in place of one attention row, in each form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...base.context import ContextForm
from ...errors import InternalError
from .forms import ContextGroup, ContextRows, Numbering, Operands
from .gather_form import gather_backward, gather_forward
from .heads_form import heads_backward, heads_forward
from .ring_form import ring_backward, ring_forward
from .row_writer import RowWriter, all_runs

Written = Callable[[RowWriter], ContextRows]


@dataclass(frozen=True, slots=True)
class FormWriters:
    """Both passes of a form. steps: how many each takes, by the number of members."""

    forward: Written
    backward: Written
    steps: Callable[[int], tuple[int, int]]


WRITERS: Mapping[ContextForm, FormWriters] = {
    ContextForm.RING: FormWriters(
        ring_forward, ring_backward, lambda members: (members - 1, 2 * (members - 1))
    ),
    ContextForm.GATHER: FormWriters(gather_forward, gather_backward, lambda members: (1, 2)),
    ContextForm.HEADS: FormWriters(heads_forward, heads_backward, lambda members: (4, 5)),
}


def attention_rows(
    form: ContextForm, group: ContextGroup, member: int, operands: Operands, numbers: Numbering
) -> ContextRows:
    """The rows of the member with a number; of the backward pass where the operands have a gradient."""
    _check(group)
    writers = WRITERS[form]
    write = writers.forward if operands.grad is None else writers.backward
    return write(RowWriter(group, member, operands, numbers))


def step_count(form: ContextForm, members: int, backward: bool) -> int:
    """How many ids of steps a pass of an attention takes, on all members together."""
    return WRITERS[form].steps(members)[backward]


def _check(group: ContextGroup) -> None:
    """Members hold each token of the row once, and each rank the key-value heads that its queries read."""
    end = 0
    for low, high in all_runs(group):
        if low != end:
            raise InternalError(f"the runs {list(all_runs(group))} are not the tokens of a row, each once")
        end = high
    for member in group.members:
        for rank, heads, held in zip(member.ranks, member.heads, member.kv_heads, strict=True):
            low, high = heads[0] // group.kind.repeat, -(-heads[1] // group.kind.repeat)
            if heads[0] < heads[1] and not held[0] <= low < high <= held[1]:
                raise InternalError(
                    f"rank {rank} has query heads {list(heads)} and key-value heads {list(held)}, "
                    f"{group.kind.repeat} to one"
                )
