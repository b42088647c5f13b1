from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hspmd_compiler.errors import ArtifactError
from hspmd_compiler.program.kernels import attention_kernels as attention_module
from hspmd_compiler.program.kernels.kernels import (
    OWN_KERNELS,
    QUICK_BINDINGS,
    kernel,
    makes_tensor_from_nothing,
)

DOUBLE = torch.float64
SPLITS = [
    [((0, 11),)],
    [((0, 4),), ((4, 11),)],
    [((0, 11),), ()],
    [((0, 2), (7, 9)), ((2, 7),), ((9, 11),)],
]
"""Rows of a vocabulary of 11 that each rank holds."""
IGNORED = -100


def own(name: str) -> Callable[..., Any]:
    return OWN_KERNELS[f"hspmd.{name}"]


@pytest.mark.parametrize(
    "name",
    [
        "os.system.default",
        "aten.__class__.mro",
        "aten.add_.Tensor",
        "aten.add.out",
        "aten.from_file.default",
        "aten.nothing.default",
        "aten.name.upper",
        "aten.add.Nothing",
        "hspmd.nothing",
        "builtins.eval",
        "aten.add.Tensor\nimport os",
    ],
)
def test_only_functional_operators_of_the_table_are_found(name: str) -> None:
    with pytest.raises(ArtifactError, match="is refused"):
        kernel(name)


@pytest.mark.parametrize("name", sorted(QUICK_BINDINGS))
def test_quick_bindings_are_operators_too(name: str) -> None:
    assert kernel(name) is not QUICK_BINDINGS[name]


def test_factories_need_a_device_and_others_do_not() -> None:
    factories = ("aten.arange.default", "aten.scalar_tensor.default", "aten.full.default", "hspmd.full")
    assert all(makes_tensor_from_nothing(name) for name in factories)
    assert not any(map(makes_tensor_from_nothing, ("aten.new_ones.default", "aten.mm.default", "hspmd.take")))


def test_take_and_place_are_opposites_on_the_intervals() -> None:
    x = torch.arange(2 * 12 * 3, dtype=DOUBLE).reshape(2, 12, 3)
    intervals = ((1, 2), (4, 6))
    taken = own("factor_take")(x, (2, 2, 6, 3), 2, intervals, (2, 6, 3))
    assert torch.equal(taken, x.view(2, 2, 6, 3)[:, :, [1, 4, 5]].reshape(2, 6, 3))
    back = own("place")(taken, (2, 2, 3, 3), 2, 6, intervals, (2, 12, 3))
    keep = torch.zeros(2, 2, 6, 3, dtype=torch.bool)
    keep[:, :, [1, 4, 5]] = True
    assert torch.equal(back, x.masked_fill(~keep.reshape(2, 12, 3), 0))


def test_take_of_one_interval_is_a_view_and_of_none_is_empty() -> None:
    x = torch.randn(4, 5)
    part = own("take")(x, 1, ((1, 3),))
    assert part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert own("take")(x, 1, ((0, 5),)) is x
    assert own("take")(x, 0, ()).shape == (0, 5)
    assert own("place")(torch.zeros(4, 0), (4, 0), 1, 3, (), (4, 3)).shape == (4, 3)


@pytest.mark.parametrize("split", SPLITS)
def test_split_embedding_sums_to_the_whole(split: list[Any]) -> None:
    table, ids, slope = (
        torch.randn(11, 3, dtype=DOUBLE),
        torch.randint(0, 11, (2, 5)),
        torch.randn(2, 5, 3).double(),
    )
    whole = table.clone().requires_grad_()
    out = torch.nn.functional.embedding(ids, whole, padding_idx=4)
    out.backward(slope)
    rows = [
        torch.tensor([r for low, high in part for r in range(low, high)], dtype=torch.int64) for part in split
    ]
    parts = [own("vocab_embedding")(table[r], ids, part) for r, part in zip(rows, split, strict=True)]
    assert torch.equal(sum(parts), out.detach())
    for r, part in zip(rows, split, strict=True):
        got = own("vocab_embedding_backward")(slope, ids, len(r), part, 4)
        assert torch.allclose(got, whole.grad[r], atol=1e-14)  # type: ignore[index]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("mean", [True, False])
def test_split_cross_entropy_equals_the_whole(split: list[Any], mean: bool) -> None:
    logits = (torch.randn(6, 11, dtype=DOUBLE) * 3).requires_grad_()
    target = torch.tensor([0, 10, IGNORED, 7, 2, IGNORED])
    loss = torch.nn.functional.cross_entropy(
        logits, target, ignore_index=IGNORED, reduction="mean" if mean else "sum"
    )
    loss.backward()
    parts = [own("take")(logits.detach(), 1, part) for part in split]
    largest = torch.stack([own("row_max")(x, 1) for x in parts]).amax(0)
    total = sum(own("exp_sum")(x, largest, 1) for x in parts)
    count = own("valid_count")(target, IGNORED, DOUBLE) if mean else None
    slope, picked = torch.ones((), dtype=DOUBLE), torch.zeros((), dtype=DOUBLE)
    for x, part in zip(parts, split, strict=True):
        logp = own("log_softmax_finish")(x, largest, total)
        picked = picked + own("nll_pick")(logp, target, part, IGNORED)
        grad = own("nll_backward")(slope, target, logp, part, IGNORED, count)
        rowsum = own("nll_rowsum")(slope, target, IGNORED, count)
        got = own("log_softmax_backward")(grad, logp, rowsum)
        assert torch.allclose(got, own("take")(logits.grad, 1, part), atol=1e-14)
    assert torch.allclose(picked if count is None else picked / count, loss.detach(), atol=1e-14)


