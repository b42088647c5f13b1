"""How operators without a rule are called that are written out as others, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from hspmd_compiler.ir.fx_convert import GETITEM, metas_of
from hspmd_compiler.ir.graph import Ref, Row, map_refs
from hspmd_compiler.program.kernels.kernels import kernel
from hspmd_compiler.trace.decompositions.decompose import PartsBook
from hspmd_compiler.verify.assemble import gap
from hspmd_compiler.verify.rules.split_operands import Operand
from hspmd_compiler.verify.rules.split_operator import OperandSketch

from .rule_cases import (
    FLAG,
    FULL,
    IGNORE,
    INDEX,
    LOGITS,
    MATRIX,
    SCALAR,
    TARGET,
    VOCAB,
    B,
    Case,
    F,
    T,
    Take,
    below,
    normal,
    probability,
)

EXACT = 1e-12
C = 4
IMAGE = Operand((B, C, 4, 6), normal)
HALF = replace(FULL, shape=(B, T, F // 2))
SLOPES = Operand((T,), normal, sample=None)
GRAD = replace(SCALAR, linear=False, pure=True)
POSITIVE = Operand((B, T, F), probability, linear=False)
FEW = replace(INDEX, shape=(3,), sample=None, make=below(T))
PIECES = replace(FULL, shape=(B, 3, F))
FORM = Operand((T, F, F), normal, sample=None)
WEIGHT = Operand((T, F), normal, sample=None)
Argument = object

CALLS: list[tuple[str, Sequence[Argument], dict[str, object]]] = [
    ("_prelu_kernel.default", (FULL, replace(SLOPES, shape=(1, T, 1))), {}),
    ("_prelu_kernel_backward.default", (FULL, FULL, replace(SLOPES, shape=(1, T, 1))), {}),
    ("log_sigmoid_forward.default", (FULL,), {}),
    ("log_sigmoid_backward.default", (FULL, FULL, FULL), {}),
    ("glu.default", (FULL, -1), {}),
    ("glu.default", (FULL, 1), {}),
    ("glu_backward.default", (HALF, FULL, -1), {}),
    ("stack.default", ((FULL, FULL), 1), {}),
    ("unsafe_split.Tensor", (FULL, 4, 2), {}),
    ("index_select.default", (FULL, 1, FEW), {}),
    ("index_add.default", (FULL, 1, FEW, PIECES), {}),
    ("index_copy.default", (FULL, 1, replace(FEW, shape=(1,)), replace(PIECES, shape=(B, 1, F))), {}),
    ("index_fill.int_Scalar", (FULL, 1, FEW, 0.5), {}),
    ("index_put.default", (FULL, (FLAG,), SCALAR), {}),
    ("index_put.default", (FULL, (replace(FLAG, shape=(B, T)),), SCALAR, True), {}),
    ("std.correction", (FULL, (1,)), {}),
    ("std_mean.correction", (FULL, (-1,)), {"keepdim": True}),
    ("norm.ScalarOpt_dim", (FULL, 2, (-1,)), {}),
    ("norm.ScalarOpt_dim", (FULL, 3, (1,), True), {}),
    ("renorm.default", (FULL, 2, 0, 0.5), {}),
    ("pixel_shuffle.default", (IMAGE, 2), {}),
    ("pixel_unshuffle.default", (IMAGE, 2), {}),
    ("channel_shuffle.default", (IMAGE, 2), {}),
    ("im2col.default", (IMAGE, (2, 2), (1, 1), (0, 1), (1, 2)), {}),
    ("col2im.default", (replace(FULL, shape=(B, 8, 6)), (4, 6), (2, 2), (1, 1), (0, 0), (2, 2)), {}),
    ("upsample_bilinear2d.vec", (IMAGE, (7, 5), False, None), {}),
    ("upsample_bicubic2d.default", (IMAGE, (5, 7), True), {}),
    ("affine_grid_generator.default", (replace(FULL, shape=(B, 2, 3)), (B, 3, 4, 5), False), {}),
    ("baddbmm.default", (replace(FULL, shape=(B, T, T)), FULL, replace(FULL, shape=(B, F, T))), {}),
    ("addmv.default", (replace(SLOPES, shape=(B,)), MATRIX, replace(SLOPES, shape=(F,))), {}),
    ("addr.default", (MATRIX, replace(MATRIX, shape=(B,)), replace(SLOPES, shape=(F,))), {}),
    ("isin.Tensor_Tensor", (INDEX, replace(SLOPES, shape=(2,), make=below(VOCAB), linear=False)), {}),
    ("linalg_cross.default", (PIECES, PIECES), {"dim": 1}),
    (
        "_trilinear.default",
        (MATRIX, Operand((T, F, F), normal, None), MATRIX, (1, 3), (0,), (1, 2), (2, 3)),
        {},
    ),
]


def decomposed() -> Iterator[Case]:
    """All of them, and cross-entropy with weights of classes or over more dims."""
    for name, arguments, more in CALLS:
        op = f"aten.{name}"
        yield Case(op, lambda s, take, op=op, a=arguments, m=more: in_parts(s, op, taken(take, a), m))  # type: ignore[misc]
    yield Case("aten._weight_norm_interface.default", weight_norm)
    yield Case("aten._weight_norm_interface_backward.default", weight_norm_backward)
    for reduction in (0, 1, 2):
        yield Case(
            "aten.nll_loss_forward.default",
            lambda s, take, r=reduction: cross_entropy(s, take, r),  # type: ignore[misc]
        )
        for weighted in (False, True):
            yield Case(
                "aten.nll_loss2d_forward.default",
                lambda s, take, r=reduction, w=weighted: cross_entropy_2d(s, take, r, w),  # type: ignore[misc]
            )


def taken(take: Take, arguments: Sequence[Argument]) -> tuple[object, ...]:
    """Arguments with placeholders for operands."""
    return tuple(
        take(item) if isinstance(item, Operand) else taken(take, item) if isinstance(item, tuple) else item
        for item in arguments
    )


def in_parts(
    s: OperandSketch, op: str, args: Sequence[object], kwargs: dict[str, object] | None = None
) -> tuple[Ref | None, ...]:
    """An operator written out, each part run whole; the results are those of the operator."""
    plain, named = (map_refs(item, lambda ref: s.wholes[ref.id]) for item in (tuple(args), kwargs or {}))
    value = kernel(op)(*plain, **named)  # type: ignore[misc]
    row = Row(len(s.rows), op, tuple(args), kwargs or {}, *metas_of(value))
    parts = PartsBook().parts(row, s.rows)
    assert parts is not None, f"{op} is not decomposed"
    refs = list(dict.fromkeys(found(args)))
    for part in parts.rows[parts.operands :]:
        given = map_refs(part.args, lambda ref: refs[ref.id])
        refs.append(_run(s, part, given))  # type: ignore[arg-type]
    results = tuple(None if result is None else refs[result] for result in parts.results)
    for ref, wanted in zip(results, value if isinstance(value, (tuple, list)) else (value,), strict=True):
        assert (ref is None) == (wanted is None)
        if ref is not None:
            same(op, s.wholes[ref.id], wanted)
    return results


def found(value: object) -> Iterator[Ref]:
    """Every reference in nested arguments."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from found(item)


