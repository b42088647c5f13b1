"""Both ways between fx graphs and rows: `from_fx` reads a graph, `to_fx` makes a runnable one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import fx

from ..errors import TraceError
from ..operator_names import known_operator
from . import comm_marker, index_operator, library_operators, random_operator  # noqa: F401  (operators register on import)
from .ir import (
    InputInfo,
    LogicalGraph,
    Meta,
    Origin,
    OriginKind,
    ParamInfo,
    Phase,
    Ref,
    Row,
    map_refs,
)

FACTS = "hspmd"
PLACEHOLDER = "placeholder"
GETITEM = "getitem"
_DEFAULT_KWARGS: dict[str, object] = {"layout": torch.strided, "pin_memory": False}


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What an fx node doesn't say of a row; kept in `node.meta["hspmd"]`."""

    layer: int | None = None
    module: str = ""
    phase: Phase = Phase.FORWARD
    origin: Origin = field(default_factory=lambda: Origin(OriginKind.ACTIVATION))
    where: str = ""


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What an fx graph doesn't say of a logical graph; kept in `module.meta["hspmd"]`."""

    params: dict[str, ParamInfo]
    inputs: dict[str, InputInfo]
    loss: int
    tangent: int
    batch: int
    layers: tuple[str, ...]
    mutated: dict[str, int]


def rows_of(
    nodes: Iterable[fx.Node], facts_of: Callable[[fx.Node], RowFacts]
) -> tuple[list[Row], dict[fx.Node, int]]:
    """One row per node, in order, the output node left out; and the row id of every node."""
    rows: list[Row] = []
    ids: dict[fx.Node, int] = {}
    for node in nodes:
        if node.op == "output":
            continue
        ids[node] = len(rows)
        rows.append(_row(len(rows), node, ids, facts_of(node)))
    return rows, ids


def value_dependent(at: Iterable[str]) -> TraceError:
    """The error for a number or a size that depends on what a tensor holds."""
    return TraceError(
        "the model reads the value of a tensor as a Python number or size",
        at=at,
        rule="forward must run the same tensor operators whatever the values of the batch",
        fix="keep it a tensor (no .item(), and no shape that depends on what a tensor holds)",
    )


def _row(id: int, node: fx.Node, ids: dict[fx.Node, int], facts: RowFacts) -> Row:
    try:
        shape, dtype, outs = metas_of(node.meta.get("val"))
    except RuntimeError:  # int() of a size that depends on values
        raise value_dependent((facts.where,)) from None
    is_op = node.op == "call_function"
    return Row(
        id,
        op_name(node, facts.where),
        tuple(_to_rows(a, ids) for a in node.args) if is_op else (),
        {k: _to_rows(v, ids) for k, v in node.kwargs.items() if not is_default(k, v)},
        shape,
        dtype,
        outs,
        facts.layer,
        facts.module,
        facts.phase,
        facts.origin,
        facts.where,
    )


_OBJECT = "_opaque_obj"
"""What an export calls an argument that is no tensor and no number: a generator, in practice."""


def op_name(node: fx.Node, where: str = "") -> str:
    """`aten.mm.default`, `getitem` or `placeholder`; a node that is none of these is a TraceError."""
    if node.op == "placeholder":
        return PLACEHOLDER
    if node.target is operator.getitem:
        return GETITEM
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    if str(node.target).startswith(_OBJECT):
        raise TraceError(
            "the model draws random numbers from a torch.Generator of its own",
            at=where,
            rule="dropout and the like are drawn by position, from the run's seed and step",
            fix="leave generator= out, or draw outside and pass the numbers as an input of the batch",
        )
    raise TraceError(
        f"the traced graph calls {node.target}, which is not a tensor operator",
        at=where,
        rule="a step is a straight list of tensor operators of fixed shapes",
        fix="write the line with plain tensor operators (no data-dependent control flow or sizes)",
    )


def is_default(name: str, value: object) -> bool:
    if name == "device":
        return value is None or str(value) == "cpu"
    return name in _DEFAULT_KWARGS and (value is None or value == _DEFAULT_KWARGS[name])


def _to_rows(value: object, ids: dict[fx.Node, int]) -> object:
    if isinstance(value, fx.Node):
        return Ref(ids[value])
    if isinstance(value, (list, tuple)):
        return tuple(_to_rows(item, ids) for item in value)
    return value


