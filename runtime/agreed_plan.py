"""That all ranks take a step with the same plan, before the first message of a size that it says."""

from __future__ import annotations

from typing import cast

import torch

from ..errors import HspmdError, RunError
from ..program.sized.plan_file import plan_digest
from ..program.sized.size_range import SizeRange
from ..program.sized.step_plan import StepPlan
from .batches.batch_check import BatchCheck
from .failure import Failure
from .transport import Transport


def agree(
    plan: StepPlan | None,
    problem: HspmdError | None,
    batches: BatchCheck,
    transport: Transport,
    step: int,
) -> None:
    """An error on every rank where plans differ, or where one has a problem with it; every rank asks.

    It costs a reduction of two numbers. In the step's own reductions it would come too late: messages that
    two ranks expect in unlike sizes hang, or are read as what they are not. step: counted from 1.
    """
    said = {"plan": "none" if plan is None else f"digest {plan_digest(plan)}"}
    own = [float(batches.addend({}, False, said)), float(problem is not None)]
    found = transport.sum_over_ranks(torch.tensor(own, dtype=torch.float64, device=transport.device))
    total, problems = found.tolist()
    batches.check(total, {}, False, step, said)
    if problems:
        told = transport.gather_objects(None if problem is None else Failure.of(problem).to_json())
        raise problem or next(
            Failure.from_json(cast(dict[str, object], each)).error(f"rank {rank}")
            for rank, each in enumerate(told)
            if each is not None
        )


def missing_plan(sizes: SizeRange) -> RunError:
    """Of a step without a plan."""
    return RunError(
        "a step needs a plan",
        details=[("program", f"takes micro-batches of {sizes.low} to {sizes.high} {sizes.unit.value}")],
        rule="a program of no one size is told the sizes of each step, alike on every rank",
        fix="engine.step(batch, plan) with a StepPlan; `hspmd run` makes plans by itself",
    )


def needless_plan() -> RunError:
    """Of a step with a plan, of a program that has its sizes."""
    return RunError(
        "a step of this program takes no plan",
        rule="its micro-batches have the sizes that it was compiled for",
        fix="compile with `sizes` in the strategy, or call engine.step(batch)",
    )
