"""Rules of the user's marker `comm(x, annotation)`: the value in the layout that the annotation says.

One text serves every place where the marker is reached: its subgroups are the stages, each found by
its devices. Pipelines divide the samples as the strategy says, so the hetero part only states what is so
already; a split of the samples inside a stage is one of each micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ...annotations.annotation import Annotation
from ...annotations.problems import AnnotationProblem
from ...annotations.split import Split
from ...annotations.states import DUPLICATE, PARTIAL, DistributedStates, StateKey, Unsplit
from ...annotations.text import parse_annotation
from ...errors import AnnotationError
from ...ir.graph import Row
from ...ir.own_names import COMM, COMM_BACKWARD
from ...layout.layout import Axis, Layout
from ...layout.several_cuts import without_ranks
from ...layout.view_maps import flat_factor
from ..comm_layouts import states_of, target_layout
from ..rules import Result, RuleContext, is_addend, rule_for


@rule_for(COMM)
def comm(ctx: RuleContext, row: Row) -> Result:
    """The value is converted to the layout of this stage's subgroup; a pending sum over the batch stays."""
    value = ctx.marked(row.args[0])
    annotation = _annotation(ctx, row)
    states = _stage_states(ctx, row, annotation)
    problems = [
        *_relation_problems(ctx, annotation, value.layout),
        *split_problems(ctx, states, value.layout),
        *partial_problems(states, value.layout),
    ]
    if problems:
        raise _refused(ctx, row, annotation, problems)
    value = ctx.convert(value, target_layout(ctx, annotation, states, value.layout, settled=False))
    return ctx.emit(row.op, (value, row.args[1]), value.layout)


@rule_for(COMM_BACKWARD)
def comm_backward(ctx: RuleContext, row: Row) -> Result:
    """The gradient is split as the value is.

    Where the value is not split, the gradient stays as it comes: a pending sum goes straight to the
    layout that the operator before the marker needs, in one step instead of two. So it does in a stage
    without the marker, where a marker between two stages is reached backward.
    """
    value = ctx.marked(row.args[0])
    annotation = _annotation(ctx, row)
    states = states_of(ctx.stage_devices, annotation)
    if states is not None and states.splits and not any(split_problems(ctx, states, value.layout)):
        value = ctx.convert(value, target_layout(ctx, annotation, states, value.layout, settled=True))
    return ctx.emit(row.op, (value, row.args[1]), value.layout)


_parsed = lru_cache(maxsize=1024)(parse_annotation)


def _annotation(ctx: RuleContext, row: Row) -> Annotation:
    """The marker's annotation; one that can't be read is told with the user's line."""
    text = str(row.args[1])
    try:
        return _parsed(text)
    except AnnotationError as error:
        raise AnnotationError(
            error.what, at=row.where, details=error.details, rule=error.rule, fix=error.fix
        ) from error


def _stage_states(ctx: RuleContext, row: Row, annotation: Annotation) -> DistributedStates:
    states = states_of(ctx.stage_devices, annotation)
    if states is None:
        devices = ",".join(map(str, ctx.stage_devices))
        problem = AnnotationProblem(
            f"comm() has no subgroup for the devices {devices} of the stage that reaches it",
            "an annotation in model code has one subgroup for each stage that reaches it, of all its devices",
            f"add the subgroup [{devices}] to the annotation, or change the strategy's devices",
        )
        raise _refused(ctx, row, annotation, [problem])
    return states


def _relation_problems(
    ctx: RuleContext, annotation: Annotation, layout: Layout
) -> Iterator[AnnotationProblem]:
    """The relation of the subgroups must be what the strategy makes of the value."""
    if annotation.hetero_shares is not None:
        yield AnnotationProblem(
            "comm() gives hetero shares",
            "how many samples a pipeline takes is the strategy's choice, its micro-batches",
            f"write hetero={_key_text(annotation.hetero)} without shares",
        )
    if len(annotation.groups) == 1:
        return
    allowed = _relations(ctx, annotation, layout)
    if annotation.hetero not in allowed:
        said, own = _key_text(annotation.hetero), _key_text(allowed[0])
        yield AnnotationProblem(
            f"comm() says hetero={said} of a value that is hetero={own}",
            "samples are divided by the strategy; hetero is the dim of the samples, dup for a value "
            "without them, partial for a sum over them",
            f"write hetero={own}",
        )


