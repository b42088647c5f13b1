"""Attention inside documents: as one call for each alone, and as one call under the written-out mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hspmd_compiler.program.kernels.attention_kernels import attention, attention_backward
from hspmd_compiler.program.kernels.packed_kernels import (
    LEAST_BLOCK,
    DocumentMask,
    document_starts,
    documents_of,
    packed_attention,
    packed_attention_backward,
    starts_of_lengths,
)

KINDS = [DocumentMask(True), DocumentMask(False), DocumentMask(True, 1), DocumentMask(True, 3)]


def positions_of(*lengths: int) -> Tensor:
    return torch.cat([torch.arange(length) for length in lengths])[None]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def under_mask(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, starts: Tensor, kind: DocumentMask
) -> list[Tensor]:
    """Result, log-sum-exp and gradients under a mask of every pair of tokens."""
    every = range(starts.shape[1])
    mask = ((starts[:, :, None] == starts[:, None, :]) & kind.passes(every, every))[:, None]
    out, lse = attention(q, k, v, mask, 0.0, False, 0.3)
    return [out, lse, *attention_backward(grad, q, k, v, out, lse, mask, 0.0, False, 0.3)]


def packed(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, starts: Tensor, kind: DocumentMask) -> list[Tensor]:
    literals = (starts, kind.causal, kind.window, 0.3)
    out, lse = packed_attention(q, k, v, *literals)
    return [out, lse, *packed_attention_backward(grad, q, k, v, out, lse, *literals)]


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_packed_is_as_under_the_mask(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 17))
    positions = torch.tensor(
        [data.draw(st.lists(st.integers(0, 3), min_size=length, max_size=length)) for _ in range(2)]
    )
    kind = data.draw(st.sampled_from(KINDS))
    q, k, v, grad = (drawn(2, 3, length, 4, seed=seed) for seed in range(4))
    starts = document_starts(positions)
    for ours, theirs in zip(
        packed(q, k, v, grad, starts, kind), under_mask(q, k, v, grad, starts, kind), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_what_they_are_alone(kind: DocumentMask) -> None:
    lengths = (1, 5, 0, 7, 1)  # one without tokens leaves no trace
    q, k, v, grad = (drawn(1, 2, sum(lengths), 4, seed=seed) for seed in range(4))
    together = packed(q, k, v, grad, starts_of_lengths(lengths), kind)
    for low, high in ((0, 1), (1, 6), (6, 13), (13, 14)):
        own = [each[:, :, low:high] for each in (q, k, v, grad)]
        alone = packed(*own, torch.zeros(1, high - low, dtype=torch.int64), kind)  # type: ignore[arg-type]
        for ours, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(ours[:, :, low:high], theirs, rtol=0, atol=1e-14)


def test_windows_of_a_long_document_are_computed_in_blocks() -> None:
    length = 2 * LEAST_BLOCK + 5
    q, k, v, grad = (drawn(1, 1, length, 2, seed=seed) for seed in range(4))
    starts = starts_of_lengths((3, length - 3))
    kind = DocumentMask(True, LEAST_BLOCK + 1)
    for ours, theirs in zip(
        packed(q, k, v, grad, starts, kind), under_mask(q, k, v, grad, starts, kind), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_where_documents_begin() -> None:
    assert document_starts(positions_of(2, 1, 3)).tolist() == [[0, 0, 2, 3, 3, 3]]
    assert document_starts(torch.tensor([[7, 8, 8, 3]], dtype=torch.int32)).tolist() == [[0, 0, 2, 3]]
    assert torch.equal(starts_of_lengths((2, 0, 1, 3, 0)), document_starts(positions_of(2, 1, 3)))
    assert documents_of(starts_of_lengths((2, 1))) == [[range(2), range(2, 3)]]
    assert document_starts(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0)
    assert documents_of(torch.zeros(1, 0, dtype=torch.int64)) == [[]]


def test_no_heads_and_no_tokens() -> None:
    starts = torch.zeros(1, 0, dtype=torch.int64)
    none = torch.zeros(1, 2, 0, 4)
    assert packed_attention(none, none, none, starts, True, 0, None)[0].shape == none.shape
    headless = torch.zeros(1, 0, 3, 4)
    out, lse = packed_attention(headless, headless, headless, starts_of_lengths((3,)), True, 0, None)
    assert out.shape == headless.shape and lse.shape == (1, 0, 3)


def test_a_sequence_of_one_token_passes_its_value() -> None:
    q, k, v = (drawn(1, 2, 1, 4, seed=seed) for seed in range(3))
    out, _ = packed_attention(q, k, v, starts_of_lengths((1,)), True, 0, None)
    torch.testing.assert_close(out, v)
