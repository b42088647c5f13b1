"""Attention of the queries of one piece of a row over keys and values of another, merged by log-sum-exp.

Several calls, one for each piece of keys, give what one call over all of them would: each takes what those
before have found. q is [samples, heads, tokens, width]; `kv` holds keys and values side by side in the last
dim, with heads before they are repeated. Between calls outputs and gradients of q are of the type of the
log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...base.comm_plan import Interval
from ...errors import InternalError
from .attention_kernels import attention, attention_backward, lse_dtype
from .shape_only import is_shape_only
from .visible_blocks import BlockKind, VisibleBlock, tokens_of, visible_blocks

Documents = Tensor | Sequence[int] | None
HeadPlaces = tuple[int, int, int]
"""(first query head, first key-value head, query heads that read one key-value head), of all heads."""


def piece_attention(
    q: Tensor,
    kv: Tensor,
    before: Tensor | None,
    lse_before: Tensor | None,
    documents: Documents,
    q_runs: Sequence[Interval],
    k_runs: Sequence[Interval],
    heads: HeadPlaces,
    causal: bool,
    window: int,
    scale: float | None,
    ends: bool,
) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp of each query's scores) of all keys so far.

    before, lse_before: of the keys of earlier calls, None in the first. ends: no call follows, the output is
    of the type of q. documents: tokens of each document of the row, on the host.
    """
    out = _started(q, kv.shape[-1] - q.shape[-1], before)
    unseen = q.new_full(q.shape[:3], -torch.inf, dtype=lse_dtype(q))
    lse = unseen if lse_before is None else lse_before.clone()
    if not is_shape_only(q) and out.numel() and kv.numel():
        k, v = _spread(kv, q, heads)
        for block in _blocks(q, kv, documents, q_runs, k_runs, causal, window):
            _merge(out, lse, block, *_attended(q, k, v, block, window, scale))
    return (out.to(q.dtype) if ends else out), lse


def piece_attention_backward(
    grad: Tensor,
    q: Tensor,
    kv: Tensor,
    out: Tensor,
    lse: Tensor,
    before: Tensor | None,
    documents: Documents,
    q_runs: Sequence[Interval],
    k_runs: Sequence[Interval],
    heads: HeadPlaces,
    causal: bool,
    window: int,
    scale: float | None,
    ends: bool,
) -> tuple[Tensor, Tensor]:
    """(gradient of q by all keys so far, gradient of these keys and values by the queries of this piece).

    out, lse: of all keys. before: the gradient of q by the keys of earlier calls, None in the first.
    """
    dq = _started(q, q.shape[-1], before)
    if is_shape_only(q) or not (q.numel() and kv.numel()):
        return (dq.to(q.dtype) if ends else dq), torch.zeros_like(kv, memory_format=torch.contiguous_format)
    k, v = _spread(kv, q, heads)
    dk, dv = torch.zeros_like(k, dtype=lse.dtype), torch.zeros_like(v, dtype=lse.dtype)
    for block in _blocks(q, kv, documents, q_runs, k_runs, causal, window):
        own, seen = _places(block.queries), _places(block.keys)
        given = (grad[own], q[own], k[seen], v[seen], out[own], lse[own].contiguous())
        found = attention_backward(*given, *_how(q, block, window, scale))
        for total, each, at in zip((dq, dk, dv), found, (own, seen, seen), strict=True):
            total[at] += each
    dkv = _gathered(torch.cat([dk, dv], dim=-1), kv, heads)
    return (dq.to(q.dtype) if ends else dq), dkv


def host_lengths(documents: Documents) -> tuple[int, ...] | None:
    """Lengths of documents as plain numbers."""
    if isinstance(documents, Tensor):
        return tuple(documents.tolist())
    return None if documents is None else tuple(documents)


def _started(q: Tensor, width: int, before: Tensor | None) -> Tensor:
    """What blocks are added to: in the memory of a model's own attention, by tokens."""
    if before is not None:
        return before.clone()
    samples, heads, tokens, _ = q.shape
    return q.new_zeros((samples, tokens, heads, width), dtype=lse_dtype(q)).transpose(1, 2)


def _blocks(
    q: Tensor,
    kv: Tensor,
    documents: Documents,
    q_runs: Sequence[Interval],
    k_runs: Sequence[Interval],
    causal: bool,
    window: int,
) -> list[VisibleBlock]:
    lengths = host_lengths(documents)
    for name, tensor, runs in (("queries", q, q_runs), ("keys", kv, k_runs)):
        if tensor.shape[2] != tokens_of(runs):
            raise InternalError(f"{tensor.shape[2]} {name} for the tokens {list(runs)} of a row")
        if lengths is not None and any(low < high and high > sum(lengths) for low, high in runs):
            raise InternalError(f"documents of {sum(lengths)} tokens, {name} at {list(runs)} of the row")
    return visible_blocks(q_runs, k_runs, lengths, causal, window)


def _places(tokens: Interval) -> tuple[slice, slice, slice]:
    return slice(None), slice(None), slice(*tokens)


def _read(spread: Tensor, heads: HeadPlaces) -> list[int]:
    """Of each local query head, the local key-value head that it reads."""
    first, first_kv, repeat = heads
    return [(first + head) // repeat - first_kv for head in range(spread.shape[1])]


def _spread(kv: Tensor, q: Tensor, heads: HeadPlaces) -> tuple[Tensor, Tensor]:
    """Keys and values, a head for each query head."""
    read = _read(q, heads)
    if read != list(range(kv.shape[1])):
        kv = kv[:, read]
    return kv[..., : q.shape[-1]], kv[..., q.shape[-1] :]


def _gathered(spread: Tensor, kv: Tensor, heads: HeadPlaces) -> Tensor:
    """The opposite: gradients of heads that were spread, added up, in the type of `kv`."""
    total = torch.zeros_like(kv, dtype=spread.dtype, memory_format=torch.contiguous_format)
    total.index_add_(1, torch.tensor(_read(spread, heads), device=kv.device), spread)
    return total.to(kv.dtype)


def _how(
    q: Tensor, block: VisibleBlock, window: int, scale: float | None
) -> tuple[Tensor | None, float, bool, float | None]:
    """Mask, dropout, causal flag and scale of a block's kernel."""
    mask = None
    if block.kind is BlockKind.BAND:
        sides = (block.queries, block.keys)
        queries, keys = (torch.arange(high - low, device=q.device) for low, high in sides)
        behind = (queries + block.ahead)[:, None] - keys
        mask = ((behind >= 0) & (behind < window))[None, None]
    return mask, 0.0, block.kind is BlockKind.TRIANGLE, scale


def _attended(
    q: Tensor, k: Tensor, v: Tensor, block: VisibleBlock, window: int, scale: float | None
) -> tuple[Tensor, Tensor]:
    own, seen = _places(block.queries), _places(block.keys)
    return attention(q[own], k[seen], v[seen], *_how(q, block, window, scale))


def _merge(out: Tensor, lse: Tensor, block: VisibleBlock, found: Tensor, found_lse: Tensor) -> None:
    """Add what the queries of a block found among its keys."""
    own = _places(block.queries)
    total = torch.logaddexp(lse[own], found_lse)
    weights = ((each - total).exp().unsqueeze(-1) for each in (lse[own], found_lse))
    out[own] = out[own] * next(weights) + found.to(out.dtype) * next(weights)
    lse[own] = total
