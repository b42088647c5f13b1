"""Batches of a program whose sizes each step chooses: what a factory gives, and a plan for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ...errors import RunError
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Count
from ...program.sized.spread import spread_rows, spread_samples
from ...program.sized.step_plan import StepPlan
from .data import END, Batch, BatchFactory, BatchShape, FactoryData, count_samples

SHOWN_ROWS = 10
RULE = (
    "a batch of packed tokens is a list of rows, each a dict of tensors [tokens, ...] of any length in the"
    " program's range; one of samples is a dict of tensors [samples, ...]; or either is a pair of one dict"
    " for the whole step and its StepPlan"
)


class SizedFactoryData(FactoryData):
    """Batches of a factory, each with the plan of its step: `plan` is that of the batch given last.

    Rows, or samples, are shared out by the strategy's shares; the plan follows from their sizes alone, so
    that all ranks make the same. A last batch of any size is used, too.
    """

    def __init__(self, factory: BatchFactory, shape: BatchShape, sizes: SizeRange, seed: int = 0) -> None:
        super().__init__(factory, shape, seed)
        if self.local:
            raise RunError(
                "the data's factory asks for rows, which each step chooses",
                rule="a program of no one size takes whole batches; each rank takes its own part of them",
                fix="leave `rows` out of the factory's arguments",
            )
        self._sizes = sizes

    def __iter__(self) -> Iterator[Batch]:
        if self._inner is None:
            self._inner = self._start()
            for _ in range(self._batches):
                if self._next(self._inner) is END:
                    break
        while (given := self._next(self._inner)) is not END:
            batch, self.plan = planned_batch(given, self._sizes)
            self._batches += 1
            yield batch
        self._inner = None
        self._end_epoch()


def planned_batch(given: object, sizes: SizeRange) -> tuple[Batch, StepPlan]:
    """The whole step's batch, and how its micro-batches lie in it; RunError for anything else."""
    match given:
        case (Mapping() as batch, StepPlan() as plan):
            return dict(batch), plan
        case Mapping() as batch if sizes.unit is Count.SAMPLES and count_samples(batch):
            return dict(batch), spread_samples(count_samples(batch), sizes)
        case Mapping() as row if sizes.unit is Count.TOKENS:
            return _of_rows([row], sizes)
        case list() | tuple() if given and sizes.unit is Count.TOKENS:
            return _of_rows(given, sizes)
    raise RunError(f"a batch is a {type(given).__name__} that is none", rule=RULE)


def _of_rows(given: Sequence[object], sizes: SizeRange) -> tuple[Batch, StepPlan]:
    rows = [row for row in given if isinstance(row, Mapping)]
    keys = list(rows[0]) if rows else []
    problems = [(f"row {number}", _problem(row, keys)) for number, row in enumerate(given)]
    wrong = [(row, problem) for row, problem in problems if problem]
    if wrong:
        raise RunError("rows of a batch don't fit each other", details=wrong[:SHOWN_ROWS], rule=RULE)
    lengths = [len(row[keys[0]]) for row in rows]
    return {key: torch.cat([row[key] for row in rows])[None] for key in keys}, spread_rows(lengths, sizes)


def _problem(row: object, keys: Sequence[str]) -> str:
    """What is wrong with a row of these keys, empty if nothing."""
    if not isinstance(row, Mapping) or set(row) != set(keys):
        return f"a dict of {', '.join(keys) or 'tensors'} is wanted"
    shapes = {key: list(value.shape) if isinstance(value, Tensor) else [] for key, value in row.items()}
    if len({shape[0] if shape else None for shape in shapes.values()} - {None}) == 1 and all(shapes.values()):
        return ""
    return ", ".join(f"{key} {shape}" for key, shape in shapes.items())
