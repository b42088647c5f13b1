"""For every operator with a rule, how it is called: what its operands are and where the samples lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hspmd_compiler.ir.graph import Ref
from hspmd_compiler.ir.own_names import MASKED, PACKED, PACKED_BACKWARD, RANDOM_MASK, RANDOM_NUMBERS
from hspmd_compiler.program.kernels.kernels import kernel
from hspmd_compiler.rules.in_code.pointwise_operators import LINEAR, PRODUCTS, SETTLING, SUMS
from hspmd_compiler.rules.lines.along_lines import TRIANGLES
from hspmd_compiler.rules.lines.attention_lines import FLASH, FLASH_BACKWARD
from hspmd_compiler.rules.lines.loss_lines import ELEMENT_LOSS_GRADS, ELEMENT_LOSSES
from hspmd_compiler.verify.rules.split_operands import Operand
from hspmd_compiler.verify.rules.split_operator import OperandSketch

from .convolution_cases import convolution_calls

B, T, F = 4, 4, 6
VOCAB = 7
IGNORE = -100
CHECKED = "hspmd.checked_index.default"
Take = Callable[[Operand], Ref]
Build = Callable[[OperandSketch, Take], object]


@dataclass(frozen=True)
class Case:
    """One way to call an operator. coupled: with split samples it may be refused."""

    op: str
    build: Build
    coupled: bool = False


def normal(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def probability(shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) * 0.8 + 0.1


def truth(shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape) < 0.5


def below(bound: int, ignore: bool = False) -> Callable[[tuple[int, ...]], Tensor]:
    """Random whole numbers, some of them IGNORE."""

    def make(shape: tuple[int, ...]) -> Tensor:
        made = torch.randint(0, bound, shape)
        return torch.where(torch.rand(shape) < 0.3, IGNORE, made) if ignore else made

    return make


FULL = Operand((B, T, F), normal)
MATRIX = Operand((B, F), normal)
WEIGHT = Operand((F, T), normal, sample=None)
ROW = Operand((F,), normal, sample=None)
SCALAR = Operand((), normal, sample=None)
CHANCE = Operand((B, T, F), probability, linear=False)
FLAG = Operand((B, T, F), truth, linear=False)
COUNT = Operand((B, T, F), below(5), linear=False)
INDEX = Operand((B, T), below(VOCAB), linear=False, pure=True)
TARGET = Operand((B,), below(VOCAB, ignore=True), linear=False, pure=True)
LOGITS = Operand((B, VOCAB), normal)
HEADS = Operand((B, F, T, 2), normal)
BESIDE = (FULL, ROW, replace(FULL, shape=(B, 1, F)), replace(FULL, shape=(T, 1), sample=None))
"""Shapes that meet FULL, broadcast or not."""

BOOLEAN = ("bitwise_", "logical_")
UNLIKE = {"where.self": 0, "where.ScalarSelf": 0, "where.ScalarOther": 0, "masked_fill.Scalar": 1}
"""Position of the condition."""


def cases() -> Iterator[Case]:
    """All of them."""
    for op in (*LINEAR, "aten._neg_view.default", *SETTLING, *SUMS, *PRODUCTS):
        yield from pointwise(op)
    yield from literals()
    yield from layout_operators()
    yield from cuts_and_joins()
    yield from contractions()
    yield from convolution_cases()
    yield from reductions()
    yield from losses()
    yield from lookups()
    yield from fused()
    yield from constants()
    yield from random_masks()


def pointwise(op: str) -> Iterator[Case]:
    """From the operator's schema: tensors of equal shapes, and, but for gradients, of broadcast ones."""
    if op == "aten._to_copy.default":
        for dtype in (torch.float32, torch.int64):
            yield Case(
                op,
                lambda s, take, d=dtype: s.call(
                    op, (take(COUNT if d is torch.float32 else CHANCE),), {"dtype": d}
                ),
            )  # type: ignore[misc]
        yield Case(op, lambda s, take: s.call(op, (take(FULL),), {"dtype": torch.float64}))
        return
    second = (FULL,) if "backward" in op or op == "aten.log_sigmoid_forward.default" else BESIDE
    for other in second:
        yield Case(op, lambda s, take, other=other: s.call(op, _arguments(op, take, other)))  # type: ignore[misc]


