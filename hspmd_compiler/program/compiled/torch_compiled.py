"""A segment whose runs of operators are compiled by torch.compile.

It is cut where it communicates, at kernels of ours that look at values, draw numbers or attend, and where
views alone would be left: these run as they stand, as does a run that can't be compiled, which is said once.
Compiled runs may round otherwise. Equal results may share their memory then, which plain ones never do, so
nothing is reduced in place, and what must be apart is put apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...base.log import logger
from ...errors import ArtifactError, HspmdError, first_line
from ..codegen import Code, SegmentFunction, TextWriter, function_text, generator, released, value_name
from ..interpret import RowCall, read_rows
from ..lifetimes import FRESH_OPS, VIEW_OPS
from ..program import ALIASES, COMM, COMM_START, GETITEM, Segment, Value

RowsFunction: TypeAlias = Callable[..., tuple[Any, ...]]
Compiler: TypeAlias = Callable[[RowsFunction], RowsFunction]
TRACED = frozenset(
    {"hspmd.full", "hspmd.take", "hspmd.factor_take", "hspmd.place", "hspmd.zero_unless"}
    | {"hspmd.vocab_embedding", "hspmd.vocab_embedding_backward", "hspmd.row_max", "hspmd.exp_sum"}
    | {"hspmd.log_softmax_finish", "hspmd.log_softmax_backward", "hspmd.valid_count", "hspmd.nll_pick"}
    | {"hspmd.nll_backward", "hspmd.nll_rowsum", "hspmd.channel_sum", "hspmd.channel_squares"}
)
"""Kernels of ours that are operators of PyTorch on their arguments, whatever values these have."""
LEAST_ROWS = 2
"""Of a run that is worth a call of its own, views not counted."""
_told: set[str] = set()


def by_torch(piece: RowsFunction) -> RowsFunction:
    """torch.compile of all of a function; what is compiled is kept on disk, by its own cache."""
    compiled: RowsFunction = torch.compile(piece, fullgraph=True)
    return compiled


def compile_pieces(
    segment: Segment,
    literals: Sequence[object],
    device: str = "cpu",
    starts: bool = False,
    compiler: Compiler | None = None,
) -> SegmentFunction:
    """As `compile_segment`. compiler: of a run, by default torch.compile."""
    writer = TextWriter(device, starts)
    lines: list[str] = []
    for is_run, group in groupby(read_rows(segment, literals), _is_traced):
        calls = [*group]
        if is_run and sum(call.row.op not in VIEW_OPS for call in calls) >= LEAST_ROWS:
            lines += _call_of(calls, writer, device, compiler or by_torch)
        else:
            lines += [line for call in calls for line in writer.lines(replace(call, may_overwrite=False))]
    if writer.sizes:
        raise ArtifactError(
            f"segment {segment.name} has sizes that a step chooses",
            rule="torch.compile takes programs of one size",
            fix="run without --torch-compile",
        )
    return generator(segment, writer, lines).function()


def _is_traced(call: RowCall) -> bool:
    op = call.row.op
    if op in (COMM, COMM_START):
        return False
    return op in ALIASES or op == GETITEM or op in TRACED or op.startswith("aten.")


def _call_of(calls: Sequence[RowCall], writer: TextWriter, device: str, compiler: Compiler) -> Iterator[str]:
    """The line that calls a run, and what is let go of behind it."""
    made = {call.row.out.id: call.row.op for call in calls}
    reads = [*dict.fromkeys(value for call in calls for value in call.reads if value not in made)]
    dead = {value for call in calls for value in call.dead}
    gives = [value for value in made if value not in dead]
    if not gives:
        return
    fresh = [place for place, value in enumerate(gives) if made[value] in FRESH_OPS]
    name = f"p{len(writer.names)}"
    writer.names[name] = CompiledRun(_plain(calls, reads, gives, device), fresh, compiler)
    targets, arguments = ["".join(f"v{value}, " for value in each) for each in (gives, reads)]
    yield f"{targets}= {name}({arguments})"
    yield from released([value for value in reads if value in dead])


def _plain(calls: Sequence[RowCall], reads: Sequence[int], gives: Sequence[int], device: str) -> RowsFunction:
    """The rows as a function."""
    writer = TextWriter(device, False)
    rows = [line for call in calls for line in writer.lines(call)]
    result = "".join(f"{value_name(Value(value))}, " for value in gives)
    text = function_text([f"v{value}" for value in reads], [*rows, f"return ({result})"])
    function: Any = Code(text, writer.names).function()
    return function  # type: ignore[no-any-return]


class CompiledRun:
    """Rows that run at once. plain: as they stand. fresh: which of its results have memory of their own."""

    def __init__(self, plain: RowsFunction, fresh: Sequence[int], compiler: Compiler) -> None:
        self._plain = plain
        self._fresh = fresh
        self._function: RowsFunction | None = compiler(plain)

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        if self._function is None:
            return self._plain(*given)
        try:
            made = self._function(*given)
        except HspmdError:
            raise
        except Exception as error:  # of any part of a compiler: the rows are right without
            self._function = None
            _tell(error)
            return self._plain(*given)
        return self._apart(given, made)

    def _apart(self, given: Sequence[Any], made: tuple[Any, ...]) -> tuple[Any, ...]:
        """What is to have its own memory gets it, where a compiler has found it equal to something else."""
        if not self._fresh:
            return made
        held = {_memory(each) for each in given if isinstance(each, Tensor)}
        found = list(made)
        for place, value in enumerate(made):
            memory = _memory(value) if isinstance(value, Tensor) else 0
            if memory and memory in held and place in self._fresh:
                found[place] = value.clone()
            held.add(memory)
        return tuple(found)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tell(error: Exception) -> None:
    """Once for each reason."""
    reason = first_line(error)
    if not _told:
        logger.warning("a part of the program can't be compiled, and runs as it stands: %s", reason)
    _told.add(reason)
