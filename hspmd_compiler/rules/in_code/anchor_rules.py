"""Rules of anchors: the value in the layout that the strategy asks for, its gradient in that of before.

Both ways are then dual: what is gathered forward is reduced and scattered backward, a pending sum that is
scattered forward is gathered backward, and what goes from one split to another goes back. So each side of
the anchor finds values and gradients in its own layout, and the gradient of a parameter comes out as the
parameter is split. A pending sum has a whole gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...annotations.annotation import Annotation
from ...annotations.device import DeviceGroup
from ...annotations.problems import AnnotationProblem
from ...annotations.states import DistributedStates
from ...errors import AnnotationError
from ...ir.graph import Row
from ...ir.own_names import ANCHOR, ANCHOR_BACKWARD, COMM, COMM_BACKWARD
from ...layout.layout import Axis, Layout, make_layout
from ...layout.several_cuts import without_ranks
from ...strategy.wish_states import wish_states
from ..comm_layouts import target_layout
from ..rules import Result, RuleContext, consistent, rule_for
from .comm_rules import partial_problems, split_problems


@rule_for(ANCHOR)
def anchor(ctx: RuleContext, row: Row) -> Result:
    """The value is converted; the layout in which it came is kept for its gradient."""
    value = ctx.marked(row.args[0])
    name, to, key = (str(said) for said in row.args[1:])
    ctx.note_arrival(name, value.layout)
    states = _states(ctx, row, to)
    problems = [
        *split_problems(ctx, states, value.layout, key),
        *partial_problems(states, value.layout, key),
    ]
    if problems:
        raise _refused(ctx, row, problems)
    annotation = Annotation((DeviceGroup(ctx.stage_devices),), (states,))
    value = ctx.convert(value, target_layout(ctx, annotation, states, value.layout, settled=False))
    return ctx.emit(COMM, (value, f"{name} <{states}>"), value.layout)


@rule_for(ANCHOR_BACKWARD)
def anchor_backward(ctx: RuleContext, row: Row) -> Result:
    """The gradient returns. In a stage that the value didn't come to, where an anchor between two stages is
    reached backward, it stays as it comes."""
    value = ctx.marked(row.args[0])
    name = str(row.args[1])
    came = ctx.arrival(name)
    if came is not None and without_ranks(came).dims == without_ranks(value.layout).dims:
        value = ctx.convert(value, _of_gradient(came, value.layout))
    return ctx.emit(COMM_BACKWARD, (value, name), value.layout)


def _of_gradient(came: Layout, gradient: Layout) -> Layout:
    """Where a gradient lies as the value did when it came; sums over the batch stay."""
    return make_layout(consistent(came).dims, gradient.partial - {Axis.TENSOR})


def _states(ctx: RuleContext, row: Row, to: str) -> DistributedStates:
    states = wish_states(to, len(ctx.stage_devices), ctx.stage_shares)
    if states is None:
        problem = AnnotationProblem(
            f"{to} is not for the {len(ctx.stage_devices)} ranks of a stage that computes the value",
            "states are for as many ranks as each stage has that computes the value",
            "narrow the glob, or write S2, D or P alone, which fit any number of ranks",
        )
        raise _refused(ctx, row, [problem])
    return states


def _refused(ctx: RuleContext, row: Row, problems: Sequence[AnnotationProblem]) -> AnnotationError:
    """One error with the user's line, what the strategy says, the stage, and everything that is wrong."""
    first = problems[0]
    facts = [
        (str(row.args[3]), f"at {row.args[1]} to {row.args[2]}"),
        ("stage", ",".join(map(str, ctx.stage_devices))),
        ("shape", str(list(row.shape or ()))),
        *(("also", f"{problem.what}: {problem.rule}") for problem in problems[1:]),
    ]
    return AnnotationError(first.what, at=row.where, details=facts, rule=first.rule, fix=first.fix)
