"""A forward pass that changes what Python holds, where no graph sees it, must do the same next time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...base.log import logger
from ...errors import TraceError
from ...ir.graph import LogicalGraph
from .changes import Change, Refusal
from .kept_tensors import does_the_same
from .new_buffers import HISTORY

if TYPE_CHECKING:
    from ..tracer import Subject

RULE = "a compiled step does at every step what forward did once, while it was traced"
FIX = (
    "keep what changes from step to step in a buffer, or pass it, and what is drawn, as an input of the"
    " batch; switch off layerdrop and the like"
)
TraceAgain = Callable[["Subject"], LogicalGraph]


def traced_steadily(subject: Subject, trace: TraceAgain) -> LogicalGraph:
    """What `trace` gives; where forward changes what Python holds, the step after it is compared.

    A TraceError where that is another one; a warning where it is the same, but goes on changing. A tensor
    that every step leaves anew, as a loss to be read later, is no matter, nor is one that the first step
    makes from constants for all others, as a mask.
    """
    graph = _traced(subject, trace)
    subject.state.attach()
    made = subject.state.changes
    if not made:
        return graph
    again, changes = _next_step(subject, trace, made)
    anew = [place for change in changes for place in change.places()]
    kept = [tensor for change in made for tensor in _kept_from_now(change, anew)]
    if not does_the_same(graph, again, kept):
        raise _unsteady(made)
    moving = [place for change in changes if change.goes_on for place in change.places()]
    if moving:
        logger.warning("forward changes %s: %s", ", ".join(moving), RULE)
    return graph


def _traced(subject: Subject, trace: TraceAgain) -> LogicalGraph:
    """The graph; what no step may change is told first, whatever else went wrong."""
    try:
        graph = trace(subject)
    except Exception:
        if subject.state.refused:
            raise _forbidden(subject.state.refused) from None
        raise
    if subject.state.refused:
        raise _forbidden(subject.state.refused)
    history = [name for name, new in subject.state.assigned.items() if new.requires_grad]
    if read := [name for name in history if name in graph.mutated]:
        raise _forbidden([(name, *HISTORY) for name in read])
    if checks := list(dict.fromkeys(subject.state.checks)):
        logger.warning("torch._assert_async checks nothing in a compiled step: %s", "; ".join(checks))
    return graph


def _kept_from_now(change: Change, anew: Sequence[str]) -> list[torch.Tensor]:
    """New tensors in places that the step after it leaves alone, and all that is inside."""
    return change.without(lambda one, key: _is_anew(one.holder.at(key), anew)).kept()


def _is_anew(own: str, anew: Sequence[str]) -> bool:
    return any(place == own or place.startswith((f"{own}.", f"{own}[")) for place in anew)


def _next_step(
    subject: Subject, trace: TraceAgain, made: Sequence[Change]
) -> tuple[LogicalGraph, Sequence[Change]]:
    """The step after these changes, and what it changes in turn."""
    try:
        for change in made:
            change.make()
        following = replace(subject, state=subject.state.following())
        return trace(following), following.state.changes
    except Exception as error:  # what one step can do and the next can't
        raise _unsteady(made) from error
    finally:
        for change in made:
            change.undo()
        subject.state.attach()


def _unsteady(made: Sequence[Change]) -> TraceError:
    return TraceError(
        "forward does something else at the next step",
        details=[row for change in made for row in change.rows()],
        rule=RULE,
        fix=FIX,
    )


def _forbidden(refused: Sequence[Refusal]) -> TraceError:
    fixes = dict.fromkeys(fix for _, _, fix in refused)
    return TraceError(
        "forward changes what has to stay from step to step",
        details=[(where or "the model", what) for where, what, _ in refused],
        rule="a step updates parameters by their gradients and buffers by new values, and changes no more",
        fix="; ".join(fixes),
    )