def metas_of(
    value: object,
) -> tuple[tuple[int, ...] | None, torch.dtype | None, tuple[Meta | None, ...] | None]:
    if isinstance(value, torch.Tensor):
        return tuple(int(n) for n in value.shape), value.dtype, None
    if isinstance(value, (tuple, list)):
        return None, None, tuple(_meta(item) for item in value)
    return None, None, None


def _meta(value: object) -> Meta | None:
    return (tuple(int(n) for n in value.shape), value.dtype) if isinstance(value, torch.Tensor) else None


def from_fx(module: fx.GraphModule) -> LogicalGraph:
    """The logical graph that `to_fx` made `module` from, with whatever was rewritten since."""
    facts = module.meta.get(FACTS)
    if not isinstance(facts, GraphFacts):
        raise TraceError(
            "this fx graph was not made by to_fx, so its parameters and loss are unknown",
            fix="trace the model with hspmd_compiler, or start from to_fx(graph)",
        )
    rows, ids = rows_of(module.graph.nodes, lambda node: node.meta.get(FACTS, RowFacts()))
    outputs = cast(tuple[fx.Node, ...], module.graph.output_node().args[0])
    loss, *rest = (ids[node] for node in outputs)
    return _with_outputs(rows, facts, loss, rest)


def _with_outputs(rows: list[Row], facts: GraphFacts, loss: int, rest: list[int]) -> LogicalGraph:
    outputs = iter(rest)
    place = {(row.origin.kind, row.origin.name): row.id for row in rows if row.op == PLACEHOLDER}
    params = {
        name: replace(
            p,
            row=place[OriginKind.BUFFER if p.is_buffer else OriginKind.PARAM, name],
            grad=None if p.grad is None else next(outputs),
        )
        for name, p in facts.params.items()
    }
    inputs = {
        name: InputInfo(name, place[OriginKind.INPUT, name], i.shape, i.dtype)
        for name, i in facts.inputs.items()
    }
    mutated = {name: next(outputs) for name in facts.mutated}
    tangent = place[OriginKind.TANGENT, ""]
    return LogicalGraph(rows, params, inputs, loss, tangent, facts.batch, facts.layers, mutated)


def to_fx(graph: LogicalGraph) -> fx.GraphModule:
    """A runnable module: inputs are the placeholder rows in order; outputs are the loss, the gradients
    in parameter order (those that exist), then the new values of mutated buffers."""
    made = fx.Graph()
    nodes: list[fx.Node] = []
    for row in graph.rows:
        nodes.append(_node(made, row, nodes))
    grads = [p.grad for p in graph.params.values() if p.grad is not None]
    made.output(tuple(nodes[i] for i in (graph.loss, *grads, *graph.mutated.values())))
    module = fx.GraphModule(torch.nn.Module(), made)
    module.meta[FACTS] = GraphFacts(
        graph.params, graph.inputs, graph.loss, graph.tangent, graph.batch, graph.layers, graph.mutated
    )
    return module


def _node(made: fx.Graph, row: Row, nodes: list[fx.Node]) -> fx.Node:
    if row.op == PLACEHOLDER:
        node = made.placeholder(_identifier(row))
    else:
        args = map_refs(row.args, lambda ref: nodes[ref.id])
        kwargs = map_refs(row.kwargs, lambda ref: nodes[ref.id])
        node = made.call_function(target_of(row.op), args, kwargs)  # type: ignore[arg-type]
    node.meta[FACTS] = RowFacts(row.layer, row.module, row.phase, row.origin, row.where)
    node.meta["val"] = _values(row)
    return node


def _identifier(row: Row) -> str:
    name = "".join(c if c.isalnum() else "_" for c in row.origin.name)
    return f"{row.origin.kind.value}_{name}".rstrip("_")


def target_of(op: str) -> Callable[..., object]:
    """The callable of a row's `op`."""
    if op == GETITEM:
        return operator.getitem
    return known_operator(op)


def _values(row: Row) -> object:
    if row.outs is not None:
        return tuple(None if m is None else torch.empty(m[0], dtype=m[1], device="meta") for m in row.outs)
    if row.shape is None:
        return None
    return torch.empty(row.shape, dtype=row.dtype, device="meta")
