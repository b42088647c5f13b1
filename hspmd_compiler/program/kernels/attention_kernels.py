"""Attention of the local heads, forward and backward, on the kernel that the device offers.

q, k, v are [batch, heads, sequence, width] with key and value heads already repeated. By shape alone
(meta tensors) the answer is the CPU kernel's. No kernel is called when a size is zero: the CPU one
kills the process for zero heads. No kernel is given rows with gaps: the CPU one reads past them, without a
word, into other rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...base.comm_plan import Interval

FUSED_CUDA_TYPES = (torch.float32, torch.float16, torch.bfloat16)
CUDA_LSE_ALIGNMENT = 32
CUDA_MASK_ALIGNMENT = 16

Gradients = tuple[Tensor, Tensor, Tensor]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    causal: bool,
    scale: float | None,
    rows: Sequence[Interval] | None = None,
) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp of each query's scores). rows: which queries these are; None: all."""
    if not (q.numel() and k.numel() and v.numel()):
        return _empty_like(q, v.shape[-1]), q.new_zeros(q.shape[:3], dtype=lse_dtype(q))
    q, k, v = map(_without_gaps, (q, k, v))
    bias = _additive(mask, q) if rows is None else _causal(q, k, rows)
    causal = causal and rows is None
    if q.is_cpu or q.is_meta:
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        out, lse = op(q, k, v, dropout_p, causal, attn_mask=bias, scale=scale)
        return out, lse
    if q.dtype in FUSED_CUDA_TYPES:
        op = torch.ops.aten._scaled_dot_product_efficient_attention.default
        out, lse, _, _ = op(q, k, v, _aligned(bias, q, k), True, dropout_p, causal, scale=scale)
        return out, lse[:, :, : q.shape[2]]
    return _plain_attention(q, k, v, bias, causal, scale)


def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    causal: bool,
    scale: float | None,
    rows: Sequence[Interval] | None = None,
) -> Gradients:
    """Gradients of q, k and v. rows: which queries these are; None: all."""
    if not (q.numel() and k.numel() and v.numel()):
        return _empty_like(q), _empty_like(k), _empty_like(v)
    grad, q, k, v, out = map(_without_gaps, (grad, q, k, v, out))
    bias = _additive(mask, q) if rows is None else _causal(q, k, rows)
    causal = causal and rows is None
    if q.is_cpu or q.is_meta:
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        dq, dk, dv = op(grad, q, k, v, out, lse, dropout_p, causal, attn_mask=bias, scale=scale)
        return dq, dk, dv
    if q.dtype in FUSED_CUDA_TYPES:
        return _fused_cuda_backward(grad, q, k, v, out, lse, bias, dropout_p, causal, scale)
    return _plain_attention_backward(grad, q, k, v, out, lse, bias, causal, scale)


def lse_dtype(q: Tensor) -> torch.dtype:
    """The type of log-sum-exps."""
    return q.dtype if q.dtype == torch.float64 else torch.float32


def _empty_like(x: Tensor, width: int | None = None) -> Tensor:
    batch, heads, length, own = x.shape
    return x.new_zeros((batch, length, heads, own if width is None else width)).transpose(1, 2)


def _without_gaps(x: Tensor) -> Tensor:
    """The tensor with the elements of each row side by side in memory."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _additive(mask: Tensor | None, q: Tensor) -> Tensor | None:
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        return _without_gaps(torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf")))
    return _without_gaps(mask.to(q.dtype))


def _causal(q: Tensor, k: Tensor, rows: Sequence[Interval]) -> Tensor:
    """The mask that hides from some queries the keys behind them."""
    places = torch.cat([torch.arange(low, high, device=q.device) for low, high in rows])
    future = torch.arange(k.shape[2], device=q.device) > places[:, None]
    return torch.zeros(future.shape, dtype=q.dtype, device=q.device).masked_fill(future, float("-inf"))


def _aligned(bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask at full size, its rows padded in memory as the fused CUDA kernel wants them."""
    if bias is None:
        return None
    length = k.shape[2]
    room = -length % CUDA_MASK_ALIGNMENT
    padded = torch.nn.functional.pad(bias.expand(*bias.shape[:-1], length), (0, room))
    return padded[..., :length].expand(q.shape[0], q.shape[1], q.shape[2], length)


def _fused_cuda_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    causal: bool,
    scale: float | None,
) -> Gradients:
    room = -lse.shape[2] % CUDA_LSE_ALIGNMENT
    padded = torch.nn.functional.pad(lse, (0, room), value=float("inf"))
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    op = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    wanted = [True, True, True, False]
    bias = _aligned(bias, q, k)
    dq, dk, dv, _ = op(grad, q, k, v, bias, out, padded, seed, seed, dropout_p, wanted, causal, scale=scale)
    return dq, dk, dv


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = torch.matmul(q, k.transpose(-1, -2)) * factor
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores if bias is None else scores + bias


def _plain_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    scores = _scores(q, k, bias, causal, scale)
    lse = scores.logsumexp(-1)
    return _by_sequence(torch.matmul((scores - lse.unsqueeze(-1)).exp(), v)), lse


def _plain_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
) -> Gradients:
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    weights = (_scores(q, k, bias, causal, scale) - lse.unsqueeze(-1)).exp()
    slope = torch.matmul(grad, v.transpose(-1, -2)) - (grad * out).sum(-1, keepdim=True)
    dscores = weights * slope * factor
    dq, dk = torch.matmul(dscores, k), torch.matmul(dscores.transpose(-1, -2), q)
    dv = torch.matmul(weights.transpose(-1, -2), grad)
    return _by_sequence(dq), _by_sequence(dk), _by_sequence(dv)


def _by_sequence(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)
