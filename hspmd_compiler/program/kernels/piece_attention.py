"""Attention of the queries of one piece of a row over keys and values of another, merged by log-sum-exp.

Several calls, one for each piece of keys, give what one call over all of them would: each takes what those
before have found. q is [samples, heads, tokens, width]; `kv` holds keys and values side by side in the last
dim, with heads before they are repeated. Between calls outputs and gradients of q are of the type of the
log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...base.comm_plan import Interval
from ...errors import InternalError
from .attention_kernels import attention, attention_backward, lse_dtype
from .shape_only import is_shape_only
from .visible_blocks import BlockKind, VisibleBlock, tokens_of, visible_blocks

Place = tuple[slice, slice, slice]
HeadPlaces = tuple[int, int, int]
"""(first query head, first key-value head, query heads that read one key-value head), of all heads."""


def piece_attention(
    q: Tensor,
    kv: Tensor,
    before: Tensor | None,
    lse_before: Tensor | None,
    starts: Tensor | None,
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
    of the type of q. starts: on the host, for each token of the whole row the place where its document
    begins, of one row or of each sample; None: a row is one document.
    """
    out = _started(q, kv.shape[-1] - q.shape[-1], before)
    unseen = q.new_full(q.shape[:3], -torch.inf, dtype=lse_dtype(q))
    lse = unseen if lse_before is None else lse_before.clone()
    if not is_shape_only(q) and out.numel() and kv.numel():
        k, v = _spread(kv, q, heads)
        for samples, block in _blocks(q, kv, starts, q_runs, k_runs, causal, window):
            own, seen = _places(samples, block)
            _merge(out, lse, own, *attention(q[own], k[seen], v[seen], *_how(q, block, window, scale)))
    return (out.to(q.dtype) if ends else out), lse


def piece_attention_backward(
    grad: Tensor,
    q: Tensor,
    kv: Tensor,
    out: Tensor,
    lse: Tensor,
    before: Tensor | None,
    starts: Tensor | None,
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
    for samples, block in _blocks(q, kv, starts, q_runs, k_runs, causal, window):
        own, seen = _places(samples, block)
        given = (grad[own], q[own], k[seen], v[seen], out[own], lse[own].contiguous())
        found = attention_backward(*given, *_how(q, block, window, scale))
        for total, each, at in zip((dq, dk, dv), found, (own, seen, seen), strict=True):
            total[at] += each
    dkv = _gathered(torch.cat([dk, dv], dim=-1), kv, heads)
    return (dq.to(q.dtype) if ends else dq), dkv


def _started(q: Tensor, width: int, before: Tensor | None) -> Tensor:
    """What blocks are added to: in the memory of a model's own attention, by tokens."""
    if before is not None:
        return before.clone()
    samples, heads, tokens, _ = q.shape
    return q.new_zeros((samples, tokens, heads, width), dtype=lse_dtype(q)).transpose(1, 2)


def _blocks(
    q: Tensor,
    kv: Tensor,
    starts: Tensor | None,
    q_runs: Sequence[Interval],
    k_runs: Sequence[Interval],
    causal: bool,
    window: int,
) -> Iterator[tuple[slice, VisibleBlock]]:
    """Blocks, each with the samples that it is of."""
    for name, tensor, runs in (("queries", q, q_runs), ("keys", kv, k_runs)):
        if tensor.shape[2] != tokens_of(runs):
            raise InternalError(f"{tensor.shape[2]} {name} for the tokens {list(runs)} of a row")
        if starts is not None and any(low < high and high > starts.shape[1] for low, high in runs):
            raise InternalError(f"documents of {starts.shape[1]} tokens, {name} at {list(runs)} of the row")
    for samples, lengths in _documents(starts):
        for block in visible_blocks(q_runs, k_runs, lengths, causal, window):
            yield samples, block


def _documents(starts: Tensor | None) -> Iterator[tuple[slice, list[int] | None]]:
    """Samples, and the lengths of their documents."""
    if starts is None:
        yield slice(None), None
        return
    alike = bool((starts == starts[:1]).all())
    for sample, row in enumerate(starts[:1] if alike else starts):
        lengths: list[int] = torch.unique_consecutive(row, return_counts=True)[1].tolist()
        yield (slice(None) if alike else slice(sample, sample + 1)), lengths


def _places(samples: slice, block: VisibleBlock) -> tuple[Place, Place]:
    """Where a block's queries and keys lie."""
    queries, keys = (samples, slice(None), slice(*block.queries)), (samples, slice(None), slice(*block.keys))
    return queries, keys


def _readers(count: int, heads: HeadPlaces) -> list[tuple[int, int]]:
    """(local key-value head, how many of so many local query heads read it), in order.

    Heads are given as slices: an index would be copied to the device, which waits for it.
    """
    first, first_kv, repeat = heads
    read = [(first + head) // repeat - first_kv for head in range(count)]
    return [(head, read.count(head)) for head in dict.fromkeys(read)]


def _spread(kv: Tensor, q: Tensor, heads: HeadPlaces) -> tuple[Tensor, Tensor]:
    """Keys and values, a head for each query head."""
    readers = _readers(q.shape[1], heads)
    if readers != [(head, 1) for head in range(kv.shape[1])]:
        parts = [kv[:, head : head + 1].expand(-1, count, -1, -1) for head, count in readers]
        kv = torch.cat(parts, dim=1)
    return kv[..., : q.shape[-1]], kv[..., q.shape[-1] :]


def _gathered(spread: Tensor, kv: Tensor, heads: HeadPlaces) -> Tensor:
    """The opposite: gradients of heads that were spread, added up, in the type of `kv`."""
    total = torch.zeros_like(kv, dtype=spread.dtype, memory_format=torch.contiguous_format)
    start = 0
    for head, count in _readers(spread.shape[1], heads):
        total[:, head] = spread[:, start : start + count].sum(1)
        start += count
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


def _merge(out: Tensor, lse: Tensor, own: Place, found: Tensor, found_lse: Tensor) -> None:
    """Add what the queries of a block found among its keys."""
    total = torch.logaddexp(lse[own], found_lse)
    weights = ((each - total).exp().unsqueeze(-1) for each in (lse[own], found_lse))
    out[own] = out[own] * next(weights) + found.to(out.dtype) * next(weights)
    lse[own] = total
