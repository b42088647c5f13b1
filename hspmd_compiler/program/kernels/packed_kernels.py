"""Attention inside the documents of packed rows, forward and backward.

Where documents begin is a value on the host, whatever the device: a kernel that read it off the device would
wait for it in every layer. Each document is computed as if it were alone; none sees another one's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .attention_kernels import Gradients, attention, attention_backward
from .packed_calls import varlen_call
from .shape_only import is_shape_only

LEAST_BLOCK = 128
"""Queries of a window that are computed together, at least: a short window would make many small calls."""


@dataclass(frozen=True, slots=True)
class DocumentMask:
    """Which keys of its document a query sees. window: where causal, how many, itself the last; 0 for all."""

    causal: bool
    window: int = 0

    def passes(self, queries: range, keys: range) -> Tensor:
        """[query, key]: of one document, by places in it."""
        query, key = torch.arange(queries.start, queries.stop)[:, None], torch.arange(keys.start, keys.stop)
        seen = key <= query if self.causal else torch.ones(len(queries), len(keys), dtype=torch.bool)
        return seen & (key > query - self.window) if self.window else seen


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Queries of one document of a row, and the keys that any of them sees.

    plain: they see all that a kernel's causal flag, or none, lets through. first: token of the document.
    """

    row: int
    queries: range
    keys: range
    plain: bool
    first: int

    @property
    def at_queries(self) -> tuple[slice, slice, slice]:
        """Index of [batch, head, token]."""
        return slice(self.row, self.row + 1), slice(None), slice(self.queries.start, self.queries.stop)

    @property
    def at_keys(self) -> tuple[slice, slice, slice]:
        """Index of [batch, head, token]."""
        return slice(self.row, self.row + 1), slice(None), slice(self.keys.start, self.keys.stop)

    def mask(self, kind: DocumentMask, like: Tensor) -> Tensor | None:
        """What a kernel is given where a flag doesn't say it."""
        if self.plain:
            return None
        first = self.first
        queries = range(self.queries.start - first, self.queries.stop - first)
        keys = range(self.keys.start - first, self.keys.stop - first)
        return kind.passes(queries, keys).to(like.device)[None, None]


def document_starts(positions: Tensor) -> Tensor:
    """Per token the place in its row where its document begins: int64 of the shape of the positions.

    A document begins where a position is not the one before it and one more.
    """
    count, length = positions.shape
    if not length:
        return positions.new_zeros((count, length), dtype=torch.int64)
    places = torch.arange(length, device=positions.device).expand(count, length)
    begins = torch.ones_like(positions, dtype=torch.bool)
    begins[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
    return torch.where(begins, places, 0).cummax(-1).values


def starts_of_lengths(lengths: Sequence[int]) -> Tensor:
    """`document_starts` of one row of documents of these lengths; one without tokens leaves no trace."""
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    return torch.repeat_interleave(torch.tensor(starts, dtype=torch.int64), torch.tensor(lengths))[None]


def documents_of(starts: Tensor) -> list[list[range]]:
    """Per row its documents, as runs of tokens."""
    rows = []
    for row in starts.tolist():
        bounds = [*sorted(set(row)), len(row)]
        rows.append([range(low, high) for low, high in pairwise(bounds)])
    return rows


def pieces_of(starts: Tensor, kind: DocumentMask) -> Iterator[QueryBlock]:
    """Calls of a kernel for plain attention that together make the packed one."""
    for row, documents in enumerate(documents_of(starts)):
        for document in documents:
            if not 0 < kind.window < len(document):
                yield QueryBlock(row, document, document, True, document.start)
                continue
            block = max(kind.window, LEAST_BLOCK)
            for low in range(document.start, document.stop, block):
                high = min(low + block, document.stop)
                first = max(document.start, low - kind.window + 1)
                yield QueryBlock(row, range(low, high), range(first, high), False, document.start)


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    causal: bool,
    window: int,
    scale: float | None,
    repeats: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp of each query's scores).

    starts: see `document_starts`. repeats: of keys and values, how many heads one after the other are alike,
    from the first on; none: nothing is said.
    """
    out = _by_token(q, v.shape[-1])
    lse = q.new_zeros(q.shape[:3], dtype=q.dtype if q.dtype == torch.float64 else torch.float32)
    if is_shape_only(q) or not (q.numel() and v.numel()):
        return out, lse
    call = varlen_call(q, v, starts, causal, window, scale) if q.is_cuda else None
    if call is not None:
        return call.forward(q, k, v)
    kind = DocumentMask(causal, window)
    for piece in pieces_of(starts, kind):
        mine, seen = piece.at_queries, piece.at_keys
        mask, flag = piece.mask(kind, q), causal and piece.plain
        out[mine], lse[mine] = attention(q[mine], k[seen], v[seen], mask, 0.0, flag, scale)
    return out, lse


def packed_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    starts: Tensor,
    causal: bool,
    window: int,
    scale: float | None,
    repeats: Sequence[int] = (),
) -> Gradients:
    """Gradients of q, k and v, of each head of k and v its own."""
    dq, dk, dv = _by_token(q), _by_token(k), _by_token(v)
    if is_shape_only(q) or not (q.numel() and v.numel()):
        return dq, dk, dv
    call = varlen_call(q, v, starts, causal, window, scale) if q.is_cuda else None
    if call is not None:
        return call.backward(grad, q, k, v, out, lse)
    kind = DocumentMask(causal, window)
    for piece in pieces_of(starts, kind):
        mine, seen = piece.at_queries, piece.at_keys
        mask, flag = piece.mask(kind, q), causal and piece.plain
        given = (grad[mine], q[mine], k[seen], v[seen], out[mine], lse[mine])
        slopes = attention_backward(*given, mask, 0.0, flag, scale)
        for total, slope, place in zip((dq, dk, dv), slopes, (mine, seen, seen), strict=True):
            total[place] += slope
    return dq, dk, dv


def whole_attention(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, *literals: object
) -> tuple[Tensor, Tensor]:
    """The operator of the graph, on one device: it is told positions, and how many heads are alike."""
    causal, window, scale, repeat = literals
    alike = _alike(k, repeat)
    return packed_attention(q, k, v, document_starts(positions), causal, window, scale, alike)  # type: ignore[arg-type]


def whole_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    positions: Tensor,
    *literals: object,
) -> Gradients:
    """As `whole_attention`."""
    causal, window, scale, repeat = literals
    given = (grad, q, k, v, out, lse, document_starts(positions))
    return packed_attention_backward(*given, causal, window, scale, _alike(k, repeat))  # type: ignore[arg-type]


def _alike(k: Tensor, repeat: object) -> tuple[int, ...]:
    assert isinstance(repeat, int)
    return (repeat,) * (k.shape[1] // repeat) if repeat > 1 else ()


def _by_token(x: Tensor, width: int | None = None) -> Tensor:
    """Zeros of the shape, tokens outermost in memory: as the CPU's kernel gives its results."""
    batch, heads, length, own = x.shape
    return x.new_zeros((batch, length, heads, own if width is None else width)).transpose(1, 2)
