"""`hspmd verify`: the ranks of an artifact fit together, and compute what the model computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from rich.console import Group, RenderableType
from rich.text import Text
from torch import nn

from ..artifact.store import Artifact
from ..artifact.value_layouts import from_json
from ..base.log import task
from ..errors import ArtifactError, VerifyError
from ..ir import graph_json
from ..ir.graph import LogicalGraph
from ..models.models import ModelSource
from ..program.sized.instantiate import as_compiled
from ..program.sized.step_plan import planned_sizes
from ..trace.symbolic import check_symbolic
from .batches import Batch, Batches, blanked, checked_padding, drawn_batches, given_batches
from .lockstep.report import LockstepReport
from .lockstep.tensors import TensorNames
from .not_finite import EagerNotFinite, explained
from .proof_data import GivenBatches
from .reference import SEED, Reference, find_reference
from .rows import FIX, RowsReport, compare_rows
from .same_model import check_graph
from .saved import check_owned
from .shape.fit import check_fit, check_memory
from .sized.plans import ProofPlan, batches_of, longest, of_graph, proof_plans
from .sized.proof import SizesReport, check_sizes, compare_plans, size_of
from .sized.symbols import shapes_of, sizes_wanted, symbols_of
from .start import checked_start
from .tables import check_tables
from .training import ValuesReport, compare_training

STEPS = 5


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was proved. values, rows: None where they were not asked for. inputs: what the batches held.

    sizes: of a program for micro-batches of any size, the range and the steps that were run; the rest is of
    its first compile, and values of those steps.
    """

    fit: LockstepReport
    values: ValuesReport | None = None
    rows: RowsReport | None = None
    inputs: tuple[tuple[str, str], ...] = ()
    sizes: SizesReport | None = None

    def to_json(self) -> dict[str, object]:
        """For scripts; the keys `values` and `rows` are there only where they were asked for."""
        parts = {"values": self.values, "rows": self.rows}
        sizes = {} if self.sizes is None else {"sizes": self.sizes.to_json()}
        told = {name: part.to_json() for name, part in parts.items() if part is not None}
        return self.fit.to_json() | sizes | told | ({"inputs": dict(self.inputs)} if told else {})

    def rendered(self) -> RenderableType:
        """For people."""
        parts = (self.fit, self.sizes, self.values, self.rows)
        inputs = [Text(f"input {name}  {text}") for name, text in self.inputs]
        return Group(*(part.rendered() for part in parts if part is not None), *inputs)


def verify_artifact(
    artifact: Artifact,
    *,
    values: bool = False,
    rows: bool = False,
    model: ModelSource | nn.Module | None = None,
    trust_model: bool = False,
    from_file: bool = False,
    examples: Batch | None = None,
    batches: GivenBatches = (),
    symbolic: bool = False,
) -> VerifyReport:
    """Step all ranks in this process; a VerifyError at the first misfit or wrong number.

    values: losses, gradients and parameters of STEPS steps are those of the eager model, in float64.
    rows: every value is that of the single-device graph. model: instead of building it again.
    trust_model: a factory that the artifact names may be imported and called. from_file: the graph was
    read, so that it must be the model's, too. examples: what a live model was compiled with. batches: global
    ones to step on, instead of random ones; of a program for micro-batches of any size, with their plans.
    symbolic: the model's code does the same at every size.
    """
    _check_whole(artifact)
    whole = artifact
    if artifact.program.sizes is not None:
        artifact = replace(artifact, program=as_compiled(artifact.program))
    planned = [(_read(each[0], whole), each[1]) for each in batches if isinstance(each, tuple)]
    given = [_read(each, whole) for each in batches if not isinstance(each, tuple)]
    if symbolic and whole is artifact:
        raise sizes_wanted()
    if rows and artifact.program.cuts_samples:
        raise VerifyError(
            "the values inside of samples that ranks cut are not compared",
            rule="a value of the graph is of whole samples, and members of a context group have pieces",
            fix="--values compares losses, gradients and parameters",
        )
    with task("check that ranks fit"):
        fit = check_fit(artifact.program, names_of(artifact))
    graph = graph_json.decode(artifact.graph)
    check_tables(whole.program, graph)
    check_owned(artifact.program)
    steps = [] if whole is artifact else proof_plans(whole.program, SEED)
    stepped = [ProofPlan(plan) for _, plan in planned] or steps
    sizes = _checked_sizes(whole, steps, stepped) if steps else None
    if not (values or rows or symbolic):
        return VerifyReport(fit, sizes=sizes)
    check_memory(sum(fit.peak), "all ranks together")
    with task("build the model"):
        reference = find_reference(artifact, model, trust_model)
    if examples is not None:
        reference = replace(reference, examples=examples)
    if steps:
        reference = replace(reference, examples=of_graph(graph, reference.examples))
    used = given_batches(given, STEPS) if given else _drawn(graph, reference)
    used = blanked(used, artifact.program) if not given else checked_padding(used, artifact.program)
    if from_file:
        with task("trace the model"):
            check_graph(artifact, graph, reference, used.steps[0])
    if symbolic and sizes is not None:
        with task("run the model on symbols"):
            check_symbolic(reference.build(), shapes_of(graph), symbols_of(sizes.sizes))
        sizes = replace(sizes, symbolic=True)
        if not (values or rows):
            return VerifyReport(fit, sizes=sizes)
    reference, start = checked_start(artifact, reference)
    proved = None
    if values and sizes is not None:
        unit = sizes.sizes.unit
        drawn = [batch for batch, _ in planned] or batches_of(graph, reference.examples, steps, unit)
        proved = compare_plans(whole.program, reference, stepped, drawn, artifact.manifest.optimizer)
        sizes = replace(sizes, values=tuple(planned_sizes(step.plan, unit) for step in stepped))
    elif values:
        proved = prove_values(artifact, graph, reference, used.steps, used.inputs)
    return VerifyReport(
        fit,
        None if proved is None else replace(proved, start=start),
        compare_rows(artifact, graph, reference.state, used.steps[0]) if rows else None,
        given_batches([batch for batch, _ in planned], len(planned)).inputs if planned else used.inputs,
        sizes,
    )


