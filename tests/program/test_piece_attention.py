"""Attention by pieces against dense attention: any runs of tokens, documents, windows and heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hspmd_compiler.base.comm_plan import Interval
from hspmd_compiler.base.context import ContextCut, member_runs, row_pieces
from hspmd_compiler.errors import InternalError
from hspmd_compiler.program.kernels import visible_blocks as blocks_module
from hspmd_compiler.program.kernels.piece_attention import (
    piece_attention,
    piece_attention_backward,
)
from hspmd_compiler.program.kernels.visible_blocks import BlockKind, visible_blocks
from tests.program.context.dense_attention import DOUBLE, dense, drawn, starts_of, visible

LENGTHS = st.lists(st.integers(0, 7), min_size=1, max_size=5)


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[int], list[int] | None, ContextCut, bool, int]:
    """(lengths of pieces, documents, cut, causal, window)."""
    lengths = draw(LENGTHS)
    total, documents = sum(lengths), draw(st.none() | LENGTHS)
    if documents is not None:
        ends = sorted(min(end, total) for end in [sum(documents[: n + 1]) for n in range(len(documents))])
        documents = [high - low for low, high in zip([0, *ends], [*ends, total], strict=True)]
    causal = draw(st.booleans())
    return lengths, documents, draw(st.sampled_from(ContextCut)), causal, draw(st.integers(0, 5))


def taken(whole: Tensor, runs: Sequence[Interval]) -> Tensor:
    return torch.cat([whole[:, :, low:high] for low, high in runs], 2)


@given(rows(), st.integers(1, 3))
def test_blocks_are_what_queries_see(row: tuple[Any, ...], band: int) -> None:
    lengths, documents, cut, causal, window = row
    runs = member_runs(row_pieces(lengths, cut), len(lengths))
    seen = visible(sum(lengths), documents, causal, window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BAND", band)
        for own in runs:
            for other in runs:
                found = visible_blocks(own, other, documents, causal, window)
                at = [torch.cat([torch.arange(*run) for run in piece]) for piece in (own, other)]
                assert torch.equal(counted(found, window, *at), seen[at[0]][:, at[1]].int())


def counted(found: Sequence[Any], window: int, queries: Tensor, keys: Tensor) -> Tensor:
    """[query, key]: how many blocks let the query see the key."""
    total = torch.zeros(len(queries), len(keys), dtype=torch.int32)
    for block in found:
        part = total[slice(*block.queries), slice(*block.keys)]
        rows, columns = (torch.arange(size) for size in part.shape)
        behind = rows[:, None] + block.ahead - columns
        part += {
            BlockKind.OPEN: torch.ones_like(part),
            BlockKind.TRIANGLE: (behind >= 0).int(),
            BlockKind.BAND: ((behind >= 0) & (behind < window)).int(),
        }[block.kind]
        assert block.kind is not BlockKind.TRIANGLE or part.shape[0] == part.shape[1]
        assert block.kind is BlockKind.OPEN or bool((part > 0).any(1).all()), "a query that sees nothing"
    return total


@settings(max_examples=60)
@given(rows(), st.sampled_from([(4, 4), (4, 2), (6, 1)]), st.booleans(), st.randoms(use_true_random=False))
def test_pieces_in_any_order_equal_dense_attention(
    row: tuple[Any, ...], heads: tuple[int, int], scaled: bool, order: Any
) -> None:
    lengths, documents, cut, causal, window = row
    total, scale = sum(lengths), 0.3 if scaled else None
    q, grad = drawn(1, heads[0], total, 4), drawn(1, heads[0], total, 4)
    k, v = drawn(1, heads[1], total, 4), drawn(1, heads[1], total, 4)
    whole = dense(q, k, v, grad, visible(total, documents, causal, window), scale)
    kv, runs = torch.cat([k, v], -1), member_runs(row_pieces(lengths, cut), len(lengths))
    rest = ((0, 0, heads[0] // heads[1]), causal, window, scale)
    dkv, starts = torch.zeros_like(kv), starts_of(documents)
    for own in runs:
        others = order.sample(runs, len(runs))
        at = torch.cat([torch.arange(*run) for run in own])
        state: tuple[Tensor | None, Tensor | None] = (None, None)
        for number, other in enumerate(others):
            ends = number == len(runs) - 1
            state = piece_attention(q[:, :, at], taken(kv, other), *state, starts, own, other, *rest, ends)
        out, lse = state
        assert out is not None and lse is not None
        torch.testing.assert_close(out, whole.out[:, :, at], rtol=0, atol=1e-12)
        torch.testing.assert_close(lse, whole.lse[:, :, at], rtol=0, atol=1e-12)
        dq: Tensor | None = None
        for number, other in enumerate(others):
            ends = number == len(runs) - 1
            given = (grad[:, :, at], q[:, :, at], taken(kv, other), out, lse, dq, starts)
            dq, part = piece_attention_backward(*given, own, other, *rest, ends)
            dkv[:, :, torch.cat([torch.arange(*run) for run in other])] += part
        torch.testing.assert_close(dq, whole.dq[:, :, at], rtol=0, atol=1e-12)
    torch.testing.assert_close(dkv, torch.cat([whole.dk, whole.dv], -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("first", [1, 3])
def test_heads_that_share_keys_unevenly(first: int) -> None:
    """Query heads `first` to 4 of 6, 3 to a key-value head: groups are cut where heads say."""
    q, k, v, grad = drawn(1, 6, 5, 4), drawn(1, 2, 5, 4), drawn(1, 2, 5, 4), drawn(1, 6, 5, 4)
    whole = dense(q, k, v, grad, visible(5, None, True, 0))
    kv, place = torch.cat([k, v], -1), (first, first // 3, 3)
    held, row = kv[:, first // 3 :], ((0, 5),)
    own = slice(first, 5)
    out, lse = piece_attention(q[:, own], held, None, None, None, row, row, place, True, 0, None, True)
    torch.testing.assert_close(out, whole.out[:, own], rtol=0, atol=1e-12)
    args = (grad[:, own], q[:, own], held, out, lse, None, None, row, row, place, True, 0, None, True)
    dq, _ = piece_attention_backward(*args)
    torch.testing.assert_close(dq, whole.dq[:, own], rtol=0, atol=1e-12)


def test_nothing_given_is_changed() -> None:
    """A later piece leaves what the earlier one gave as it was."""
    q, kv, row = drawn(1, 2, 3, 4), drawn(1, 2, 3, 8), ((3, 6),)
    rest = ((0, 0, 1), True, 0, None)
    out, lse = piece_attention(q, kv, None, None, None, row, row, *rest, False)
    copies = [out.clone(), lse.clone()]
    piece_attention(q, kv, out, lse, None, row, ((0, 3),), *rest, True)
    assert torch.equal(out, copies[0]) and torch.equal(lse, copies[1])


def test_bfloat16_is_merged_in_float32() -> None:
    q, kv, row = drawn(1, 2, 3, 4).bfloat16(), drawn(1, 2, 3, 8).bfloat16(), ((0, 3),)
    types = []
    for ends in (False, True):
        out, lse = piece_attention(q, kv, None, None, None, row, row, (0, 0, 1), True, 0, None, ends)
        types.append((out.dtype, lse.dtype))
    assert types == [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)]


def test_results_lie_by_tokens_as_those_of_whole_attention() -> None:
    """A model views them as [samples, tokens, heads * width]."""
    q, kv, row = drawn(1, 2, 3, 4), drawn(1, 2, 3, 8), ((0, 3),)
    out, _ = piece_attention(q, kv, None, None, None, row, row, (0, 0, 1), True, 0, None, True)
    assert out.transpose(1, 2).view(1, 3, 8).shape == (1, 3, 8)


def test_by_shape() -> None:
    q, kv, row = (torch.empty(1, 2, 3, size, device="meta", dtype=DOUBLE) for size in (4, 7, 1))
    runs = ((0, 1), (7, 9))
    out, lse = piece_attention(q, kv, None, None, row, runs, runs, (0, 0, 1), True, 0, None, True)
    assert (out.shape, lse.shape) == ((1, 2, 3, 3), (1, 2, 3))
    args = (out, q, kv, out, lse, None, row, runs, runs, (0, 0, 1), True, 0, None, True)
    assert [each.shape for each in piece_attention_backward(*args)] == [q.shape, kv.shape]


def test_runs_that_are_not_the_tensors_are_refused() -> None:
    """A table that was filled for another size gives no wrong number."""
    q, kv = drawn(1, 2, 3, 4), drawn(1, 2, 3, 8)
    rest = ((0, 0, 1), True, 0, None, True)
    with pytest.raises(InternalError, match="3 keys for the tokens"):
        piece_attention(q, kv, None, None, None, ((0, 3),), ((0, 4),), *rest)
    with pytest.raises(InternalError, match="documents of 2 tokens"):
        piece_attention(q, kv, None, None, starts_of([2]), ((0, 3),), ((0, 3),), *rest)


def test_samples_with_documents_of_their_own() -> None:
    q, k, v, grad = (drawn(2, 2, 5, 4) for _ in range(4))
    kv, row, rest = torch.cat([k, v], -1), ((0, 5),), ((0, 0, 1), True, 0, None, True)
    packs = [[2, 3], [5]]
    starts = torch.cat([starts_of(pack) for pack in packs])
    out, lse = piece_attention(q, kv, None, None, starts, row, row, *rest)
    dq, dkv = piece_attention_backward(grad, q, kv, out, lse, None, starts, row, row, *rest)
    for sample, pack in enumerate(packs):
        own = slice(sample, sample + 1)
        whole = dense(q[own], k[own], v[own], grad[own], visible(5, pack, True, 0))
        wanted = (whole.out, whole.dq, torch.cat([whole.dk, whole.dv], -1))
        for found, each in zip((out, dq, dkv), wanted, strict=True):
            torch.testing.assert_close(found[own], each, rtol=0, atol=1e-12)
