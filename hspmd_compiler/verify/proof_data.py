"""Batches that a user gives to a proof, held to what the program takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from torch import Tensor

from ..errors import OptionError
from ..program.program import Program
from ..program.sized.documents import documents_read, refuse_cut_documents
from ..program.sized.plan_check import check_plan
from ..program.sized.sizes import Count
from ..program.sized.step_plan import StepPlan
from ..runtime.batches.data import BatchShape, FactoryData, load_factory
from ..runtime.batches.sized_data import SizedFactoryData, planned_batch

Batch = Mapping[str, Tensor]
Planned = tuple[Batch, StepPlan]
"""Of a program whose sizes each step chooses."""
GivenBatches = Sequence[Batch] | Sequence[Planned]


def given_to(program: Program, batch: Batch | GivenBatches | Iterable[Batch], steps: int) -> GivenBatches:
    """One global batch for every step, or the first of several; an OptionError where there is none."""
    found: list[object] = [batch] if isinstance(batch, Mapping) else list(islice(batch, steps))
    if program.sizes is not None and found:
        return [
            checked_plan(program, *planned_batch(each, program.sizes, f"batch {number}"))
            for number, each in enumerate(found, 1)
        ]
    shape, checked = BatchShape.of(program), list[Batch]()
    for each in found:
        if not isinstance(each, Mapping):
            raise _no_dict(each)
        shape.check(each)
        checked.append(each)
    if not checked:
        raise _empty("batch")
    return checked


def made_for(program: Program, name: str, steps: int) -> GivenBatches:
    """The first batches of `module:factory`, as `hspmd run --data` takes them, of one epoch."""
    whole = [(0, program.batch)]
    factory = load_factory(name)
    if program.sizes is not None:
        sized = SizedFactoryData(factory, BatchShape.of(program), program.sizes)
        planned = [checked_plan(program, each, sized.plan) for each in islice(sized, steps)]
        if not planned:
            raise _empty(f"--data {name}")
        return planned
    data = FactoryData(factory, BatchShape.of(program), 0, whole, frozenset(program.inputs))
    found: list[Batch] = list(islice(data, steps))
    if not found:
        raise _empty(f"--data {name}")
    return found


def checked_plan(program: Program, batch: Batch, plan: StepPlan | None) -> Planned:
    """A step's batch and plan, held to what an engine takes."""
    assert program.sizes is not None and plan is not None, "of a program for micro-batches of any size"
    check_plan(plan, program.sizes)
    unit = program.sizes.unit
    replace(BatchShape.of(program), batch=plan.total(unit)).check(batch)
    for name in sorted({name for shared in program.classes.values() for name in documents_read(shared)}):
        rows = plan.rows(unit)
        packed = [batch[name][0, low:high] for low, high in rows] if unit is Count.TOKENS else batch[name]
        refuse_cut_documents(name, list(packed))
    return batch, plan


def _no_dict(batch: object) -> OptionError:
    return OptionError(
        f"a batch is a {type(batch).__name__}",
        rule="a batch is a dict of tensors, by the names of forward's arguments",
        fix="batch={'x': x, 'y': y}, or a list of such dicts",
    )


def _empty(what: str) -> OptionError:
    return OptionError(
        f"{what} gives no batch to verify with",
        rule="a proof steps on at least one whole global batch",
        fix="give a dict of tensors with all samples of the global batch, or an iterable of such dicts",
    )