def _relations(ctx: RuleContext, annotation: Annotation, layout: Layout) -> tuple[StateKey, ...]:
    """What hetero may say. Stages of one pipeline hold the same samples, which may be said either way."""
    cut = layout.cut(ranks=False)
    if Axis.BATCH in layout.partial:
        own: StateKey = PARTIAL
    else:
        own = DUPLICATE if cut is None else cut[0]
    inside = set(annotation.devices) <= set(ctx.pipeline_devices)
    return tuple(dict.fromkeys((own, DUPLICATE, 0))) if inside else (own,)


def split_problems(
    ctx: RuleContext, states: DistributedStates, layout: Layout, who: str = "comm()"
) -> Iterator[AnnotationProblem]:
    """A split names a dim, and fits its length; of the dim of the samples, that of each micro-batch.

    who: asks for it.
    """
    shape, samples = layout.shape, layout.cut(ranks=False)
    for split in states.splits:
        if split.parts == 1:
            continue
        if split.dim >= len(shape):
            yield AnnotationProblem(
                f"{who} splits dim {split.dim} of a value with {len(shape)} dims",
                "a split names a dim of the value",
                f"split one of the dims 0 to {len(shape) - 1}" if shape else "leave a scalar whole",
            )
        elif samples is None or samples[0] != split.dim:
            yield from split.problems_on(shape[split.dim])
        else:
            yield from _sample_problems(ctx, split, layout, who)


def _sample_problems(ctx: RuleContext, split: Split, layout: Layout, who: str) -> Iterator[AnnotationProblem]:
    """Each micro-batch of the pipeline is cut on its own."""
    dim = without_ranks(layout).dims[split.dim]
    if len(dim) > 1:
        yield AnnotationProblem(
            f"{who} splits dim {split.dim}, in which the samples of a micro-batch lie among others",
            "a split of the samples divides those of each micro-batch, which lie side by side",
            "name a place where samples are a dim of their own, or give the pipeline one micro-batch",
        )
        return
    sets = flat_factor(dim).sets or ()
    lengths = (sum(high - low for low, high in sets[batch]) for batch in ctx.micro_batches)
    for length in dict.fromkeys(lengths):
        for problem in split.problems_on(length):
            yield AnnotationProblem(
                f"{who} splits the samples of a micro-batch: {problem.what}",
                "a split of the samples divides those of each micro-batch, and fits all of them",
                f"write S{split.dim}x{split.parts}, or give the micro-batches one size",
            )


def partial_problems(
    states: DistributedStates, layout: Layout, who: str = "comm()"
) -> Iterator[AnnotationProblem]:
    """A pending sum is asked of one only. who: asks for it."""
    if states.factor(PARTIAL) > 1 and not is_addend(layout):
        yield AnnotationProblem(
            f"{who} says <{states}> of a value that is no pending sum here",
            "a marker may keep a pending sum, or settle it; it can't make one of a whole value",
            "name splits or duplicates, or place the marker directly behind the operator that sums",
        )


def _key_text(key: StateKey | None) -> str:
    return str(key.value if isinstance(key, Unsplit) else key)


def _refused(
    ctx: RuleContext, row: Row, annotation: Annotation, problems: Sequence[AnnotationProblem]
) -> AnnotationError:
    """One error with the user's line, the annotation, the stage, and everything that is wrong."""
    facts = [
        ("annotation", str(annotation)),
        ("stage", ",".join(map(str, ctx.stage_devices))),
        ("shape", str(list(row.shape or ()))),
    ]
    first = problems[0]
    facts += [("also", f"{problem.what}: {problem.rule}") for problem in problems[1:]]
    return AnnotationError(first.what, at=row.where, details=facts, rule=first.rule, fix=first.fix)
