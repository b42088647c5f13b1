"""A segment walked row by row, every value shown to an observer: slower than codegen, for proofs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..errors import InternalError
from .kernels import ALIASES, COMM, GETITEM, kernel, makes_tensor_from_nothing
from .literals import resolve, resolved_kwargs
from .liveness import dead_after, row_reads, unread_inputs
from .program import LocalRow, Segment, Value
from .requests import CommCall, SegmentRun

RowObserver = Callable[[LocalRow, Any, Sequence[int]], None]
"""Called after each row with its result and the values that die with it."""


def interpret_segment(
    segment: Segment,
    literals: Sequence[object],
    inputs: Sequence[Tensor],
    device: str,
    observe: RowObserver,
) -> SegmentRun[Tensor]:
    """The same generator as `compile_segment` makes."""
    values: dict[int, Any] = {item.value.id: x for item, x in zip(segment.inputs, inputs, strict=True)}
    del inputs
    for value in unread_inputs(segment):
        values.pop(value, None)
    for row, dead in zip(segment.rows, dead_after(segment), strict=True):
        if row.op == COMM:
            call: CommCall[Tensor] = _comm_call(row, values, literals)
            values[row.out.id] = yield call
        else:
            values[row.out.id] = _explained(row, values, literals, device)
        observe(row, values[row.out.id], dead)
        for value in dead:
            del values[value]
    return tuple(values[output.value.id] for output in segment.outputs)


def _explained(row: LocalRow, values: dict[int, Any], literals: Sequence[object], device: str) -> Any:
    try:
        return run_row(row, values, literals, device)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        read = dict.fromkeys(row_reads(row))
        raise InternalError(
            f"{row.op} can't be computed: {str(error).splitlines()[0]}",
            at=f"v{row.out.id}" + ("" if row.logical is None else f" (row {row.logical} of the graph)"),
            details=[(f"v{value}", _described(values[value])) for value in read],
        ) from error


def run_row(row: LocalRow, values: dict[int, Any], literals: Sequence[object], device: str) -> Any:
    """The result of one local row."""
    arguments = [_filled(resolve(argument, literals), values) for argument in row.args]
    if row.op == GETITEM:
        return arguments[0][arguments[1]]
    if row.op in ALIASES:
        return arguments[0]
    named = {name: _filled(item, values) for name, item in resolved_kwargs(row, literals).items()}
    if makes_tensor_from_nothing(row.op):
        named["device"] = device
    return kernel(row.op)(*arguments, **named)


def _comm_call(row: LocalRow, values: dict[int, Any], literals: Sequence[object]) -> CommCall[Tensor]:
    source, slot = (_filled(resolve(argument, literals), values) for argument in row.args)
    return slot, source, False


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def _filled(argument: object, values: dict[int, Any]) -> Any:
    if isinstance(argument, Value):
        return values[argument.id]
    if isinstance(argument, tuple):
        return tuple(_filled(item, values) for item in argument)
    return argument
