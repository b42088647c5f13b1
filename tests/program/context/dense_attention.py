"""Attention of a whole packed row, by its definition, in float64: what every form must equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DOUBLE = torch.float64


def visible(tokens: int, documents: Sequence[int] | None, causal: bool, window: int) -> Tensor:
    """[query, key]: whether the query sees the key."""
    place = torch.arange(tokens)
    lengths = torch.tensor([tokens] if documents is None else list(documents))
    document = torch.arange(len(lengths)).repeat_interleave(lengths)
    behind = place[:, None] - place
    seen = document[:, None] == document
    if causal:
        seen &= behind >= 0
        if window:
            seen &= behind < window
    return seen


def starts_of(documents: Sequence[int] | None) -> Tensor | None:
    """What a program is told of a row's documents: for each token the place where its own begins."""
    if documents is None:
        return None
    begins = torch.tensor([sum(documents[:number]) for number in range(len(documents))], dtype=torch.int64)
    return begins.repeat_interleave(torch.tensor(documents, dtype=torch.int64))[None]


@dataclass(frozen=True)
class Dense:
    """Results for a whole row."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def dense(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, seen: Tensor, scale: float | None = None) -> Dense:
    """By autograd of softmax; k and v have heads before they are repeated."""
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    repeat = q.shape[1] // k.shape[1]
    keys, values = (each.repeat_interleave(repeat, 1) for each in leaves[1:])
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (leaves[0] @ keys.transpose(-1, -2) * factor).masked_fill(~seen, -torch.inf)
    out = scores.softmax(-1) @ values
    dq, dk, dv = torch.autograd.grad(out, leaves, grad)
    return Dense(out.detach(), scores.detach().logsumexp(-1), dq, dk, dv)


def drawn(*shape: int) -> Tensor:
    """Random numbers in float64."""
    return torch.randn(shape, dtype=DOUBLE)
