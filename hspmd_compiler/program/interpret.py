"""A segment's rows, read once and walked by one loop: for numbers, for shapes and for nodes of a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import InternalError, first_line
from .arguments import map_leaves
from .lifetimes import dead_after, overwritable_comms, row_reads, unread_inputs
from .literals import PLACED_BY_EXECUTOR, resolve, resolved_kwargs
from .program import ALIASES, COMM, COMM_START, GETITEM, Hole, LocalRow, Segment, Value
from .requests import SegmentRun, V

if TYPE_CHECKING:
    from torch import Tensor

    from .kernels.kernels import Kernel


@dataclass(frozen=True, slots=True)
class RowCall:
    """A row with its literals in place.

    args, kwargs: hold a Value for each value that is read. reads: each of these once, in order. dead: values
    that nothing reads afterwards, the row's own result included. may_overwrite: of a `comm` row.
    """

    row: LocalRow
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    reads: tuple[int, ...]
    dead: Sequence[int] = ()
    may_overwrite: bool = False

    def keywords(self, device: str) -> dict[str, object]:
        """Keyword arguments of the row's function. device: of what is made from nothing."""
        from .kernels.kernels import makes_tensor_from_nothing  # late, with torch: prices read rows without

        if self.row.op not in (GETITEM, COMM_START) and makes_tensor_from_nothing(self.row.op):
            return {**self.kwargs, "device": device}
        return dict(self.kwargs)

    def filled(self, values: Mapping[int, Any], device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keyword arguments of the row's function, with values for what is read."""
        filled: tuple[tuple[Any, ...], dict[str, Any]]
        filled = map_leaves((self.args, self.keywords(device)), partial(_filled, values=values))
        return filled


Rows = Callable[[RowCall, Mapping[int, V]], V]
"""What a row makes of the values that it reads."""
Seen = Callable[[RowCall, V], None]
"""Called after each row with its result, before the values die that die with it."""


def read_row(
    row: LocalRow, literals: Sequence[object], dead: Sequence[int] = (), may_overwrite: bool = False
) -> RowCall:
    """One row, its holes filled from the rank's literals."""
    args = tuple(resolve(argument, literals) for argument in row.args)
    reads = tuple(dict.fromkeys(row_reads(row)))
    return RowCall(row, args, resolved_kwargs(row, literals), reads, dead, may_overwrite)


def untyped_row(row: LocalRow, literals: Sequence[object]) -> RowCall:
    """As `read_row`, but element types and layouts stay names: PyTorch is not asked, and nothing can run."""
    kwargs = {name: item for name, item in row.kwargs.items() if name not in PLACED_BY_EXECUTOR}
    args, named = map_leaves(
        (row.args, kwargs), lambda leaf: literals[leaf.index] if isinstance(leaf, Hole) else leaf
    )
    return RowCall(row, args, named, tuple(dict.fromkeys(row_reads(row))))


def read_rows(segment: Segment, literals: Sequence[object]) -> list[RowCall]:
    """The rows of a segment in order."""
    dead = dead_after(segment)
    overwritable = overwritable_comms(segment, dead)
    return [
        read_row(row, literals, dead[index], index in overwritable) for index, row in enumerate(segment.rows)
    ]


def walk_rows(
    segment: Segment,
    calls: Sequence[RowCall],
    inputs: Sequence[V],
    compute: Rows[V],
    seen: Seen[V] | None = None,
    starts: bool = False,
) -> SegmentRun[V]:
    """The same generator as `compile_segment` makes, for values of any kind. starts: see SegmentCache."""
    values: dict[int, V] = {item.value.id: given for item, given in zip(segment.inputs, inputs, strict=True)}
    del inputs
    for value in unread_inputs(segment):
        values.pop(value, None)
    for call in calls:
        out = call.row.out.id
        if call.row.op == COMM:
            source, slot, *counts = (_filled(argument, values) for argument in call.args)
            made = yield slot, (source, *counts) if counts else source, call.may_overwrite
            del source
        elif call.row.op == COMM_START and starts:
            source, slot = (_filled(argument, values) for argument in call.args)
            made = yield slot, source, None
            del source
        else:
            made = compute(call, values)
        values[out] = made
        if seen is not None:
            seen(call, made)
        del made
        for value in call.dead:
            del values[value]
    return tuple(values[output.value.id] for output in segment.outputs)


def function_of(op: str) -> Kernel:
    """What a row calls; aliases have nothing to call, and `comm` rows ask."""
    from .kernels.kernels import kernel

    return operator.getitem if op == GETITEM else kernel(op)


def compute_row(call: RowCall, values: Mapping[int, Any], device: str) -> Any:
    """The result of one row, of tensors."""
    if call.row.op in ALIASES:
        return _filled(call.args[0], values)
    arguments, named = call.filled(values, device)
    return function_of(call.row.op)(*arguments, **named)


def interpreted(
    segment: Segment,
    literals: Sequence[object],
    inputs: Sequence[Tensor],
    device: str,
    seen: Seen[Any] | None = None,
) -> SegmentRun[Any]:
    """A segment on tensors, every value shown: slower than codegen, for proofs."""

    def compute(call: RowCall, values: Mapping[int, Any]) -> Any:
        try:
            return compute_row(call, values, device)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise not_computed(call, values, error) from error

    return walk_rows(segment, read_rows(segment, literals), inputs, compute, seen, starts=True)


def not_computed(call: RowCall, values: Mapping[int, Any], error: Exception) -> InternalError:
    """The error of a row that its operator refuses."""
    row = call.row
    return InternalError(
        f"{row.op} can't be computed: {first_line(error)}",
        at=f"v{row.out.id}" + ("" if row.logical is None else f" (row {row.logical} of the graph)"),
        details=[(f"v{value}", _described(values[value])) for value in call.reads],
    )


def _described(value: object) -> str:
    from torch import Tensor

    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def _filled(argument: object, values: Mapping[int, Any]) -> Any:
    return values[argument.id] if isinstance(argument, Value) else argument
