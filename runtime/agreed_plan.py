"""That all ranks take a step with the same plan, before the first message of a size that it says."""

from __future__ import annotations

import torch

from ..errors import RunError
from ..program.sized.plan_file import plan_digest
from ..program.sized.size_range import SizeRange
from ..program.sized.step_plan import StepPlan
from .batches.batch_check import BatchCheck
from .transport import Transport


def agree(plan: StepPlan | None, batches: BatchCheck, transport: Transport, step: int) -> None:
    """RunError on every rank where plans differ; every rank asks, also one without a plan.

    It costs a reduction of one number. In the step's own reductions it would come too late: messages that two
    ranks expect in unlike sizes hang, or are read as what they are not. step: counted from 1.
    """
    if transport.world_size == 1:
        return
    said = {"plan": "none" if plan is None else f"digest {plan_digest(plan)}"}
    addend = torch.tensor(batches.addend({}, False, said), dtype=torch.float64, device=transport.device)
    batches.check(float(transport.sum_over_ranks(addend)), {}, False, step, said)


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
