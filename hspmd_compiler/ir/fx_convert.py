"""A traced fx graph as rows, and the callable behind the name of a row's operator."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import fx

from ..errors import TraceError
from ..program.operator_names import known_operator
from . import comm_marker, own_operators  # noqa: F401  (operators register on import)
from .graph import Meta, Origin, OriginKind, Phase, Ref, Row

PLACEHOLDER = "placeholder"
GETITEM = "getitem"
_DEFAULT_KWARGS: dict[str, object] = {"layout": torch.strided, "pin_memory": False}


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What an fx node doesn't say of a row."""

    layer: int | None = None
    module: str = ""
    phase: Phase = Phase.FORWARD
    origin: Origin = field(default_factory=lambda: Origin(OriginKind.ACTIVATION))
    where: str = ""


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


def target_of(op: str) -> Callable[..., object]:
    """The callable of a row's `op`."""
    if op == GETITEM:
        return operator.getitem
    return known_operator(op)
