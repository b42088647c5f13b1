"""A program for micro-batches of any size, proved at sizes that no compile saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from ...base.log import task
from ...errors import VerifyError
from ...options import OptimizerConfig
from ...program.program import Program
from ...program.sized.answers import with_answers
from ...program.sized.instantiate import instantiate
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Count, MicroSizes
from ...program.sized.step_plan import planned_sizes, whole_row
from ...trace.symbolic import LEAST
from ..eager import eager_model
from ..equality import without_numbers
from ..lockstep.tensors import TensorNames
from ..not_finite import EagerNotFinite
from ..reference import Reference
from ..saved import model_state, saved_state
from ..shape.fit import check_fit
from ..training import BothSides, EagerUpdate, ShardUpdate, ValuesReport, compare_saved
from ..values import Rank, ranks_from, start_ranks
from ..widen import widen_program
from .plans import ProofPlan

NOT_PROVED = (
    "not proved: code of the model that looks at a size between those of the compiles (--symbolic does); that"
    " an operator computes the same function at every size"
)
NOT_PROVED_OF_SYMBOLS = "not proved: that an operator computes the same function at every size"


@dataclass(frozen=True, slots=True)
class SizesReport:
    """The range that was proved. shapes, values: sizes of micro-batches, by pipeline, of steps that were run.

    longest: the greatest size that was run. symbolic: the model's code was run on symbols.
    """

    sizes: SizeRange
    shapes: tuple[str, ...]
    longest: int
    values: tuple[str, ...] = ()
    symbolic: bool = False

    def to_json(self) -> dict[str, object]:
        """For scripts."""
        return {
            "unit": self.sizes.unit.value,
            "range": [self.sizes.low, self.sizes.high],
            "compiled": [planned_sizes(plan, self.sizes.unit) for plan in self.sizes.probes],
            "shapes": list(self.shapes),
            "values": list(self.values),
            "longest": self.longest,
            "symbolic": self.symbolic,
        }

    def rendered(self) -> RenderableType:
        """For people."""
        unit, sizes = self.sizes.unit.value, self.sizes
        compiled = ", ".join(str(size_of(plan.pipelines[0][0], sizes.unit)) for plan in sizes.probes)
        lines = [
            f"sizes: micro-batches of {sizes.low:,} to {sizes.high:,} {unit}: compiled at {compiled}, where"
            " each number that varies has one explanation",
            "run below: micro-batches by pipeline",
            *(f"  all ranks fit at {text}" for text in self.shapes),
            *(f"  values are equal at {text}" for text in self.values),
        ]
        if self.values and self.longest < sizes.high:
            lines.append(f"values were run up to {self.longest:,} {unit}: more would take long here")
        if self.symbolic:
            low = max(sizes.low, LEAST)
            lines.append(f"run on symbols: what the model's code asks has one answer from {low:,} {unit} on")
        return Group(*map(Text, (*lines, NOT_PROVED_OF_SYMBOLS if self.symbolic else NOT_PROVED)))


def check_sizes(
    program: Program, steps: Sequence[ProofPlan], names: Callable[[Program], TensorNames]
) -> tuple[str, ...]:
    """All ranks fit at these steps, too; a VerifyError says at which they don't."""
    unit = _range(program).unit
    _check_answers(program)
    for step in steps:
        with task(f"check that ranks fit at {planned_sizes(step.plan, unit)}"), _told_at(step, unit):
            made = instantiate(program, step.plan)
            check_fit(made, names(made))
    return tuple(planned_sizes(step.plan, unit) for step in steps)


def _check_answers(program: Program) -> None:
    """What a rank is told to have been received has been."""
    for own, found in zip(program.ranks, with_answers(program.ranks), strict=True):
        assert own.sized is not None and found.sized is not None, "of a program for micro-batches of any size"
        wrong = set(own.sized.answers) - set(found.sized.answers)
        if wrong:
            raise VerifyError(
                f"rank {own.rank} lets go of what it sent before it has been received",
                details=[(f"crossing {tag}", f"over with {answer}") for tag, answer in sorted(wrong)],
                rule="what a receiver sends back behind a message tells that it has been received",
                fix="compile again",
            )


def compare_plans(
    program: Program,
    reference: Reference,
    steps: Sequence[ProofPlan],
    batches: Sequence[Mapping[str, Tensor]],
    config: OptimizerConfig,
) -> ValuesReport:
    """One training by these plans on both sides, eager on the whole of each batch; see `compare_training`."""
    unit = _range(program).unit
    model = eager_model(reference.build, reference.state, widen=True)
    unset = without_numbers(reference.state)
    eager, update = EagerUpdate(config, model), ShardUpdate(config)
    ranks: list[Rank] = []
    found = []
    with task("compare values", len(steps)) as progress:
        for number, (step, batch) in enumerate(zip(steps, batches, strict=True), 1):
            made = widen_program(instantiate(program, step.plan))
            states = {rank.plan.program.rank: rank.state for rank in ranks}
            ranks = ranks_from(made, states) if ranks else start_ranks(made, reference.state)
            with _told_at(step, unit):
                found.append(BothSides(config, model, ranks, eager, update, unset).step(number, batch))
            progress.advance()
    compare_saved(saved_state(widen_program(program), ranks), model_state(model), config, unset)
    return ValuesReport(config, tuple(found))


def _range(program: Program) -> SizeRange:
    assert program.sizes is not None, "a program for micro-batches of any size"
    return program.sizes


def size_of(micro: MicroSizes, unit: Count) -> int:
    """What of a micro-batch varies."""
    return whole_row(micro) if unit is Count.TOKENS else micro.samples


@contextmanager
def _told_at(step: ProofPlan, unit: Count) -> Iterator[None]:
    """What goes wrong inside is told with the sizes of the step."""
    try:
        yield
    except EagerNotFinite:
        raise
    except VerifyError as error:
        sizes = (f"{unit.value} by pipeline", planned_sizes(step.plan, unit))
        raise VerifyError(
            error.what, at=error.at, details=[*error.details, sizes], rule=error.rule, fix=error.fix
        ) from error
