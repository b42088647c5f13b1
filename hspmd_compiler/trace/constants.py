"""Literal tensors of a traced forward become operators that make them, so a graph holds no data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import torch
from torch import fx

from ..base.source_lines import line_of_trace
from ..errors import TraceError
from .capture import stack_trace
from .tensor_memory import is_fake

MOST_RUNS = 64
Number = bool | int | float


def replace_constants(graph: fx.Graph) -> None:
    """Put `full`, `arange` or a `cat` of pieces in the place of every tensor attribute of the graph."""
    module = graph.owning_module
    for node in graph.find_nodes(op="get_attr"):
        tensor = getattr(module, str(node.target))
        if not isinstance(tensor, torch.Tensor):
            continue  # a subgraph; its caller is refused as an operator
        with graph.inserting_before(node):
            made = _made(graph, node, tensor)
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _made(graph: fx.Graph, node: fx.Node, tensor: torch.Tensor) -> fx.Node:
    if is_fake(tensor) or tensor.is_complex():
        raise _refused(node, "its numbers are unknown while the model is built without memory")
    aten, kind, put = torch.ops.aten, tensor.dtype, partial(_put, graph, node.meta)
    numbers: list[Number] = tensor.flatten().tolist()
    runs = [list(group) for _, group in itertools.groupby(numbers, key=str)]
    step = _step(tensor, numbers)
    if len(runs) <= 1:
        number = numbers[0] if numbers else 0
        return put(tensor, aten.full.default, tuple(tensor.shape), number, dtype=kind)
    if step is not None:
        end = step * len(numbers) + numbers[0]
        flat = put(tensor, aten.arange.start_step, numbers[0], end, step, dtype=kind)
    elif len(runs) <= MOST_RUNS:
        sizes = [(run[0], len(run)) for run in runs]
        pieces = [put(tensor.new_empty(n), aten.full.default, (n,), first, dtype=kind) for first, n in sizes]
        flat = put(tensor.flatten(), aten.cat.default, pieces)
    else:
        raise _refused(node, f"it has {len(numbers)} different numbers")
    return flat if tensor.dim() == 1 else put(tensor, aten.view.default, flat, tuple(tensor.shape))


def _step(tensor: torch.Tensor, numbers: Sequence[Number]) -> int | None:
    """The step of whole numbers in arithmetic order, which `arange` makes exactly."""
    exact = all(abs(number) < 2**24 and number == int(number) for number in numbers)
    if not exact or tensor.dtype in (torch.bool, torch.float16, torch.bfloat16):
        return None
    steps = {int(b) - int(a) for a, b in itertools.pairwise(numbers)}
    step = steps.pop() if len(steps) == 1 else 0
    return step or None


def _put(
    graph: fx.Graph,
    meta: dict[str, object],
    value: torch.Tensor,
    target: torch._ops.OpOverload,
    *args: object,
    **kwargs: object,
) -> fx.Node:
    """A call that gives such a value, in the place of the model that `meta` says."""
    node = graph.call_function(target, args, kwargs)  # type: ignore[arg-type]
    node.meta = {**meta, "val": value.to("meta")}
    return node


def _refused(node: fx.Node, why: str) -> TraceError:
    return TraceError(
        "the forward pass uses a tensor that is no parameter, buffer or input",
        at=line_of_trace(stack_trace(node)),
        details=[("tensor", why)],
        rule="a graph holds no data; only short literal tensors become operators",
        fix="self.register_buffer(name, tensor), or compute it in forward",
    )
