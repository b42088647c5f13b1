"""Do all rank programs fit together? By shape: operators once per class, communication for every rank."""

from __future__ import annotations

import torch

from ..artifact.execute import RankPlan, RankState, plan_ranks, run_step
from ..artifact.literals import torch_dtype
from ..artifact.program import Program
from .blocked import RankRun
from .coverage import check_gradients
from .lockstep import Lockstep
from .report import LockstepReport
from .shape_segments import ShapeBook, ShapeSegments
from .shapes import Meter, ShapeArrays, ShapeValue


def check_fit(program: Program) -> LockstepReport:
    """Step every rank through one training step by shape; a VerifyError at the first misfit."""
    plans = plan_ranks(program)
    for plan in plans:
        check_gradients(plan)
    meters = [Meter() for _ in plans]
    book = ShapeBook()
    with torch.no_grad():
        runs = [_shape_run(program, plan, book, meter) for plan, meter in zip(plans, meters, strict=True)]
        events = Lockstep(runs).run()
    return LockstepReport(program.world_size, events, tuple(meter.peak for meter in meters))


def _shape_run(program: Program, plan: RankPlan, book: ShapeBook, meter: Meter) -> RankRun[ShapeValue]:
    arrays = ShapeArrays(meter)
    params = {name: arrays.make(shard.shape, torch_dtype(shard.dtype)) for name, shard in plan.shards.items()}
    batches = [
        {
            key: arrays.make((high - low, *shape[1:]), torch_dtype(dtype))
            for key, (shape, dtype) in program.inputs.items()
        }
        for low, high in plan.program.rows
    ]
    state = RankState(params)
    steps = run_step(plan, state, batches, ShapeSegments(plan, book, meter), arrays)
    return RankRun(plan, state, arrays, steps)