def _arguments(op: str, take: Take, other: Operand) -> list[object]:
    if op == "hspmd.comm.default":
        return [take(FULL), "text"]
    arguments: list[object] = []
    tensors = 0
    for item in kernel(op)._schema.arguments:  # type: ignore[attr-defined]
        kind = str(item.type)
        if item.kwarg_only:
            break
        if kind == "Tensor":
            arguments.append(take(_operand(op, tensors, other)))
            tensors += 1
        elif "number" in kind or "Scalar" in kind or kind == "float":
            arguments.append(0.7)
        elif kind == "bool":
            arguments.append(False)
        else:
            break
    return arguments


def _operand(op: str, position: int, other: Operand) -> Operand:
    shaped = FULL if position == 0 else other
    name = op.removeprefix("aten.")
    if name == "fill.Tensor" and position == 1:
        return SCALAR
    if name == "masked_fill.Tensor":
        return (FULL, replace(FLAG, shape=other.shape, sample=other.sample), SCALAR)[position]
    if name.startswith(BOOLEAN) or UNLIKE.get(name) == position:
        return replace(FLAG, shape=shaped.shape, sample=shaped.sample)
    if name == "log_sigmoid_forward.default":
        return FULL
    return shaped


def literals() -> Iterator[Case]:
    """A number in the place of an operand."""
    for op in (*SUMS, *PRODUCTS):
        yield Case(op, lambda s, take, op=op: s.call(op, (take(FULL), 0.7)))  # type: ignore[misc]
    for op in SUMS:
        yield Case(op, lambda s, take, op=op: s.call(op, (take(FULL), take(FULL)), {"alpha": 0.7}))  # type: ignore[misc]
        yield Case(op, lambda s, take, op=op: s.call(op, (take(ROW), take(FULL))))  # type: ignore[misc]
    for op in PRODUCTS:
        yield Case(op, lambda s, take, op=op: s.call(op, (take(FULL), take(replace(FULL, pure=True)))))  # type: ignore[misc]
        yield Case(op, lambda s, take, op=op: s.call(op, (take(FULL), take(SCALAR))), coupled=True)  # type: ignore[misc]
        yield Case(op, lambda s, take, op=op: s.call(op, (take(ROW), take(FULL))))  # type: ignore[misc]


def layout_operators() -> Iterator[Case]:
    """Views in shapes that merge and cut dims, and changes of order."""
    shapes: list[tuple[Operand, tuple[int, ...]]] = [
        (FULL, (B * T, F)),
        (FULL, (B, T * F)),
        (FULL, (B, T, 2, 3)),
        (FULL, (B, T, 3, 2)),
        (FULL, (B, 2, 2, F)),
        (FULL, (B, 1, T, F)),
        (FULL, (B * T * F,)),
        (replace(FULL, shape=(B * T, F)), (B, T, F)),
        (replace(FULL, shape=(B, T * F), sample=0), (B, T, F)),
        (replace(FULL, shape=(B, 3, 2, F)), (B, F, F)),
        (replace(FULL, shape=(B, T, 2, 3)), (B, T, F)),
        (replace(FULL, shape=(B, 6, 4)), (B, 4, 6)),
    ]
    for op in ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"):
        for operand, shape in shapes:
            sample = None if operand.shape[0] != B else 0
            given = replace(operand, sample=sample)
            yield Case(op, lambda s, take, op=op, o=given, to=shape: s.call(op, (take(o), to)))  # type: ignore[misc]
    thin = replace(FULL, shape=(B, 1, F, 1))
    plain: list[tuple[str, Operand, tuple[object, ...]]] = [
        ("aten.t.default", MATRIX, ()),
        ("aten.t.default", WEIGHT, ()),
        ("aten.transpose.int", FULL, (1, 2)),
        ("aten.transpose.int", FULL, (0, -1)),
        ("aten.permute.default", FULL, ((2, 0, 1),)),
        ("aten.unsqueeze.default", FULL, (1,)),
        ("aten.unsqueeze.default", FULL, (-1,)),
        ("aten.squeeze.dim", thin, (1,)),
        ("aten.squeeze.dims", thin, ((1, 3),)),
        ("aten.squeeze.default", thin, ()),
        ("aten.expand.default", thin, ((B, 3, F, 2),)),
        ("aten.expand.default", thin, ((B, -1, F, 2),)),
        ("aten.expand.default", WEIGHT, ((3, F, T),)),
        ("aten.repeat.default", ROW, ((3,),)),
        ("aten.repeat.default", WEIGHT, ((2, 1, 3),)),
        ("aten.repeat.default", FULL, ((1, 2, 2),)),
        ("aten.select.int", FULL, (1, 2)),
        ("aten.select.int", FULL, (2, -1)),
        ("aten.select_backward.default", MATRIX, ((B, T, F), 1, 2)),
        ("aten.select_backward.default", MATRIX, ((B, F, 3), 2, 0)),
    ]
    yield from _plain(plain)


