"""Rows of a model's graph, each by itself: with its values on one device, and split in a random way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hspmd_compiler.coverage.matrix import TracedModel
from hspmd_compiler.ir.graph import OriginKind, Ref, Row, map_refs, row_inputs
from hspmd_compiler.layout.layout import Axis, Factor, Layout, make_layout
from hspmd_compiler.passes.deduction.stages import classify
from hspmd_compiler.program.interpret import compute_row, read_row
from hspmd_compiler.program.kernels.counter_random import key_tensor
from hspmd_compiler.verify.rules.split_operands import (
    Locals,
    StageMesh,
    copied_sets,
    cut_sets,
    joined,
    scatter,
)
from hspmd_compiler.verify.rules.split_operator import OperandSketch
from hspmd_compiler.verify.single_device import PLACEHOLDER, local_row
from hspmd_compiler.verify.widen import default_type

GETITEM = "getitem"
SEED_AND_STEP = (3, 5)
NARROW = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Operand:
    """A value that a row reads. adds: ranks may hold addends of it, as of values computed from parameters."""

    value: Tensor
    adds: bool
    pure: bool


@dataclass(frozen=True)
class SingleRow:
    """A row of a graph in float64, and its operands by their rows; None for the key of random masks."""

    row: Row
    operands: dict[int, Operand | None]


def single_rows(traced: TracedModel) -> Iterator[SingleRow]:
    """One row of each kind: operator, literals, and shapes and types of operands."""
    graph, kinds = traced.graph, classify(traced.graph)
    values = values_of(traced)
    seen: set[str] = set()
    for row in graph.rows:
        if row.op in (PLACEHOLDER, GETITEM) or _kind(row, values) in seen:
            continue
        seen.add(_kind(row, values))
        operands: dict[int, Operand | None] = {}
        for number in row_inputs(row):
            value, given = values[number], graph.rows[number]
            adds = value.is_floating_point() and not kinds.pure[number] and given.op != PLACEHOLDER
            random_key = given.origin.kind is OriginKind.RANDOM
            operands[number] = None if random_key else Operand(value, adds, kinds.pure[number])
        yield SingleRow(_wide_row(row), operands)


def values_of(traced: TracedModel) -> dict[int, Tensor]:
    """Every value of the graph on one device, in float64."""
    found: dict[int, Tensor] = {}
    with default_type(torch.float64), torch.no_grad():
        for row in traced.graph.rows:
            if row.op == PLACEHOLDER:
                found[row.id] = _given(traced, row)
            else:
                found[row.id] = compute_row(read_row(local_row(_wide_row(row)), ()), found, "cpu")
    return found


def _given(traced: TracedModel, row: Row) -> Tensor:
    if row.origin.kind is OriginKind.RANDOM:
        return key_tensor((*SEED_AND_STEP, 0))
    if row.origin.kind is OriginKind.TANGENT:
        return torch.ones(row.shape or (), dtype=torch.float64)
    inputs = row.origin.kind is OriginKind.INPUT
    value = traced.batches[0][row.origin.name] if inputs else traced.reference.state[row.origin.name]
    return value.double() if value.is_floating_point() else value


def _wide_row(row: Row) -> Row:
    args, kwargs = _wide(row.args), _wide(row.kwargs)
    assert isinstance(args, tuple) and isinstance(kwargs, dict)
    return Row(row.id, row.op, args, kwargs, row.shape, row.dtype, row.outs, where=row.where)


def _wide(item: object) -> object:
    if isinstance(item, (tuple, list)):
        return tuple(map(_wide, item))
    if isinstance(item, dict):
        return {key: _wide(value) for key, value in item.items()}
    return torch.float64 if item in NARROW else item


def _kind(row: Row, values: dict[int, Tensor]) -> str:
    def described(ref: Ref) -> object:
        return tuple(values[ref.id].shape), values[ref.id].dtype

    return f"{row.op} {map_refs(row.args, described)} {map_refs(row.kwargs, described)}"


def split_row(single: SingleRow, rng: random.Random, ways: int) -> OperandSketch:
    """The row with each of its operands split, copied, whole or in addends."""
    sketch = OperandSketch(StageMesh(ways), sequence_parallel=rng.random() < 0.3)
    placed: dict[int, Ref] = {}
    for number, operand in single.operands.items():
        placed[number] = sketch.key(SEED_AND_STEP) if operand is None else _placed(sketch, rng, operand)
    args, kwargs = (
        map_refs(item, lambda ref: placed[ref.id]) for item in (single.row.args, single.row.kwargs)
    )
    assert isinstance(args, tuple) and isinstance(kwargs, dict)
    with default_type(torch.float64), torch.no_grad():
        made = sketch.call(single.row.op, args, kwargs)
    for index, meta in enumerate(sketch.rows[made.id].outs or ()):
        if meta is not None:
            sketch.pick(made, index)
    return sketch


def _placed(sketch: OperandSketch, rng: random.Random, operand: Operand) -> Ref:
    layout = _random_layout(rng, operand, sketch.mesh)
    return sketch.given(operand.value, layout, _pieces(rng, operand.value, layout, sketch.mesh), operand.pure)


def _random_layout(rng: random.Random, operand: Operand, mesh: StageMesh) -> Layout:
    dims = [(Factor(size),) for size in operand.value.shape]
    modes = ["whole", "cut", "cut", "cut", "copies"] if dims else ["whole"]
    modes += ["partial", *(["contrib"] if dims else [])] if operand.adds else []
    mode = rng.choice(modes)
    if mode in ("whole", "partial"):
        return make_layout(tuple(dims), frozenset({Axis.TENSOR} if mode == "partial" else ()))
    dim = rng.randrange(len(dims))
    axis = rng.choice((Axis.TENSOR, Axis.TENSOR, Axis.SEQUENCE))
    size = operand.value.shape[dim]
    sets = cut_sets(rng, size, mesh.ranks) if mode == "cut" else copied_sets(rng, size, mesh.ranks)
    dims[dim] = (Factor(size, axis, sets, mode == "contrib"),)
    return make_layout(tuple(dims))


def _pieces(rng: random.Random, value: Tensor, layout: Layout, mesh: StageMesh) -> Locals:
    """What each rank holds; addends are unequal, and their sum is the value."""
    if Axis.TENSOR in layout.partial:
        shares = [rng.random() + 0.1 for _ in range(mesh.ranks)]
        return {at: value * (shares[at.rank] / sum(shares)) for at in mesh.coordinates}
    cut = layout.cut(ranks=True)
    if cut is not None and cut[1].contrib:
        ones = {at: scatter(torch.ones_like(value), layout, at) for at in mesh.coordinates}
        value = value / joined(layout, ones, "holders")
    return {at: scatter(value, layout, at) for at in mesh.coordinates}