def _run(s: OperandSketch, part: Row, given: tuple[object, ...]) -> Ref:
    if part.op == GETITEM:
        return s.pick(given[0], given[1])  # type: ignore[arg-type]
    return s.call(part.op, given, part.kwargs)


def same(op: str, made: object, wanted: Tensor) -> None:
    """Equal but for rounding."""
    assert isinstance(made, Tensor)
    assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype), op
    assert not wanted.numel() or float(gap(made, wanted).max()) <= EXACT, op


def weight_norm(s: OperandSketch, take: Take) -> tuple[Ref, Ref, Ref | None]:
    """Direction, length and norms. A row to which no rank adds is zero, and its norm nothing to divide by."""
    direction = take(WEIGHT)
    while not s.wholes[direction.id].any(-1).all():  # type: ignore[attr-defined]
        direction = take(WEIGHT)
    length = take(Operand((T, 1), normal, None))
    _, norms = in_parts(s, "aten._weight_norm_interface.default", (direction, length))
    return direction, length, norms


def weight_norm_backward(s: OperandSketch, take: Take) -> None:
    """Gradients; that of the weight may be a pending sum."""
    direction, length, norms = weight_norm(s, take)
    grad = take(WEIGHT)
    in_parts(s, "aten._weight_norm_interface_backward.default", (grad, direction, length, norms, 0))


def cross_entropy(s: OperandSketch, take: Take, reduction: int) -> None:
    """With weights of classes, which weight the count too."""
    out, target = take(replace(LOGITS, linear=False)), take(TARGET)
    weight = take(Operand((VOCAB,), probability, sample=None, linear=False, pure=True))
    _, count = in_parts(s, "aten.nll_loss_forward.default", (out, target, weight, reduction, IGNORE))
    grad = take(GRAD if reduction else replace(TARGET, make=normal))
    in_parts(s, "aten.nll_loss_backward.default", (grad, out, target, weight, reduction, IGNORE, count))


def cross_entropy_2d(s: OperandSketch, take: Take, reduction: int, weighted: bool) -> None:
    """Targets per sample and place."""
    out = take(Operand((B, VOCAB, 2, 3), normal, linear=False))
    target = take(replace(TARGET, shape=(B, 2, 3)))
    weight = take(Operand((VOCAB,), probability, sample=None, linear=False, pure=True)) if weighted else None
    given = (target, weight, reduction, IGNORE)
    _, count = in_parts(s, "aten.nll_loss2d_forward.default", (out, *given))
    grad = take(GRAD if reduction else replace(TARGET, shape=(B, 2, 3), make=normal))
    in_parts(s, "aten.nll_loss2d_backward.default", (grad, out, *given, count))
