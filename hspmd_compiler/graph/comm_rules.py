"""Rules of the user's marker `comm(x, annotation)`: the value in the layout that the annotation says.

One text serves every place where the marker is reached: its subgroups are the stages, each found by
its devices. Samples are divided by the strategy, so the hetero part only states what is so already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ..annotations.annotation import Annotation
from ..annotations.layout import Axis, Factor, Intervals, Layout, Sets, make_layout
from ..annotations.problems import Problem
from ..annotations.states import DUPLICATE, PARTIAL, DistributedStates, Key, Unsplit
from ..annotations.text import parse_annotation
from ..errors import AnnotationError
from .comm_marker import COMM, COMM_BACKWARD
from .ir import Row
from .rules import Result, RuleContext, consistent, is_addend, rule_for, uncut

TOKEN_DIM = 1
TOKEN_RANK = 3


@rule_for(COMM)
def comm(ctx: RuleContext, row: Row) -> Result:
    """The value is converted to the layout of this stage's subgroup; a pending sum over the batch stays."""
    value = ctx.operand(row.args[0])
    annotation = _annotation(ctx, row)
    states = _stage_states(ctx, row, annotation)
    problems = [
        *_relation_problems(ctx, annotation, value.layout),
        *_shape_problems(states, value.layout),
    ]
    if problems:
        raise _refused(ctx, row, annotation, problems)
    value = ctx.convert(value, _target(ctx, annotation, states, value.layout))
    return ctx.emit(row.op, (value, row.args[1]), value.layout)


@rule_for(COMM_BACKWARD)
def comm_backward(ctx: RuleContext, row: Row) -> Result:
    """The gradient is split as the value is.

    Where the value is duplicated or partial, the gradient stays as it comes: a pending sum goes
    straight to the layout that the operator before the marker needs, in one step instead of two.
    So it does in a stage without the marker, where a marker between two stages is reached backward.
    """
    value = ctx.operand(row.args[0])
    annotation = _annotation(ctx, row)
    states = _states_of(ctx.stage_devices, annotation)
    if states is not None and states.splits and not _shape_problems(states, value.layout):
        value = ctx.convert(value, _target(ctx, annotation, states, value.layout))
    return ctx.emit(row.op, (value, row.args[1]), value.layout)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Annotation:
    return parse_annotation(text)


def _annotation(ctx: RuleContext, row: Row) -> Annotation:
    """The marker's annotation; one that can't be read is told with the user's line."""
    text = str(row.args[1])
    try:
        return _parsed(text)
    except AnnotationError as error:
        raise AnnotationError(
            error.what, at=row.where, details=error.details, rule=error.rule, fix=error.fix
        ) from error


def _states_of(devices: Sequence[int], annotation: Annotation) -> DistributedStates | None:
    """The states of the subgroup with exactly these devices."""
    for group, states in zip(annotation.groups, annotation.states, strict=True):
        if set(group.devices) == set(devices):
            return states
    return None


def _stage_states(ctx: RuleContext, row: Row, annotation: Annotation) -> DistributedStates:
    states = _states_of(ctx.stage_devices, annotation)
    if states is None:
        devices = ",".join(map(str, ctx.stage_devices))
        problem = Problem(
            f"comm() has no subgroup for the devices {devices} of the stage that reaches it",
            "an annotation in model code has one subgroup for each stage that reaches it, of all its devices",
            f"add the subgroup [{devices}] to the annotation, or change the strategy's devices",
        )
        raise _refused(ctx, row, annotation, [problem])
    return states


def _relation_problems(ctx: RuleContext, annotation: Annotation, layout: Layout) -> Iterator[Problem]:
    """The relation of the subgroups must be what the strategy makes of the value."""
    if annotation.hetero_shares is not None:
        yield Problem(
            "comm() gives hetero shares",
            "how many samples a pipeline takes is the strategy's choice, its micro-batches",
            f"write hetero={_key_text(annotation.hetero)} without shares",
        )
    if len(annotation.groups) == 1:
        return
    allowed = _relations(ctx, annotation, layout)
    if annotation.hetero not in allowed:
        said, own = _key_text(annotation.hetero), _key_text(allowed[0])
        yield Problem(
            f"comm() says hetero={said} of a value that is hetero={own}",
            "samples are divided by the strategy; hetero is the dim of the samples, dup for a value "
            "without them, partial for a sum over them",
            f"write hetero={own}",
        )