def _checked_sizes(
    artifact: Artifact, steps: Sequence[ProofPlan], stepped: Sequence[ProofPlan]
) -> SizesReport:
    """All ranks fit at the steps, of a program for micro-batches of any size. stepped: with values."""
    program = artifact.program
    assert program.sizes is not None, "asked of such a program only"
    every = list(dict.fromkeys((*steps, *stepped)))
    shapes = check_sizes(program, every, lambda made: names_of(replace(artifact, program=made)))
    ran = [
        size_of(micro, program.sizes.unit) for step in stepped for own in step.plan.pipelines for micro in own
    ]
    return SizesReport(
        program.sizes, shapes, max(ran, default=0) if stepped is not steps else longest(program)
    )


def _read(batch: Batch, artifact: Artifact) -> Batch:
    """What of a batch the model is called with."""
    return {key: value for key, value in batch.items() if key not in artifact.program.left_out}


def names_of(artifact: Artifact) -> TensorNames:
    """Names of an artifact's tensors, read when they are needed."""

    def logical() -> dict[tuple[int, int], dict[int, int]]:
        stages = from_json(artifact.layouts).stages
        return {stage: {item.value: item.logical for item in held} for stage, held in stages.items()}

    return TensorNames(artifact.program, lambda: graph_json.decode(artifact.graph), logical)


def prove_values(
    artifact: Artifact,
    graph: LogicalGraph,
    reference: Reference,
    batches: Sequence[Batch],
    inputs: Sequence[tuple[str, str]] = (),
) -> ValuesReport:
    """Train beside the eager model; of a wrong number the first wrong value of the graph is told too.

    inputs: how the batches came about, for errors.
    """
    try:
        return compare_training(artifact.program, reference, batches, artifact.manifest.optimizer)
    except EagerNotFinite as error:
        raise explained(error, graph, batches[error.step - 1], inputs) from error
    except VerifyError as error:
        first = _first_wrong(artifact, graph, reference, batches[0])
        raise VerifyError(
            error.what,
            at=error.at or (() if first is None else first.at),
            details=[*error.details, *_first_details(first, error, artifact.program.cuts_samples)],
            rule=error.rule,
            fix=FIX,
        ) from error


def _first_wrong(
    artifact: Artifact, graph: LogicalGraph, reference: Reference, batch: Batch
) -> VerifyError | None:
    if artifact.program.cuts_samples:
        return None
    try:
        compare_rows(artifact, graph, reference.state, batch)
    except VerifyError as error:
        return error
    return None


def _first_details(first: VerifyError | None, found: VerifyError, cut: bool) -> list[tuple[str, str]]:
    if first is not None and first.what == found.what:
        return []
    if first is None and cut:
        return []
    if first is None:
        return [("rows", "every value inside is right: what is wrong is how gradients are summed or updated")]
    named = any(name == "tensor" for name, _ in found.details)
    return [("inside" if named else "tensor", first.what), *first.details]


def _check_whole(artifact: Artifact) -> None:
    found = len(artifact.program.ranks)
    if found != artifact.program.world_size or artifact.graph is None:
        raise ArtifactError(
            f"the artifact holds {found} of {artifact.program.world_size} ranks",
            rule="all ranks are verified together",
            fix="verify an artifact that was compiled without `--rank`",
        )


def _drawn(graph: LogicalGraph, reference: Reference) -> Batches:
    return drawn_batches(graph, reference.examples, STEPS, torch.Generator().manual_seed(SEED))