def _plain(calls: list[tuple[str, Operand, tuple[object, ...]]]) -> Iterator[Case]:
    for op, operand, rest in calls:
        yield Case(op, lambda s, take, op=op, o=operand, rest=rest: s.call(op, (take(o), *rest)))  # type: ignore[misc]


def cuts_and_joins() -> Iterator[Case]:
    """Slices, splits, concatenations and paddings."""
    plain: list[tuple[str, Operand, tuple[object, ...]]] = [
        ("aten.slice.Tensor", FULL, (2, 1, 5)),
        ("aten.slice.Tensor", FULL, (1, -3, 2**63 - 1)),
        ("aten.slice.Tensor", FULL, (2, 0, 6, 2)),
        ("aten.slice.Tensor", FULL, (0, 0, 2**63 - 1)),
        ("aten.slice_backward.default", replace(FULL, shape=(B, T, 4)), ((B, T, F), 2, 1, 5, 1)),
        ("aten.slice_backward.default", replace(FULL, shape=(B, 3, F)), ((B, T, F), 1, 0, -1, 1)),
        ("aten.slice_backward.default", replace(FULL, shape=(B, T, 3)), ((B, T, F), 2, 0, 6, 2)),
        ("aten.constant_pad_nd.default", FULL, ((1, 2), 0.5)),
        ("aten.constant_pad_nd.default", FULL, ((0, 0, 0, 1), 0.5)),
        ("aten.constant_pad_nd.default", FULL, ((-1, 1), 0.0)),
    ]
    yield from _plain(plain)
    parts: list[tuple[str, Operand, tuple[object, ...], int]] = [
        ("aten.split.Tensor", FULL, (4, 2), 2),
        ("aten.split.Tensor", FULL, (2, -1), 3),
        ("aten.split_with_sizes.default", FULL, ((1, 3, 2), 2), 3),
        ("aten.split_with_sizes.default", FULL, ((1, 3), 1), 2),
        ("aten.chunk.default", FULL, (3, 2), 3),
        ("aten.unbind.int", FULL, (1,), T),
        ("aten.unbind.int", FULL, (-1,), F),
    ]
    for op, operand, rest, count in parts:
        yield Case(op, lambda s, take, op=op, o=operand, r=rest, n=count: picked(s, op, (take(o), *r), n))  # type: ignore[misc]
    yield Case(
        "aten.cat.default",
        lambda s, take: s.call("aten.cat.default", ((take(FULL), take(FULL)), 0)),
        coupled=True,
    )
    for other, dim in ((FULL, 2), (replace(FULL, shape=(B, T, 3)), 2), (replace(FULL, shape=(B, 1, F)), 1)):
        yield Case(
            "aten.cat.default",
            lambda s, take, o=other, d=dim: s.call("aten.cat.default", ((take(FULL), take(o)), d)),  # type: ignore[misc]
        )


def picked(
    s: OperandSketch, op: str, args: tuple[object, ...], count: int, kwargs: dict[str, object] | None = None
) -> None:
    """An operator with several outputs, each looked at."""
    made = s.call(op, args, kwargs)
    for index in range(count):
        s.pick(made, index)


