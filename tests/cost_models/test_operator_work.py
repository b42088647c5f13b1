"""Flops and bytes of single calls, by hand and by the operators' rules."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import nn

from hspmd_compiler.cost_models.operator_classes import OperatorClass, class_of, work_of
from hspmd_compiler.program.interpret import RowCall
from hspmd_compiler.program.kernels.kernels import OWN_KERNELS
from hspmd_compiler.program.operator_types import Typed, answer_of, typed_of
from hspmd_compiler.program.program import LocalRow, Value
from hspmd_compiler.rules.call_rule import bind, tensors
from hspmd_compiler.trace.tracer import trace


def called(op: str, shapes: list[tuple[int, ...]], *more: object, dtype: torch.dtype = torch.float32):  # type: ignore[no-untyped-def]
    """The work of a call of tensors of these shapes, then other arguments."""
    values = tuple(Value(number) for number in range(len(shapes)))
    row = LocalRow(Value(len(shapes)), op, (*values, *more))
    call = RowCall(row, row.args, {}, tuple(range(len(shapes))))
    given: list[Typed] = [typed_of(torch.empty(shape, dtype=dtype, device="meta")) for shape in shapes]
    answer = answer_of(call, dict(enumerate(given)), "meta")
    results = [None if made is None else made.typed for made in answer.made]
    return work_of(call, given, results, all(made is None or made.shared >= 0 for made in answer.made))


def test_product() -> None:
    work = called("aten.mm.default", [(3, 4), (4, 5)])
    assert (work.of, work.flops, work.bytes) == (OperatorClass.MATMUL, 2 * 3 * 4 * 5, 4 * (12 + 20 + 15))
    assert work.name == "mm"


def test_elementwise_is_by_its_elements() -> None:
    work = called("aten.mul.Tensor", [(3, 4), (4,)], dtype=torch.bfloat16)
    assert (work.of, work.dtype) == (OperatorClass.ELEMENTWISE, "bfloat16")
    assert (work.flops, work.bytes) == (12, 2 * (12 + 4 + 12))


def test_views_are_no_work() -> None:
    work = called("aten.t.default", [(3, 4)])
    assert (work.of, work.flops, work.bytes) == (OperatorClass.VIEW, 0, 0)


@pytest.mark.parametrize(("causal", "part"), [(False, 1.0), (True, 0.5)])
def test_attention(causal: bool, part: float) -> None:
    """Two products of scores forward, five backward; half of the scores where it is causal."""
    heads = (2, 3, 8, 16)
    forward = called("hspmd.attention", [heads] * 3, None, 0.0, causal, None)
    scores = 2 * 3 * 8 * 8 * part
    assert forward.flops == scores * (2 * 2 * 16 + 8)
    lse = (2, 3, 8)
    backward = called("hspmd.attention_backward", [heads] * 5 + [lse], None, 0.0, causal, None)
    assert backward.flops == scores * (5 * 2 * 16 + 8)


WINDOW = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)


def test_convolutions_of_ours_are_those_of_the_rule() -> None:
    """And each gradient takes as many as the forward pass."""
    shapes = [(2, 4, 8, 8), (6, 4, 3, 3)]
    rule = called("aten.convolution.default", shapes, None, *WINDOW)
    assert rule.flops == 2 * 2 * 6 * 8 * 8 * 4 * 3 * 3
    image, weight = shapes
    out = (2, 6, 8, 8)
    own = called("hspmd.convolution", shapes, None, out, *WINDOW)
    by_image = called("hspmd.convolution_input_gradient", [out, weight], image, *WINDOW)
    by_weight = called("hspmd.convolution_weight_gradient", [out, image], weight, *WINDOW)
    assert rule.flops == own.flops == by_image.flops == by_weight.flops


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(4, 6, 3), nn.ConvTranspose2d(4, 6, 3), nn.Conv2d(4, 6, 3, 2, groups=2)]
)
def test_a_traced_gradient_of_a_convolution_is_two_such_products(layer: nn.Module) -> None:
    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(self.inner.bias.sum() + x).square().sum()

    graph = trace(Squares(), {"x": torch.zeros(2, 4, 8, 8)}, batch=2)
    shapes = [row.shape for row in graph.rows]
    flops = {}
    for row in graph.rows:
        if "convolution" in row.op:
            read = [None if ref is None else shapes[ref.id] for ref in tensors(row)]
            flops[row.op.split(".")[1]] = bind(row, read).flops()
    made = layer(torch.zeros(2, 4, 8, 8)).shape
    outside = (2, 4, 8, 8) if isinstance(layer, nn.ConvTranspose2d) else made
    assert flops["convolution"] == 2 * prod(outside) * prod(layer.weight.shape[1:])
    assert flops["convolution_backward"] == 2 * flops["convolution"]


def test_a_lookup_reads_the_rows_that_it_gives() -> None:
    table = torch.empty((1000, 8), device="meta")
    index = torch.zeros((5,), dtype=torch.int64, device="meta")
    row = LocalRow(Value(2), "aten.embedding.default", (Value(0), Value(1)))
    call = RowCall(row, row.args, {}, (0, 1))
    given = [typed_of(table), typed_of(index)]
    work = work_of(call, given, [typed_of(torch.empty((5, 8), device="meta"))], False)
    assert (work.of, work.bytes) == (OperatorClass.INDEX, 2 * 5 * 8 * 4 + 5 * 8)


def test_kernels_of_ours_have_a_class_of_their_own() -> None:
    """None is priced as elementwise by mistake."""
    elementwise = {name for name in OWN_KERNELS if class_of(name) is OperatorClass.ELEMENTWISE}
    assert {name for name in elementwise if "pool" not in name} == {
        *("hspmd.random_mask", "hspmd.random_mask.default"),
        *("hspmd.random_numbers", "hspmd.random_numbers.default"),
        *("hspmd.document_starts", "hspmd.token_positions"),  # of a whole number per token
    }


def test_attention_by_pieces_is_half_of_a_square_and_all_of_what_lies_before() -> None:
    """Both passes; a window takes the scores that it hides."""
    q, kv, rest = (2, 3, 4, 16), (2, 3, 4, 32), ((0, 0, 1), True)
    own, before = ((4, 8),), ((0, 4),)
    for keys, window, pairs in ((own, 0, 10), (before, 0, 16), (own, 1, 16), (before, 1, 0)):
        scores = 2 * 3 * pairs
        forward = called(
            "hspmd.piece_attention", [q, kv], None, None, None, own, keys, *rest, window, None, True
        )
        assert forward.flops == scores * (2 * 2 * 16 + 8)
        given = [q, q, kv, q, (2, 3, 4)]
        args = (None, None, own, keys, *rest, window, None, True)
        assert called("hspmd.piece_attention_backward", given, *args).flops == scores * (5 * 2 * 16 + 8)


def test_experts_that_a_rank_has_get_their_share_of_the_rows() -> None:
    """Two of eight experts: a quarter of the products, forward and of the matrices' gradients."""
    shapes = [(32, 6), (2, 6, 10), (32,)]
    whole = called("hspmd.expert_mm", shapes)
    assert whole.flops == 2 * 32 * 6 * 10
    assert called("hspmd.expert_mm", shapes, ((0, 1), (5, 6)), 8).flops == whole.flops / 4
    gradient = [(32, 6), (32, 10), (32,)]
    assert called("hspmd.expert_grad", gradient, 2, ((0, 2),), 8).flops == whole.flops / 4
