"""Runs of operators as CUDA graphs: recorded once, replayed by one call of the host.

What lies in the same place at every call, as parameters do, is read where it lies. Other operands are copied
to where the graph reads them, and results out of where it writes: several micro-batches keep theirs. A run
whose copies would cost more than its calls do is not recorded. Written without a GPU at hand: tests replay
runs on the CPU, and `benchmarks/gpu_check.py` is for the first machine that has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from .torch_compiled import RowsFunction

MOST_COPIED_BYTES = 4 << 20
"""In and out of a graph at a replay: some microseconds, as a few calls of the host take."""
WATCHED = 2
"""Calls before one is recorded; they show what stays in its place, and load what kernels need."""
MOST_RECORDED = 4
"""Of a run: layouts of micro-batches that it has, and places that operands come to lie in."""

OperandForm: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


class RecordedRun(Protocol):
    """A recorded run. results: where it writes."""

    @property
    def results(self) -> tuple[Tensor, ...]: ...

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Records runs. takes: whether such an operand can be in one."""

    def takes(self, operand: Tensor) -> bool: ...

    def record(self, rows: RowsFunction, operands: Sequence[Tensor]) -> RecordedRun: ...


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """See RecordedRun."""

    graph: torch.cuda.CUDAGraph
    results: tuple[Tensor, ...]

    def replay(self) -> None:
        """See RecordedRun."""
        self.graph.replay()


class CudaRecorder:
    """See Recorder."""

    def takes(self, operand: Tensor) -> bool:
        """See Recorder."""
        return operand.is_cuda

    def record(self, rows: RowsFunction, operands: Sequence[Tensor]) -> RecordedRun:
        """See Recorder."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = rows(*operands)
        return CudaGraph(graph, results)


@dataclass(frozen=True, slots=True)
class _Replayable:
    """A recorded run and its operands: those that are copied in, by place, and where the others lie."""

    run: RecordedRun
    copied: dict[int, Tensor]
    places: dict[int, int]

    def fits(self, given: Sequence[Tensor]) -> bool:
        return all(given[number].data_ptr() == place for number, place in self.places.items())

    def __call__(self, given: Sequence[Tensor]) -> tuple[Any, ...]:
        for number, operand in self.copied.items():
            operand.copy_(given[number])
        self.run.replay()
        return tuple(result.clone() for result in self.run.results)


class GraphedRun:
    """A run that is watched, then recorded, then replayed; else called as it is."""

    def __init__(self, rows: RowsFunction, recorder: Recorder | None = None) -> None:
        self._rows = rows
        self._recorder = recorder or CudaRecorder()
        self._watched: dict[tuple[OperandForm, ...], list[list[int]]] = {}
        self._recorded: dict[tuple[OperandForm, ...], list[_Replayable]] = {}
        self._records = 0

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        if not given or not all(isinstance(each, Tensor) and self._recorder.takes(each) for each in given):
            return self._rows(*given)
        layouts = tuple((tuple(each.shape), each.stride(), each.dtype) for each in given)
        for known in self._recorded.get(layouts, ()):
            if known.fits(given):
                return known(given)
        seen = self._watched.setdefault(layouts, [])
        seen.append([each.data_ptr() for each in given])
        if len(seen) <= WATCHED or self._records >= MOST_RECORDED:
            del seen[:-WATCHED]
            return self._rows(*given)
        return self._record(layouts, given, seen)

    def _record(
        self, layouts: tuple[OperandForm, ...], given: Sequence[Tensor], seen: list[list[int]]
    ) -> tuple[Any, ...]:
        """Record this call, where its copies are worth it; its results are those of a plain call."""
        plain = self._rows(*given)
        self._records += 1
        still = {number for number, places in enumerate(zip(*seen, strict=True)) if len({*places}) == 1}
        seen.clear()
        moving = [number for number in range(len(given)) if number not in still]
        if not all(isinstance(each, Tensor) for each in plain):
            return plain
        copied_bytes = sum(each.nbytes for each in (*plain, *(given[number] for number in moving)))
        if copied_bytes > MOST_COPIED_BYTES:
            return plain
        copied = {number: given[number].clone() for number in moving}
        operands = [copied.get(number, each) for number, each in enumerate(given)]
        run = self._recorder.record(self._rows, operands)
        places = {number: given[number].data_ptr() for number in still}
        self._recorded.setdefault(layouts, []).append(_Replayable(run, copied, places))
        return plain
