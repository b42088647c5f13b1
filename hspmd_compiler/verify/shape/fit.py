"""Do all rank programs fit together? By shape: operators once per class, communication for every rank."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from ...base.collection import without_collection
from ...base.devices import DeviceKind
from ...base.log import task
from ...errors import VerifyError
from ...program.execute import RankPlan, RankState, plan_rank, plan_ranks
from ...program.program import Program, RankProgram
from ...program.sized.instantiate import instantiate
from ..lockstep.alike import Likeness
from ..lockstep.blocked import RankRun
from ..lockstep.lockstep import Lockstep
from ..lockstep.report import LockstepReport
from ..lockstep.tensors import TensorNames
from .coverage import check_gradients
from .shape_segments import ShapeBook
from .shapes import ShapeValue
from .solo import FollowedArrays, Script, follow, solo


def check_fit(
    program: Program, names: TensorNames | None = None, book: ShapeBook | None = None
) -> LockstepReport:
    """Step every rank through one training step by shape; a VerifyError at the first misfit.

    Ranks whose tables differ in partners only ask for the same: one of them is walked alone, and all
    follow it, each with its own partners, groups and tags. names: for errors. book: of
    another program that shares segments with this one.
    """
    with torch.no_grad(), without_collection():
        scripts = _scripts(program, book or ShapeBook())
        arrays = FollowedArrays()
        named = names or TensorNames(program)
        runs = [
            _run(program, own, script, arrays, named)
            for own, script in zip(program.ranks, scripts, strict=True)
        ]
        requests = sum(len(script.asked) for script in scripts)
        with task("match communication", requests) as progress:
            events = Lockstep(runs, progress=progress.advance).run()
    return LockstepReport(program.world_size, events, tuple(script.peak for script in scripts))


def check_rank(program: Program, rank: int) -> None:
    """Walk one rank's step by shape, before a run starts; a VerifyError where it can't be computed.

    Of a program for micro-batches of any size: the step of its first compile. What it holds on a CPU must fit
    into the machine: a wrong size in a file would end the process.
    """
    if program.sizes is not None:
        program = instantiate(program, program.sizes.probes[0])
    plan = plan_rank(program, rank)
    with torch.no_grad(), without_collection(), task("check the step by shape"):
        check_gradients(plan)
        peak = solo(program, plan, ShapeBook()).peak
    if plan.program.device_kind == DeviceKind.CPU.value:
        check_memory(peak, f"rank {rank}")


def check_memory(peak: int, who: str) -> None:
    """Raise where so many bytes are more than the machine has."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if peak > there:
        raise VerifyError(
            f"{who} would hold {peak:,} bytes at once, this machine has {there:,}",
            rule="a step is computed in the memory of the machine",
            fix="use a machine with more memory, or a strategy that splits further; values of a program that"
            " is too large are proved with `--twin`",
        )


def _scripts(program: Program, book: ShapeBook) -> list[Script]:
    """What each rank asks for; one object for ranks that are alike."""
    likeness = Likeness()
    numbers = [likeness.of(own) for own in program.ranks]
    first = dict(zip(reversed(numbers), reversed(program.ranks), strict=True))
    plans = plan_ranks(replace(program, ranks=list(first.values())))
    scripts: dict[int, Script] = {}
    with task("walk ranks by shape", len(plans)) as progress:
        for number, plan in reversed(list(zip(first, plans, strict=True))):
            check_gradients(plan)
            scripts[number] = _walked(program, plan, book)
            progress.advance()
    return [scripts[number] for number in numbers]


def _walked(program: Program, plan: RankPlan, book: ShapeBook) -> Script:
    """Walk a rank, again if an operator was computed on the way: PyTorch's first calls may keep frames alive,
    and with them values that the rank has given up, which would count as its memory."""
    while True:
        before = book.operators.computed
        script = solo(program, plan, book)
        if book.operators.computed == before:
            return script


def _run(
    program: Program, own: RankProgram, script: Script, arrays: FollowedArrays, names: TensorNames
) -> RankRun[ShapeValue]:
    """A rank that follows a script has nothing to release."""
    plan = RankPlan(own, program.classes[own.class_name], [], frozenset(), [], [], {})
    state: RankState[ShapeValue] = RankState({})
    return RankRun(plan, state, arrays, follow(script, own, state), names=names)
