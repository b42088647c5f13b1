"""Losses in which samples of the whole batch meet, and targets that are measured over the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def standardised(x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(x, (y - y.mean()) / y.std())


def chained(x: Tensor, y: Tensor) -> Tensor:
    """Each sum over the inputs needs the one before."""
    weight = (y - y.mean()) / y.std()
    weight = weight / weight.abs().sum()
    return F.mse_loss(x, weight / weight.square().mean(0))


def scaled_by_the_largest(x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(x, y / y.abs().max()) + F.mse_loss(x, y.sort(0)[0])


def first_rows_of_inputs(x: Tensor, y: Tensor) -> Tensor:
    """Micro-batches of one size have unlike pieces of a slice over samples."""
    return F.mse_loss(x * y[1:3].mean(), y) / (y[:2].square().sum() + 1)


def pairs_of_labels(x: Tensor, y: Tensor) -> Tensor:
    """Labels of all samples beside those of all."""
    label = (y[:, 0] > 0).long()
    same = (label[:, None] == label[None, :]).to(x.dtype)
    return (x * same.sum(1, keepdim=True)).square().mean()


def centred(x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss((x - x.mean(0)) / (x.var(0) + 1).sqrt(), y)


def load_balance(x: Tensor, y: Tensor) -> Tensor:
    chance = x.softmax(-1)
    chosen = (chance.argmax(-1, keepdim=True) == torch.arange(x.shape[1])).to(x.dtype)
    return F.mse_loss(x, y) + 0.3 * (chosen.mean(0) * chance.mean(0)).sum()


def correlation(x: Tensor, y: Tensor) -> Tensor:
    first, second = x - x.mean(), y - y.mean()
    return -(first * second).sum() / (first.norm() * second.norm())


def sums_of_sums(x: Tensor, y: Tensor) -> Tensor:
    """Three levels: each sum needs the one before."""
    scaled = x / (x.square().mean() + 1)
    total = scaled.exp().sum(0)
    return (scaled * total).sum() / (total.sum() + 1) + F.mse_loss(x, y)


def product_of_losses(x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(x, y) * F.mse_loss(x.tanh(), y)


def clip(x: Tensor, y: Tensor) -> Tensor:
    logits = F.normalize(x, dim=-1) @ F.normalize(x.tanh() * y, dim=-1).t() * 3
    target = torch.arange(len(logits))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def siglip(x: Tensor, y: Tensor) -> Tensor:
    logits = F.normalize(x, dim=-1) @ F.normalize(x.tanh() + y, dim=-1).t() * 3 - 1
    return -F.logsigmoid((2 * torch.eye(len(logits)) - 1) * logits).sum() / len(logits)


def two_views(x: Tensor, y: Tensor) -> Tensor:
    """SimCLR: both views of all samples in one product."""
    z = F.normalize(torch.cat([x, x * y], 0), dim=-1)
    logits = (z @ z.t() / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    count = torch.arange(len(x))
    return F.cross_entropy(logits, torch.cat([count + len(x), count]))


def distances(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, None] - x[None, :]).square().sum(-1).add(1).log().mean() + F.mse_loss(x, y)


def barlow(x: Tensor, y: Tensor) -> Tensor:
    first, second = ((z - z.mean(0)) / z.std(0) for z in (x, x * y))
    return (first.t() @ second / len(x) - torch.eye(x.shape[1])).square().sum()


def chunks_of_tokens(x: Tensor, y: Tensor) -> Tensor:
    """Pieces of five elements end inside samples."""
    parts = zip(x.flatten().split(5), y.flatten().split(5), strict=True)
    return sum(F.mse_loss(a, b, reduction="sum") for a, b in parts) / (y != 0).sum()  # type: ignore[return-value]


def means_of_chunks(x: Tensor, y: Tensor) -> Tensor:
    parts = zip(x.flatten().chunk(4), y.flatten().chunk(4), strict=True)
    return sum(F.mse_loss(a, b) for a, b in parts) / 4  # type: ignore[return-value]


def some_rows(x: Tensor, y: Tensor) -> Tensor:
    """Not every chunk has a gradient; random masks of a slice are those of its own samples."""
    parts = x.split(2)
    dropped = F.dropout(x[1:], 0.5).square().sum() + F.dropout(x.flatten()[:24], 0.5).square().sum()
    return F.mse_loss(parts[0], y[:2]) + parts[2].square().sum() + dropped


OF_INPUTS: tuple[Loss, ...] = (
    standardised,
    chained,
    scaled_by_the_largest,
    first_rows_of_inputs,
    pairs_of_labels,
)
SUMS: tuple[Loss, ...] = (centred, load_balance, correlation, sums_of_sums, product_of_losses, barlow)
GATHERED: tuple[Loss, ...] = (clip, siglip, two_views, distances)
CHUNKS: tuple[Loss, ...] = (chunks_of_tokens, means_of_chunks, some_rows)
EVERY = (*OF_INPUTS, *SUMS, *GATHERED, *CHUNKS)
