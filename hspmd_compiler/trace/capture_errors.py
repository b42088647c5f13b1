"""What an export can't take, in the user's words."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from ..base.source_lines import line_of_trace
from ..errors import TraceError


def loses_backward(name: str) -> TraceError:
    """For a backward pass of the model's own where only an export can trace."""
    return TraceError(
        f"the backward pass of {name} can't be traced",
        rule="a torch.autograd.Function, or a hook on a gradient, is traced only where the rest of the step"
        " makes new tensors and no more: nothing changed in place, no buffer updated, no dropout of channels",
        fix="write it with tensor operators, such as x + (f(x) - x).detach() for the gradient of x",
    )


def has_effects(graph: fx.Graph, trace_of: Callable[[fx.Node], str]) -> TraceError:
    """For what an export orders by tokens: operators that print, check numbers or raise."""
    found = [node for node in graph.nodes if "with_effects" in str(node.target)]
    return TraceError(
        "forward calls an operator for what it does, not for what it returns",
        at=list(dict.fromkeys(line_of_trace(trace_of(node)) for node in found)),
        details=[(str(node.args[1]), "checks or prints the numbers of a tensor") for node in found],
        rule="a step is a straight list of operators that make tensors; no rank has whole tensors to look at",
        fix="leave checks and prints out of forward (for torch.linalg.solve: torch.linalg.solve_ex(a, b)[0])",
    )


def changes_parameter(name: str) -> TraceError:
    """For a parameter that forward writes into."""
    return TraceError(
        f"forward changes the parameter {name}",
        rule="between two updates parameters stay as they are; only buffers may be changed by forward",
        fix=f"use a changed copy in forward ({name.rpartition('.')[2]}.clamp(...) without no_grad), or change"
        " the parameter between steps",
    )