def attention_case(dtype: torch.dtype, mask: str) -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 8, dtype=dtype) for _ in range(3))
    allowed = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    additive = torch.zeros(2, 1, 5, 5, dtype=dtype).masked_fill(~allowed, float("-inf"))
    masks = {"none": None, "bool": allowed, "additive": additive, "causal": None}
    return q, k, v, masks[mask], mask == "causal"


@pytest.mark.parametrize("mask", ["none", "bool", "additive", "causal"])
@pytest.mark.parametrize("plain", [False, True])
def test_attention_equals_autograd(mask: str, plain: bool) -> None:
    q, k, v, bias, causal = attention_case(DOUBLE, mask)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=bias, is_causal=causal)
    slope = torch.randn_like(expected)
    expected.backward(slope)
    if plain:
        additive = attention_module._additive(bias, q)
        out, lse = attention_module._plain_attention(q, k, v, additive, causal, None)
        got = attention_module._plain_attention_backward(slope, q, k, v, out, lse, additive, causal, None)
    else:
        out, lse = own("attention")(q, k, v, bias, 0.0, causal, None)
        got = own("attention_backward")(slope, q, k, v, out, lse, bias, 0.0, causal, None)
    assert torch.allclose(out, expected.detach(), atol=1e-13)
    for found, leaf in zip(got, leaves, strict=True):
        assert torch.allclose(found, leaf.grad, atol=1e-13)  # type: ignore[arg-type]


def test_some_queries_see_the_keys_before_them() -> None:
    q, k, v, _, _ = attention_case(DOUBLE, "causal")
    whole, lse = own("attention")(q, k, v, None, 0.0, True, None)
    grads = own("attention_backward")(whole, q, k, v, whole, lse, None, 0.0, True, None)
    slopes = []
    for rows in (((0, 1), (3, 4)), ((1, 3), (4, 5))):
        held = torch.tensor([place for ends in rows for place in range(*ends)])
        mine = [each[:, :, held] for each in (q, whole, lse)]
        out, stats = own("attention")(mine[0], k, v, None, 0.0, True, None, rows)
        assert torch.allclose(out, mine[1], atol=1e-13) and torch.allclose(stats, mine[2], atol=1e-13)
        of_rows = own("attention_backward")(out, mine[0], k, v, out, stats, None, 0.0, True, None, rows)
        assert torch.allclose(of_rows[0], grads[0][:, :, held], atol=1e-13)
        slopes.append(of_rows[1:])
    for parts, found in zip(zip(*slopes, strict=True), grads[1:], strict=True):
        assert torch.allclose(sum(parts), found, atol=1e-13)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(0, 3, 5, 8), (2, 0, 5, 8), (2, 3, 0, 8), (2, 3, 5, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE, torch.bfloat16])
def test_attention_of_nothing_and_by_shape_look_like_the_kernel(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    strides = []
    for device in ("cpu", "meta"):
        q, k, v = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(3))
        out, lse = own("attention")(q, k, v, None, 0.0, True, 0.5)
        grads = own("attention_backward")(out, q, k, v, out, lse, None, 0.0, True, 0.5)
        assert out.shape == q.shape and lse.shape == shape[:3]
        assert lse.dtype == (DOUBLE if dtype == DOUBLE else torch.float32)
        assert [g.shape for g in grads] == [x.shape for x in (q, k, v)]
        strides.append([x.stride() for x in (out, lse, *grads)])
    assert strides[0] == strides[1]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 4])
@pytest.mark.parametrize("part", [(), ((1, 3), (5, 6))])
def test_vocabulary_kernels_on_every_type_and_on_nothing(
    device: str, dtype: torch.dtype, rows: int, part: tuple[tuple[int, int], ...]
) -> None:
    width = sum(high - low for low, high in part)
    x, one = torch.zeros(rows, width, dtype=dtype, device=device), torch.ones((), dtype=dtype, device=device)
    target = torch.zeros(rows, dtype=torch.int64, device=device)
    largest, total = (
        own("row_max")(x, 1),
        own("exp_sum")(x, torch.zeros(rows, 1, dtype=dtype, device=device), 1),
    )
    logp = own("log_softmax_finish")(x, largest, total)
    grad = own("nll_backward")(one, target, logp, part, IGNORED, one)
    rowsum = own("nll_rowsum")(one, target, IGNORED, None)
    looked_up = own("vocab_embedding")(torch.zeros(width, 7, dtype=dtype, device=device), target, part)
    table = own("vocab_embedding_backward")(looked_up, target, width, part)
    back = own("log_softmax_backward")(grad, logp, rowsum)
    picked, count = own("nll_pick")(logp, target, part, IGNORED), own("valid_count")(target, IGNORED, dtype)
    assert {y.dtype for y in (largest, total, logp, grad, rowsum, looked_up, table, back, picked, count)} == {
        dtype
    }
    assert largest.shape == total.shape == rowsum.shape == (rows, 1)
    assert logp.shape == grad.shape == back.shape == x.shape
    assert looked_up.shape == (rows, 7) and table.shape == (width, 7)
    assert picked.shape == count.shape == ()


def test_a_pending_sum_keeps_one_copy() -> None:
    x = torch.randn(3)
    assert own("zero_unless")(x, True) is x
    assert torch.equal(own("zero_unless")(x, False), torch.zeros(3))
    assert torch.equal(own("full")((2, 0), 1.5, DOUBLE), torch.full((2, 0), 1.5, dtype=DOUBLE))
