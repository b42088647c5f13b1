"""Operators without a rule: element by element like any pointwise one, else whole on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum
from math import prod

import torch

from ..errors import RuleMissing
from ..ir.annotated import AnnotatedValue
from ..ir.graph import Meta, Row, map_refs, refs_of
from ..layout.layout import Axis, whole
from ..program.operator_names import is_listed, torch_operator
from .cuts import dense
from .in_code.pointwise_rules import is_batch_sum, settling
from .rule_book import RULES
from .rules import Result, Rule, RuleContext, is_addend

REFUSED_BECAUSE = (
    "it draws random numbers, reads memory by strides, or is made for sparse, nested or quantised tensors"
)
PLACE = ("device", "pin_memory", "layout")
INSTEAD = {
    "aten._embedding_bag": "give bags as rows, ids of shape [samples, length] with the short ones filled up"
    " with padding_idx, and no offsets; or use one pipeline with one micro-batch",
    "aten.as_strided": "write it with unfold, slices, expand or diagonal, of a tensor that is not transposed",
}
"""What to write in place of operators that mix samples, or memory."""


class Treatment(Enum):
    """What becomes of an operator without a rule."""

    POINTWISE = "split, element by element"
    WHOLE = "computed whole on every rank of its stage"
    REFUSED = "refused"


def treatment(row: Row) -> Treatment | None:
    """How a row is compiled that has no rule; None for one that has."""
    if row.op in RULES:
        return None
    how = treatment_of(row.op) or Treatment.WHOLE
    by_elements = row.outs is None and not list(refs_of(row.kwargs))
    return Treatment.WHOLE if how is Treatment.POINTWISE and not by_elements else how


def treatment_of(op: str) -> Treatment | None:
    """How calls of an operator of PyTorch's are compiled without a rule; None where there is no such one."""
    operator = _aten(op)
    if operator is None:
        return None
    if torch.Tag.nondeterministic_seeded in operator.tags or not is_listed(op):
        return Treatment.REFUSED
    return Treatment.POINTWISE if torch.Tag.pointwise in operator.tags else Treatment.WHOLE


def find_rule(row: Row) -> Rule:
    """The rule of a row's operator, or what stands in for one."""
    found = RULES.get(row.op)
    if found is not None:
        return found
    how = treatment(row)
    if how is Treatment.REFUSED:
        raise rule_missing(row, REFUSED_BECAUSE)
    return settling if how is Treatment.POINTWISE else compute_whole


def compute_whole(ctx: RuleContext, row: Row) -> Result:
    """Operands are gathered and sums settled; refused where the batch is split, for samples may meet."""
    values = {ref.id: ctx.operand(ref) for ref in refs_of((row.args, row.kwargs))}
    for value in values.values():
        if value.layout.cut(ranks=False) is not None or is_batch_sum(value):
            raise rule_missing(row, "the batch is split, and whether samples meet in it is not known")
    ctx.note_whole(row, sum(moved_bytes(value) for value in values.values()))
    gathered = {key: _whole(ctx, value) for key, value in values.items()}
    args = tuple(map_refs(argument, lambda ref: gathered[ref.id]) for argument in row.args)
    kwargs = _local_kwargs(row, gathered)
    if row.outs is None:
        return ctx.emit(row.op, args, whole(row.shape or ()), kwargs=kwargs, dtype=row.dtype)
    layouts = [None if meta is None else whole(meta[0]) for meta in row.outs]
    return ctx.emit_many(row.op, args, layouts, kwargs=kwargs)


def _whole(ctx: RuleContext, value: AnnotatedValue) -> AnnotatedValue:
    if Axis.BATCH in value.layout.partial:
        value = ctx.settle(value)
    return dense(ctx, ctx.convert(value, whole(value.layout.shape)))


def moved_bytes(value: AnnotatedValue) -> int:
    """Bytes of a value that must come together on every rank, 0 where each has it."""
    if value.layout.cut(ranks=True) is None and not is_addend(value.layout):
        return 0
    return _bytes((value.layout.shape, value.dtype))


def operand_bytes(row: Row, metas: Mapping[int, Meta]) -> int:
    """Bytes of all operands: what is gathered at most. metas: shape and type of each row's value."""
    return sum(_bytes(metas[ref.id]) for ref in refs_of((row.args, row.kwargs)) if ref.id in metas)


def _bytes(meta: Meta) -> int:
    return prod(meta[0]) * meta[1].itemsize


def _local_kwargs(row: Row, gathered: Mapping[int, AnnotatedValue]) -> dict[str, object]:
    """Keywords without a place; what is made from nothing is told its type."""
    kwargs = {
        key: map_refs(value, lambda ref: gathered[ref.id])
        for key, value in row.kwargs.items()
        if key not in PLACE
    }
    operator = _aten(row.op)
    takes_type = operator is not None and any(a.name == "dtype" for a in operator._schema.arguments)
    return kwargs | {"dtype": row.dtype} if takes_type and not gathered and row.dtype else kwargs


def _aten(op: str) -> torch._ops.OpOverload | None:
    return torch_operator(op) if op.startswith("aten.") else None


def rule_missing(row: Row, why: str) -> RuleMissing:
    """The error for an operator that can't be computed whole either; it names the nearest with a rule."""
    near = get_close_matches(row.op, RULES, n=1)
    instead = next((text for op, text in INSTEAD.items() if row.op.startswith(op)), None)
    return RuleMissing(
        f"no rule for operator {row.op}",
        at=row.where,
        details=[("why", why), *([("nearest", near[0])] if near else [])],
        rule="an operator without a rule is computed whole, on all samples at once",
        fix=instead or "use one pipeline with one micro-batch, or register a rule with hspmd_compiler.rule",
    )
