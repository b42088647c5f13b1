"""Batches of a program whose sizes each step chooses: what a factory gives, and a plan for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ...errors import RunError
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Count
from ...program.sized.spread import spread_rows, spread_samples
from ...program.sized.step_plan import StepPlan
from .data import END, Batch, BatchFactory, BatchShape, FactoryData, SampleRanges, count_samples

SHOWN_ROWS = 10
POSITIONS = "position_ids"
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
        self._taken: GivenSizes | None = None

    def __iter__(self) -> Iterator[Batch]:
        if self._inner is None:
            self._inner = self._start()
            for _ in range(self._batches):
                if self._next(self._inner) is END:
                    break
        while (given := self._next(self._inner)) is not END:
            batch, self._taken = sized_batch(given, self._sizes.unit)
            self._taken.check(self._sizes, f"batch {self._batches + 1} of epoch {self.epoch}")
            self.plan = self._taken.plan_for(self._sizes)
            self._batches += 1
            yield batch
        self._inner = None
        self._end_epoch()

    def take_rows(self, rows: SampleRanges, keys: frozenset[str], sizes: SizeRange | None = None) -> None:
        """See DataSource."""
        self._sizes = sizes or self._sizes
        self.plan = None if self._taken is None else self._taken.plan_for(self._sizes)


@dataclass(frozen=True, slots=True)
class GivenSizes:
    """What a batch has: samples, or rows of so many tokens and their documents; or a plan of its own."""

    samples: int = 0
    rows: tuple[int, ...] = ()
    documents: tuple[tuple[int, ...], ...] = ()
    plan: StepPlan | None = None

    def check(self, sizes: SizeRange, batch: str) -> None:
        """RunError for rows of no length that a program takes. batch: which one it is."""
        wrong = [
            (f"row {number}", f"{length:,} tokens")
            for number, length in enumerate(self.rows)
            if not sizes.low <= length <= sizes.high
        ]
        if wrong:
            more = [("...", f"{len(wrong) - SHOWN_ROWS:,} more")] if len(wrong) > SHOWN_ROWS else []
            raise RunError(
                f"rows of {batch} are not of a length that the program takes",
                details=[*wrong[:SHOWN_ROWS], *more],
                rule=f"it was compiled for {sizes.low:,} to {sizes.high:,} tokens a row; the first is row 0",
                fix="cut or fill such rows, or compile with sizes.tokens that hold their lengths",
            )

    def plan_for(self, sizes: SizeRange) -> StepPlan:
        """How the pipelines of a program take it."""
        if self.plan is not None:
            return self.plan
        if self.rows:
            return spread_rows(self.rows, sizes, self.documents)
        return spread_samples(self.samples, sizes)


def planned_batch(given: object, sizes: SizeRange, name: str = "a batch") -> tuple[Batch, StepPlan]:
    """The whole step's batch, and how its micro-batches lie in it; RunError for anything else.

    name: of the batch in an error.
    """
    batch, found = sized_batch(given, sizes.unit)
    found.check(sizes, name)
    return batch, found.plan_for(sizes)


def sized_batch(given: object, unit: Count) -> tuple[Batch, GivenSizes]:
    """The whole step's batch, and what a plan follows from; RunError for anything else."""
    match given:
        case (Mapping() as batch, StepPlan() as plan):
            return dict(batch), GivenSizes(plan=plan)
        case Mapping() as batch if unit is Count.SAMPLES and count_samples(batch):
            return dict(batch), GivenSizes(count_samples(batch))
        case Mapping() as row if unit is Count.TOKENS:
            return _of_rows([row])
        case list() | tuple() if given and unit is Count.TOKENS:
            return _of_rows(given)
    raise RunError(f"a batch is a {type(given).__name__} that is none", rule=RULE)


def _of_rows(given: Sequence[object]) -> tuple[Batch, GivenSizes]:
    rows = [row for row in given if isinstance(row, Mapping)]
    keys = list(rows[0]) if rows else []
    problems = [(f"row {number}", _problem(row, keys)) for number, row in enumerate(given)]
    wrong = [(row, problem) for row, problem in problems if problem]
    if wrong:
        raise RunError("rows of a batch don't fit each other", details=wrong[:SHOWN_ROWS], rule=RULE)
    lengths = tuple([len(row[keys[0]]) for row in rows])
    batch = {key: torch.cat([row[key] for row in rows])[None] for key in keys}
    return batch, GivenSizes(rows=lengths, documents=tuple([documents_of(row) for row in rows]))


def documents_of(row: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Lengths of a row's documents, if positions tell them: one begins where these don't go on by one."""
    positions = row.get(POSITIONS)
    if positions is None or positions.dim() != 1 or positions.is_floating_point():
        return ()
    begins = 1 + torch.nonzero(positions[1:] != positions[:-1] + 1).flatten()
    return tuple([high - low for low, high in pairwise([0, *begins.tolist(), len(positions)])])


def _problem(row: object, keys: Sequence[str]) -> str:
    """What is wrong with a row of these keys, empty if nothing."""
    if not isinstance(row, Mapping) or set(row) != set(keys):
        return f"a dict of {', '.join(keys) or 'tensors'} is wanted"
    shapes = {key: list(value.shape) if isinstance(value, Tensor) else [] for key, value in row.items()}
    if len({shape[0] if shape else None for shape in shapes.values()} - {None}) == 1 and all(shapes.values()):
        return ""
    return ", ".join(f"{key} {shape}" for key, shape in shapes.items())
