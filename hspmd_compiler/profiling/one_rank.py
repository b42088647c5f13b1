"""A program of one device, stepped here: each instruction timed, or each row of its segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import Tensor

from ..base.devices import DeviceKind
from ..options import OptimizerConfig
from ..program.arrays import TorchArrays
from ..program.codegen import SegmentCache
from ..program.execute import RankPlan, RankState, SegmentRunner, plan_rank, run_step
from ..program.interpret import RowCall, function_of, read_rows, walk_rows
from ..program.kernels.random_kernels import step_keys
from ..program.program import ALIASES, Program, Shard
from ..program.requests import LossReduce, OptimizerStep, SegmentRun
from ..program.segments import CompiledSegments
from ..program.trained import started
from ..runtime.optimizer import ShardOptimizer
from ..runtime.timing.step_timer import Part, StepTimer
from ..runtime.update import update_shards
from ..strategy.strategy import PipelineSpec, StageSpec, Strategy
from .layer_models import LayerModel

SCALE = 0.02
LEARNING_RATE = 1e-4
READINGS = 100
"""Of the clock, to find how long one takes."""


def compiled(model: LayerModel, micro_batches: Sequence[int], device: DeviceKind) -> Program:
    """The program that trains a layer model on one device, by micro-batches of these sizes."""
    from ..compiler import compile_model  # late: a rank's memory is measured without it

    stages = (StageSpec((0,), (0, model.layers)),)
    strategy = Strategy((PipelineSpec(stages, tuple(micro_batches)),))
    made = compile_model(model.factory(), None, strategy, OptimizerConfig(), device)
    return made.artifact.program


def work_timer(device: torch.device) -> StepTimer:
    """Of computing. One thread of a CPU is timed by what it works: other processes' turns don't count."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return StepTimer(device, {}, records=True, clock=thread_time if alone else perf_counter)


@dataclass(frozen=True, slots=True)
class RowKey:
    """A row of a segment."""

    segment: int
    row: int


class TimedSegments:
    """Segments of one rank row by row. rows: what each took, each time it ran; its release is its own time.

    seen: told of each row's first run: call, operands, result.
    """

    def __init__(
        self, plan: RankPlan, device: torch.device, seen: Callable[[RowKey, RowCall, list[Any], Any], None]
    ) -> None:
        self.rows: dict[RowKey, list[float]] = {}
        self._segments = plan.shared.segments
        self._calls = [read_rows(segment, plan.program.literals) for segment in self._segments]
        self._timer = work_timer(device)
        self._device = str(device)
        self._seen = seen
        self._open: tuple[RowKey, float, float] | None = None
        self._reading_s = min(-self._timer.now() + self._timer.now() for _ in range(READINGS))

    def start(self, segment: int, mb: int, inputs: list[Tensor], owned: list[bool]) -> SegmentRun[Tensor]:
        """See SegmentRunner."""
        self._close(None)
        return walk_rows(
            self._segments[segment], self._calls[segment], inputs, partial(self._compute, segment)
        )

    def _compute(self, segment: int, call: RowCall, values: Mapping[int, Any]) -> Any:
        self._close(self._timer.now())
        arguments, named = call.filled(values, self._device)
        is_alias = call.row.op in ALIASES
        function = function_of(call.row.op) if not is_alias else None
        start = self._timer.now()
        result = arguments[0] if function is None else function(*arguments, **named)
        end = self._timer.now()
        key = RowKey(segment, call.row.out.id)
        if key not in self.rows:
            self._seen(key, call, [values[number] for number in call.reads], result)
            self._open, self.rows[key] = None, []  # the first run is a warm-up
        else:
            self._open = (key, end - start, end)
        return result

    def _close(self, now: float | None) -> None:
        """End the row before: what it was the last to read has been let go of."""
        if self._open is not None:
            key, seconds, end = self._open
            taken = seconds - self._reading_s + (0.0 if now is None else now - end - self._reading_s)
            self.rows[key].append(max(taken, 0.0))
        self._open = None


class OneRank:
    """A program of one rank with parameters of its own, stepped on zeros as the runtime would."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self.plan = plan_rank(program, 0)
        self._device = device
        self._arrays = TorchArrays(str(device))
        self._timer = work_timer(device)
        self._optimizer = ShardOptimizer(OptimizerConfig())
        params = {shard.name: self._start(shard) for shard in self.plan.program.shards}
        self._state: RankState[Tensor] = started(self.plan.program.shards, params)
        inputs = program.inputs.items()
        whole = {key: self._zeros(shape, dtype) for key, (shape, dtype) in inputs}
        rows = self.plan.program.rows
        self._batches = [{key: value[low:high] for key, value in whole.items()} for low, high in rows]
        self._compiled = CompiledSegments(self.plan, SegmentCache(str(device)))

    @property
    def sizes(self) -> list[int]:
        """Samples of each micro-batch."""
        return [high - low for low, high in self.plan.program.rows]

    @torch.no_grad()
    def step(self, segments: SegmentRunner[Tensor] | None = None) -> list[Part]:
        """One step, each instruction timed."""
        self._state.keys = step_keys(self.plan.program.drawn_rows, 0, 0)
        runner = self._compiled if segments is None else segments
        run = run_step(self.plan, self._state, self._batches, runner, self._arrays, self._timer.finished)
        self._timer.begins()
        answer: Tensor | None = None
        try:
            while True:
                request = run.send(answer)
                answer = request.value if isinstance(request, LossReduce) else None
                if isinstance(request, OptimizerStep):
                    shards = self.plan.program.shards
                    update_shards(shards, self._state, self._optimizer, None, LEARNING_RATE)
        except StopIteration:
            return self._timer.parts

    def _start(self, shard: Shard) -> Tensor:
        value = self._zeros(shard.shape, shard.dtype)
        return value.normal_(0.0, SCALE) if value.is_floating_point() else value

    def _zeros(self, shape: Sequence[int], dtype: str) -> Tensor:
        return torch.zeros(tuple(shape), dtype=getattr(torch, dtype), device=self._device)
