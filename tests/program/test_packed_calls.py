"""The one call of packed attention on CUDA: its arguments, by references that compute from them alone."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from hspmd_compiler.program.kernels import packed_calls
from hspmd_compiler.program.kernels.packed_calls import VarlenCall, VarlenForm, bounds_of, form_of
from hspmd_compiler.program.kernels.packed_kernels import (
    packed_attention,
    packed_attention_backward,
    starts_of_lengths,
)

F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64
SCALE = 0.3


def documents(q: Tensor, bounds_q: Tensor, bounds_k: Tensor, longest_q: int, longest_k: int) -> list[slice]:
    """The documents that a kernel is told, checked as it checks them."""
    assert q.dim() == 3 and q.is_contiguous() and q.stride(1) == q.shape[2]
    assert bounds_q.dtype is torch.int32 and torch.equal(bounds_q, bounds_k)
    every = [slice(low, high) for low, high in pairwise(bounds_q.tolist())]
    assert every[0].start == 0 and every[-1].stop == len(q)
    assert longest_q == longest_k == max(each.stop - each.start for each in every)
    return every


def computed(q: Tensor, k: Tensor, v: Tensor, causal: bool, left: int, scale: float) -> tuple[Tensor, Tensor]:
    """One document, [token, head, width]; left: keys before a query that it sees, -1 for all."""
    scores = torch.einsum("qhe,khe->hqk", q, k) * scale
    ahead = torch.arange(len(q))[:, None] - torch.arange(len(k))
    hidden = (ahead < 0) & torch.tensor(causal) | (ahead > left) & torch.tensor(left >= 0)
    scores = scores.masked_fill(hidden, -math.inf)
    lse = scores.logsumexp(-1)
    return torch.einsum("hqk,khv->qhv", (scores - lse[..., None]).exp(), v), lse


def slopes(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, *rest: object) -> tuple[Tensor, ...]:
    given = [each.detach().clone().requires_grad_() for each in (q, k, v)]
    out, own = computed(*given, *rest)  # type: ignore[arg-type]
    torch.testing.assert_close(own.detach(), lse)
    return torch.autograd.grad(out, given, grad)


def flash(
    q: Tensor, k: Tensor, v: Tensor, bq: Tensor, bk: Tensor, nq: int, nk: int,
    dropout: float, causal: bool, debug: bool, *, scale: float,
    window_size_left: int | None = None, window_size_right: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert not dropout and not debug and window_size_right in (None, 0)
    left = -1 if window_size_left is None else window_size_left
    made = [computed(q[d], k[d], v[d], causal, left, scale) for d in documents(q, bq, bk, nq, nk)]
    nothing = torch.empty(0)
    return torch.cat([m[0] for m in made]), torch.cat([m[1] for m in made], 1), nothing, nothing, nothing


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, bq: Tensor, bk: Tensor,
    nq: int, nk: int, dropout: float, causal: bool, state: Tensor, unused: Tensor, *, scale: float,
    window_size_left: int | None = None, window_size_right: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert lse.shape == (q.shape[1], len(q)) and lse.is_contiguous() and out.shape == grad.shape
    left = -1 if window_size_left is None else window_size_left
    every = documents(q, bq, bk, nq, nk)
    made = [slopes(grad[d], q[d], k[d], v[d], lse[:, d], causal, left, scale) for d in every]
    return tuple(map(torch.cat, zip(*made, strict=True)))


def efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: None, bq: Tensor, bk: Tensor, nq: int, nk: int,
    dropout: float, mask: int, wants_lse: bool, *, scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert bias is None and not dropout and wants_lse and q.shape[0] == 1 and mask in (0, 1)
    every = documents(q[0], bq, bk, nq, nk)
    out, lse, *_ = flash(q[0], k[0], v[0], bq, bk, nq, nk, dropout, mask == 1, False, scale=scale)
    padded = torch.full((len(every), q.shape[2], -(-nq // 32) * 32), math.inf, dtype=q.dtype)
    for at, each in enumerate(every):
        padded[at, :, : each.stop - each.start] = lse[:, each]
    return out[None], padded, torch.empty(0), torch.empty(0), torch.empty(0), torch.empty(0)


def efficient_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: None, out: Tensor, bq: Tensor, bk: Tensor,
    nq: int, nk: int, lse: Tensor, dropout: float, seed: Tensor, offset: Tensor, mask: int,
    bias_grad: bool, *, scale: float,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    every = documents(q[0], bq, bk, nq, nk)
    assert lse.shape == (len(every), q.shape[2], -(-nq // 32) * 32) and not bias_grad
    flat = torch.cat([lse[at, :, : each.stop - each.start] for at, each in enumerate(every)], 1)
    rest = (flat.contiguous(), bq, bk, nq, nk, dropout, mask == 1, seed, offset)
    found = flash_backward(grad[0], q[0], k[0], v[0], out[0], *rest, scale=scale)
    return (*(each[None] for each in found), None)


class Library:
    """flash-attn's two calls, as its interface names their arguments."""

    @staticmethod
    def _flash_attn_varlen_forward(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool,
        window_size_left: int = -1, window_size_right: int = -1,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        counted = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return flash(
            q,
            k,
            v,
            *counted,
            dropout_p,
            causal,
            False,
            scale=softmax_scale,
            window_size_left=window_size_left,
        )[:4]

    @staticmethod
    def _flash_attn_varlen_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor,
        dk: Tensor, dv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
        window_size_right: int, softcap: float, alibi_slopes: None, deterministic: bool,
    ) -> Tensor:  # fmt: skip
        rest = (softmax_lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, causal)
        found = flash_backward(
            dout, q, k, v, out, *rest, dout, dout, scale=softmax_scale, window_size_left=window_size_left
        )
        for given, made in zip((dq, dk, dv), found, strict=True):
            given.copy_(made)
        return softmax_lse