def contractions() -> Iterator[Case]:
    """Products over a dim: of activations and weights, and of two activations."""
    tall = Operand((B * T, F), normal, sample=None)
    left, right = replace(FULL, shape=(B, T, F)), replace(FULL, shape=(B, F, 3))
    for bias in (Operand((T,), normal, sample=None), Operand((1, T), normal, sample=None)):
        for data in (MATRIX, tall):
            yield Case(
                "aten.addmm.default",
                lambda s, take, b=bias, x=data: s.call(
                    "aten.addmm.default", (take(b), take(x), take(WEIGHT))
                ),  # type: ignore[misc]
            )
    yield Case("aten.mm.default", lambda s, take: s.call("aten.mm.default", (take(MATRIX), take(WEIGHT))))
    turned, errors = Operand((F, B), normal, sample=1), Operand((B, 3), normal)
    yield Case("aten.mm.default", lambda s, take: s.call("aten.mm.default", (take(turned), take(errors))))
    yield Case("aten.mm.default", lambda s, take: s.call("aten.mm.default", (take(tall), take(WEIGHT))))
    yield Case("aten.bmm.default", lambda s, take: s.call("aten.bmm.default", (take(left), take(right))))
    fixed = replace(right, sample=None)
    yield Case("aten.bmm.default", lambda s, take: s.call("aten.bmm.default", (take(left), take(fixed))))


def convolution_cases() -> Iterator[Case]:
    """Convolutions, poolings and what is normalised over space."""
    for call in convolution_calls():
        yield Case(call.op, call.build, call.coupled)


def reductions() -> Iterator[Case]:
    """Sums and means, and operators that work along a dim."""
    plain: list[tuple[str, Operand, tuple[object, ...]]] = [
        ("aten.sum.default", FULL, ()),
        ("aten.sum.dim_IntList", FULL, ((0,),)),
        ("aten.sum.dim_IntList", FULL, ((0, 1), True)),
        ("aten.sum.dim_IntList", FULL, ((-1,), True)),
        ("aten.sum.dim_IntList", COUNT, ((2,),)),
        ("aten.mean.default", FULL, ()),
        ("aten.mean.dim", FULL, ((-1,), True)),
        ("aten.mean.dim", FULL, ((0, 2),)),
        ("aten.mean.dim", FULL, ((1,),)),
        ("aten._softmax.default", FULL, (-1, False)),
        ("aten._softmax.default", FULL, (1, False)),
        ("aten._safe_softmax.default", FULL, (-1,)),
        ("aten._safe_softmax.default", FULL, (1,)),
        ("aten.cumsum.default", FULL, (1,)),
        ("aten.cumsum.default", COUNT, (-1,)),
        ("aten.cumprod.default", FULL, (2,)),
        ("aten.amax.default", FULL, ((-1,), True)),
        ("aten.amax.default", FULL, ((1,),)),
        ("aten.amax.default", FULL, ((1, 2),)),
        ("aten.amin.default", FULL, ((2,),)),
        ("aten.amin.default", FULL, ((1,), True)),
        ("aten.linalg_vector_norm.default", FULL, (2, (-1,), True)),
        ("aten.linalg_vector_norm.default", FULL, (1, (1, 2))),
        ("aten.any.dim", FLAG, (1,)),
        ("aten.any.dim", FLAG, (2, True)),
        ("aten.all.dim", FLAG, (1,)),
        ("aten.argmax.default", FULL, (-1,)),
        ("aten.argmax.default", FULL, (1, True)),
        ("aten.logsumexp.default", FULL, ((-1,),)),
        ("aten.logsumexp.default", FULL, ((1,), True)),
        ("aten.flip.default", FULL, ((1,),)),
        ("aten.flip.default", FULL, ((1, 2),)),
        ("aten.var.correction", FULL, ((1,),)),
        ("aten.var.correction", FULL, ((-1,),)),
    ]
    yield from _plain(plain)
    square = replace(FULL, shape=(B, 4, 4))
    for op, dims in (
        ("aten.amax.default", (1,)),
        ("aten.logsumexp.default", (2,)),
        ("aten.argmax.default", 1),
    ):
        yield Case(op, lambda s, take, op=op, d=dims: s.call(op, (take(square), d)))  # type: ignore[misc]
    options = {"keepdim": True, "correction": 0}
    yield Case(
        "aten.var.correction", lambda s, take: s.call("aten.var.correction", (take(FULL), (2,)), options)
    )
    for dim in (1, -1):
        yield Case(
            "aten.sort.default", lambda s, take, d=dim: picked(s, "aten.sort.default", (take(FULL), d), 2)
        )  # type: ignore[misc]
        yield Case(
            "aten._softmax_backward_data.default", lambda s, take, d=dim: _softmax_backward(s, take, d)
        )  # type: ignore[misc]
        yield Case("aten._log_softmax.default", lambda s, take, d=dim: _log_softmax(s, take, d))  # type: ignore[misc]
        yield Case("aten._log_softmax_backward_data.default", lambda s, take, d=dim: _log_softmax(s, take, d))  # type: ignore[misc]