def _relations(ctx: RuleContext, annotation: Annotation, layout: Layout) -> tuple[Key, ...]:
    """What hetero may say. Stages of one pipeline hold the same samples, which may be said either way."""
    cut = layout.cut(ranks=False)
    if Axis.BATCH in layout.partial:
        own: Key = PARTIAL
    else:
        own = DUPLICATE if cut is None else cut[0]
    inside = set(annotation.devices) <= set(ctx.pipeline_devices)
    return tuple(dict.fromkeys((own, DUPLICATE, 0))) if inside else (own,)


def _shape_problems(states: DistributedStates, layout: Layout) -> tuple[Problem, ...]:
    return (*_split_problems(states, layout), *_partial_problems(states, layout))


def _split_problems(states: DistributedStates, layout: Layout) -> Iterator[Problem]:
    """At most one dim is split inside a stage, and not the one whose samples micro-batches divide."""
    shape = layout.shape
    splits = [split for split in states.splits if split.parts > 1]
    if len(splits) > 1:
        yield Problem(
            f"comm() splits {len(splits)} dims inside one stage, <{states}>",
            "a value is split along at most one dim inside a stage",
            "split one dim and duplicate over the other devices, as <S1x2 Dx2>",
        )
    batch = layout.cut(ranks=False)
    for split in splits:
        if split.dim >= len(shape):
            yield Problem(
                f"comm() splits dim {split.dim} of a value with {len(shape)} dims",
                "a split names a dim of the value",
                f"split one of the dims 0 to {len(shape) - 1}" if shape else "leave a scalar whole",
            )
        elif batch is not None and batch[0] == split.dim:
            yield Problem(
                f"comm() splits dim {split.dim}, which holds the samples",
                "samples are divided by the strategy, over pipelines and micro-batches",
                "split another dim, or let the strategy use more pipelines",
            )
        else:
            yield from split.problems_on(shape[split.dim])


def _partial_problems(states: DistributedStates, layout: Layout) -> Iterator[Problem]:
    pending = states.factor(PARTIAL) > 1
    if pending and len([placement for placement in states.placements if placement.parts > 1]) > 1:
        yield Problem(
            f"comm() mixes a pending sum with other placements, <{states}>",
            "a pending sum is over all devices of a stage",
            f"write <Px{states.size}>",
        )
    elif pending and not is_addend(layout):
        yield Problem(
            f"comm() says <{states}> of a value that is no pending sum here",
            "a marker may keep a pending sum, or settle it; it can't make one of a whole value",
            "name splits or duplicates, or place the marker directly behind the operator that sums",
        )


def _target(ctx: RuleContext, annotation: Annotation, states: DistributedStates, layout: Layout) -> Layout:
    """The layout on this stage's ranks; what the batch axis does to the value stays."""
    if states.factor(PARTIAL) > 1:
        plain = uncut(layout, ranks=True)
        return make_layout(plain.dims, layout.partial | {Axis.TENSOR})
    plain = uncut(consistent(layout), ranks=True)
    split = next((split for split in states.splits if split.parts > 1), None)
    if split is None:
        return plain
    size = layout.shape[split.dim]
    sets = _sets(ctx.stage_devices, annotation, states, split.dim, split.pieces(size))
    cut = Factor(size, _axis(ctx, layout, split.dim), sets)
    return plain.with_dims((cut,) if i == split.dim else own for i, own in enumerate(plain.dims))


def _sets(
    devices: Sequence[int],
    annotation: Annotation,
    states: DistributedStates,
    dim: int,
    pieces: Sequence[Intervals],
) -> Sets:
    """What each rank holds, in the order of the stage's devices, which need not be the annotation's."""
    group = next(found for found in annotation.groups if set(found.devices) == set(devices))
    held = {
        device: pieces[states.coordinates(place).get(dim, 0)] for place, device in enumerate(group.devices)
    }
    return tuple(held[device] for device in devices)


def _axis(ctx: RuleContext, layout: Layout, dim: int) -> Axis:
    """Tokens of [batch, tokens, features] are cut along SEQUENCE, so that operators gather them first."""
    shape = layout.shape
    tokens = dim == TOKEN_DIM and len(shape) == TOKEN_RANK and shape[0] == ctx.batch
    return Axis.SEQUENCE if tokens else Axis.TENSOR


def _key_text(key: Key | None) -> str:
    return str(key.value if isinstance(key, Unsplit) else key)


def _refused(
    ctx: RuleContext, row: Row, annotation: Annotation, problems: Sequence[Problem]
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