@pytest.mark.parametrize("form", VarlenForm)
@pytest.mark.parametrize(("causal", "window"), [(True, 0), (False, 0), (True, 3)])
def test_each_kernel_is_told_what_makes_the_same(
    form: VarlenForm, causal: bool, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if window and form is VarlenForm.EFFICIENT:
        assert form_of(F32, 8, 8, window, True) is None
        return
    stand_ins = (flash, flash_backward, efficient, efficient_backward)
    for stand_in in stand_ins:
        monkeypatch.setitem(packed_calls.CALLS, stand_in.__name__, stand_in)
    monkeypatch.setattr(packed_calls, "library", lambda: SimpleNamespace(**vars(Library)))
    starts = torch.cat([starts_of_lengths((1, 35, 4)), starts_of_lengths((40,))])
    q, k, v, grad = torch.randn(4, 2, 3, 40, 8, dtype=F64).unbind()
    call = VarlenCall(form, bounds_of(starts, q.device), causal, window, SCALE)
    out, lse = call.forward(q, k, v)
    wanted, wanted_lse = packed_attention(q, k, v, starts, causal, window, SCALE)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(lse, wanted_lse)
    found = call.backward(grad, q, k, v, out, lse)
    theirs = packed_attention_backward(grad, q, k, v, wanted, wanted_lse, starts, causal, window, SCALE)
    for ours, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(ours, other)
        assert ours.stride() == other.stride()


def test_torchs_kernels_take_these_arguments_by_name_and_number() -> None:
    """The stand-ins' arguments are those of PyTorch's schemas, in order."""
    for name, stand_in in (("flash", flash), ("efficient", efficient)):
        for suffix, own in (("", stand_in), ("_backward", globals()[f"{name}_backward"])):
            schema = packed_calls.CALLS[name + suffix]._schema  # type: ignore[attr-defined]
            code, defaults = own.__code__, own.__kwdefaults__ or {}
            positional = [each.name for each in schema.arguments if not each.kwarg_only]
            named = {each.name for each in schema.arguments if each.kwarg_only}
            needed = [n for n in positional if n != "compute_log_sumexp"]
            assert len(needed) <= code.co_argcount <= len(positional)
            keywords = set(code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])
            assert keywords <= named and defaults.keys() <= named


def test_who_computes() -> None:
    assert form_of(BF16, 64, 64, 0, True) is VarlenForm.LIBRARY
    assert form_of(BF16, 64, 64, 5, False) is VarlenForm.FLASH
    assert form_of(BF16, 60, 60, 0, True) is VarlenForm.EFFICIENT
    assert form_of(BF16, 512, 512, 0, True) is VarlenForm.EFFICIENT
    assert form_of(F32, 64, 64, 0, True) is VarlenForm.EFFICIENT
    assert form_of(F32, 64, 64, 5, True) is None
    assert form_of(F64, 64, 64, 0, True) is None


def test_bounds_are_found_once_for_all_layers() -> None:
    starts = torch.cat([starts_of_lengths((2, 3)), starts_of_lengths((5,))])
    bounds = bounds_of(starts, torch.device("cpu"))
    assert bounds.device.tolist() == [0, 2, 5, 10]
    assert (bounds.lengths, bounds.longest) == ((2, 3, 5), 5)
    assert bounds_of(starts, torch.device("cpu")) is bounds