def _softmax_backward(s: OperandSketch, take: Take, dim: int) -> None:
    out = s.call("aten._softmax.default", (take(FULL), dim, False))
    s.call("aten._softmax_backward_data.default", (take(FULL), out, dim, torch.float64))


def _log_softmax(s: OperandSketch, take: Take, dim: int) -> None:
    out = s.call("aten._log_softmax.default", (take(FULL), dim, False))
    s.call("aten._log_softmax_backward_data.default", (take(FULL), out, dim, torch.float64))


def losses() -> Iterator[Case]:
    """Every reduction, the gradient of each, and cross-entropy over a split vocabulary."""
    extra = {"aten.smooth_l1_loss.default": (0.8,), "aten.huber_loss.default": (0.8,)}
    between = {"aten.binary_cross_entropy.default": (None,)}
    for reduction in (0, 1, 2):
        for op in ELEMENT_LOSSES:
            kind = CHANCE if op == "aten.binary_cross_entropy.default" else FULL
            middle = (None, None) if "logits" in op else between.get(op, ())
            rest = (*middle, reduction, *extra.get(op, ()))
            yield Case(op, lambda s, take, op=op, k=kind, r=rest: s.call(op, (take(k), take(CHANCE), *r)))  # type: ignore[misc]
        for op in ELEMENT_LOSS_GRADS:
            forward = op.replace("_backward", "")
            kind = CHANCE if "cross_entropy" in op else FULL
            grad = FULL if reduction == 0 else replace(SCALAR, linear=False, pure=True)
            rest = (*between.get(forward, ()), reduction, *extra.get(forward, ()))
            yield Case(
                op,
                lambda s, take, op=op, k=kind, g=grad, r=rest: s.call(
                    op, (take(g), take(k), take(CHANCE), *r)
                ),  # type: ignore[misc]
            )
        for op in ("aten.nll_loss_forward.default", "aten.nll_loss_backward.default"):
            yield Case(op, lambda s, take, r=reduction: cross_entropy(s, take, r))  # type: ignore[misc]


def cross_entropy(s: OperandSketch, take: Take, reduction: int) -> None:
    """Forward and backward of a loss over classes."""
    out = s.call("aten._log_softmax.default", (take(LOGITS), 1, False))
    target = take(TARGET)
    nll = s.call("aten.nll_loss_forward.default", (out, target, None, reduction, IGNORE))
    s.pick(nll, 0)
    count = s.pick(nll, 1)
    ones = replace(TARGET, make=normal)
    grad = take(replace(SCALAR, linear=False, pure=True) if reduction else ones)
    args = (grad, out, target, None, reduction, IGNORE, count)
    given = s.call("aten.nll_loss_backward.default", args)
    s.call("aten._log_softmax_backward_data.default", (given, out, 1, torch.float64))


def lookups() -> Iterator[Case]:
    """Embeddings, with the forward lookup in sight of the gradient and without; indexing."""
    table = Operand((VOCAB, F), normal, sample=None, linear=False)
    for op in ("aten.embedding.default", "aten.embedding_dense_backward.default"):
        for padding in (-1, 2):
            yield Case(op, lambda s, take, p=padding: _embedding(s, take, table, p))  # type: ignore[misc]
    yield Case(
        "aten.embedding_dense_backward.default",
        lambda s, take: s.call(
            "aten.embedding_dense_backward.default", (take(FULL), take(INDEX), VOCAB, -1, False)
        ),
    )
    positions = replace(INDEX, shape=(1, T), sample=None)
    yield Case(
        "aten.embedding.default",
        lambda s, take: s.call("aten.embedding.default", (take(table), take(positions))),
    )
    yield Case(CHECKED, lambda s, take: s.call("aten.index.Tensor", (take(table), [_checked(s, take)])))
    column = replace(INDEX, shape=(B, 1))
    yield Case("aten.index.Tensor", lambda s, take: s.call("aten.index.Tensor", (take(table), [take(INDEX)])))
    yield Case(
        "aten.index.Tensor",
        lambda s, take: s.call(
            "aten.index.Tensor", (take(FULL), [None, take(replace(positions, shape=(3,), make=below(T)))])
        ),
        coupled=True,
    )
    yield Case(
        "aten.index.Tensor",
        lambda s, take: s.call(
            "aten.index.Tensor",
            (take(FULL), [s.call("aten.arange.default", (B,)), take(replace(TARGET, make=below(T)))]),
        ),
    )
    yield Case("aten.index.Tensor", lambda s, take: _row_by_row(s, take, column))


def _checked(s: OperandSketch, take: Take) -> Ref:
    return s.call(CHECKED, (take(INDEX), VOCAB))


def _row_by_row(s: OperandSketch, take: Take, column: Operand) -> None:
    samples = s.call("aten.unsqueeze.default", (s.call("aten.arange.default", (B,)), 1))
    s.call("aten.index.Tensor", (take(FULL), [samples, take(replace(column, make=below(T)))]))


def _embedding(s: OperandSketch, take: Take, table: Operand, padding: int) -> None:
    index = take(INDEX)
    s.call("aten.embedding.default", (take(table), index, padding))
    s.call("aten.embedding_dense_backward.default", (take(FULL), index, VOCAB, padding, False))


def fused() -> Iterator[Case]:
    """Layer norm and attention, forward and backward."""
    for op in ("aten.native_layer_norm.default", "aten.native_layer_norm_backward.default"):
        for count in (1, 2):
            yield Case(op, lambda s, take, n=count: _layer_norm(s, take, n))  # type: ignore[misc]
    masks = (None, replace(HEADS, shape=(B, 1, T, T)), replace(HEADS, shape=(1, 1, T, T), sample=None))
    for op in (FLASH, FLASH_BACKWARD):
        for mask in masks:
            yield Case(op, lambda s, take, m=mask: _attention(s, take, m))  # type: ignore[misc]

    for causal, window, repeat in ((True, 0, 1), (True, 2, 2), (False, 0, 1)):
        for op in (PACKED, PACKED_BACKWARD):
            yield Case(op, lambda s, take, w=(causal, window, 0.4, repeat): _packed(s, take, w))  # type: ignore[misc]


def _packed(s: OperandSketch, take: Take, literals: tuple[object, ...]) -> None:
    repeated = replace(HEADS, make=lambda *given: _in_pairs(normal(*given))) if literals[-1] == 2 else HEADS
    query, key, value = take(HEADS), take(repeated), take(repeated)
    positions = take(replace(INDEX, make=below(3)))
    made = s.call(PACKED, (query, key, value, positions, *literals))
    args = (take(HEADS), query, key, value, s.pick(made, 0), s.pick(made, 1), positions, *literals)
    picked(s, PACKED_BACKWARD, args, 3)


def _in_pairs(heads: Tensor) -> Tensor:
    """Heads of which each two are alike."""
    return heads[:, ::2].repeat_interleave(2, dim=1)


def _layer_norm(s: OperandSketch, take: Take, count: int) -> None:
    tail = FULL.shape[-count:]
    value, scale, shift = (
        take(FULL),
        take(replace(ROW, shape=tail)),
        take(replace(ROW, shape=tail)),
    )
    made = s.call("aten.native_layer_norm.default", (value, tail, scale, shift, 1e-5))
    _, mean, spread = (s.pick(made, index) for index in range(3))
    args = (take(FULL), value, tail, mean, spread, scale, shift, (True, True, True))
    picked(s, "aten.native_layer_norm_backward.default", args, 3)


def _attention(s: OperandSketch, take: Take, mask: Operand | None) -> None:
    query, key, value = take(HEADS), take(HEADS), take(HEADS)
    causal = mask is None
    more = {} if mask is None else {"attn_mask": take(replace(mask, linear=False, pure=True))}
    made = s.call(FLASH, (query, key, value, 0.0, causal), {**more, "scale": 0.4})
    out, stats = s.pick(made, 0), s.pick(made, 1)
    args = (take(HEADS), query, key, value, out, stats, 0.0, causal)
    picked(s, FLASH_BACKWARD, args, 3, {**more, "scale": 0.4})


def constants() -> Iterator[Case]:
    """Fills and counters, added to a split value as masks are."""
    wide = {"dtype": torch.float64}
    plain: list[tuple[str, tuple[object, ...]]] = [
        ("aten.ones.default", ((B, T, F),)),
        ("aten.zeros.default", ((B, T, F),)),
        ("aten.full.default", ((T, 1), 0.3)),
        ("aten.scalar_tensor.default", (0.3,)),
        ("aten.arange.default", (F,)),
        ("aten.arange.start", (1, F + 1)),
        ("aten.arange.start_step", (0, 2 * F, 2)),
        ("aten.linspace.default", (0.0, 1.0, F)),
    ]
    for op, args in plain:
        yield Case(op, lambda s, take, op=op, a=args: _added(s, take, s.call(op, a, wide)))  # type: ignore[misc]
    like: list[tuple[str, tuple[object, ...]]] = [
        ("aten.new_ones.default", ((B, T, F),)),
        ("aten.new_zeros.default", ((F,),)),
        ("aten.new_full.default", ((B, T, F), 0.3)),
        ("aten.ones_like.default", ()),
        ("aten.zeros_like.default", ()),
        ("aten.full_like.default", (0.3,)),
        ("aten.fill.Scalar", (0.3,)),
    ]
    for op, args in like:
        yield Case(op, lambda s, take, op=op, a=args: _added(s, take, s.call(op, (take(FULL), *a))))  # type: ignore[misc]
    empty: list[tuple[str, tuple[object, ...]]] = [
        ("aten.empty_like.default", ()),
        ("aten.new_empty.default", ((B, T, F),)),
        ("aten.new_empty_strided.default", ((B, T, F), (1, B, B * T))),
    ]
    for op, args in empty:
        yield Case(op, lambda s, take, op=op, a=args: _times_zero(s, take, op, a))  # type: ignore[misc]
    nothing = "aten.empty.memory_format"
    yield Case(
        nothing,
        lambda s, take: _added(
            s, take, s.call("aten.zeros_like.default", (s.call(nothing, ((B, T, F),), wide),))
        ),
    )
    for op in TRIANGLES:
        yield Case(op, lambda s, take, op=op: s.call(op, (take(FULL), 1)))  # type: ignore[misc]


def random_masks() -> Iterator[Case]:
    """Masks and numbers by position, with values that are split, pending, or the same for all samples."""
    for value in (FULL, replace(FULL, shape=(B, 1, F)), WEIGHT):
        yield Case(RANDOM_MASK, lambda s, take, v=value: s.call("aten.mul.Tensor", _dropped(s, take, v)))  # type: ignore[misc]
        yield Case(MASKED, lambda s, take, v=value: s.call(MASKED, (*_dropped(s, take, v), 1.25)))  # type: ignore[misc]
        yield Case(RANDOM_NUMBERS, lambda s, take, v=value: _noisy(s, take, v))  # type: ignore[misc]
    yield Case(MASKED, lambda s, take: s.call(MASKED, (take(FULL), take(FLAG), 1.25)))


def _dropped(s: OperandSketch, take: Take, value: Operand) -> tuple[Ref, Ref]:
    mask = s.call(RANDOM_MASK, (s.key((3, 5)), 2, 0.6, value.shape, torch.bool))
    return take(value), mask


def _noisy(s: OperandSketch, take: Take, value: Operand) -> None:
    noise = s.call(RANDOM_NUMBERS, (s.key((3, 5)), 2, "normal", value.shape, torch.float64))
    s.call("aten.add.Tensor", (take(value), noise))


def _added(s: OperandSketch, take: Take, made: Ref) -> None:
    s.call("aten.mul.Tensor", (take(FULL), made))


def _times_zero(s: OperandSketch, take: Take, op: str, args: tuple[object, ...]) -> None:
    """What is in new memory does not matter: it is only asked for its shape."""
    s.call("aten.zeros_like.default", (s.call(op, (take(FULL), *args)),))
