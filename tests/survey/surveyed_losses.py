"""Losses that people train with, for scores of [samples, TOKENS, CLASSES], and their targets."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .surveyed_models import CLASSES, SAMPLES, TOKENS, Apply

Draw = Callable[[Generator], Tensor]
Entry = tuple[Apply, dict[str, Draw]]
REDUCTIONS = ("mean", "sum", "none")
IGNORED = -100


def numbers(generator: Generator) -> Tensor:
    return torch.randn(SAMPLES, TOKENS, CLASSES, generator=generator)


def chances(generator: Generator) -> Tensor:
    return torch.rand(SAMPLES, TOKENS, CLASSES, generator=generator)


def signs(generator: Generator) -> Tensor:
    return torch.randint(0, 2, (SAMPLES, TOKENS, CLASSES), generator=generator).float() * 2 - 1


def labels(generator: Generator) -> Tensor:
    """Some are ignored, all of one sample's too."""
    drawn = torch.randint(0, CLASSES, (SAMPLES, TOKENS), generator=generator)
    drawn[1] = IGNORED
    drawn[2, 1:] = IGNORED
    return drawn


def one_each(generator: Generator) -> Tensor:
    return torch.randint(0, CLASSES, (SAMPLES,), generator=generator)


def listed(_generator: Generator) -> Tensor:
    """Classes up to the first -1."""
    return torch.tensor([[1, 3, -1, 0, 0], [2, -1, 4, 1, 0]] * (SAMPLES // 2))


def weights(scores: Tensor) -> Tensor:
    """Of classes."""
    return torch.tensor([0.2, 1.0, 2.0, 0.5, 0.7]).to(scores.dtype)


def whole(value: Tensor) -> Tensor:
    """A scalar of a loss that is not reduced."""
    return value.sum() / 7 if value.dim() else value


def entries() -> dict[str, Entry]:
    """Each with each reduction."""
    found: dict[str, Entry] = {}
    for reduction in REDUCTIONS:
        for name, (loss, targets) in LOSSES.items():
            use: Apply = lambda o, r=reduction, loss=loss, **t: whole(loss(o, reduction=r, **t))  # noqa: E731
            found[f"{name}, {reduction}"] = (use, targets)
    return found


def _cross_entropy(o: Tensor, y: Tensor, **more: object) -> Tensor:
    return F.cross_entropy(o.flatten(0, 1), y.flatten(), **more)  # type: ignore[arg-type]


def _cosine(o: Tensor, y: Tensor, reduction: str) -> Tensor:
    first, second, signs_of = o.flatten(0, 1), y.flatten(0, 1), y[..., 0].flatten().sign()
    return F.cosine_embedding_loss(first, second, signs_of, reduction=reduction)


LOSSES: dict[str, Entry] = {
    "cross entropy": (_cross_entropy, {"y": labels}),
    "cross entropy, 2d": (lambda o, y, **m: F.cross_entropy(o.transpose(1, 2), y, **m), {"y": labels}),
    "cross entropy, weights": (lambda o, y, **m: _cross_entropy(o, y, weight=weights(o), **m), {"y": labels}),
    "cross entropy, 2d, weights": (
        lambda o, y, **m: F.cross_entropy(o.transpose(1, 2), y, weight=weights(o), **m),
        {"y": labels},
    ),
    "cross entropy, smoothing": (
        lambda o, y, **m: _cross_entropy(o, y, label_smoothing=0.1, **m),
        {"y": labels},
    ),
    "cross entropy, chances": (
        lambda o, y, **m: F.cross_entropy(o.flatten(0, 1), y.flatten(0, 1), **m),
        {"y": chances},
    ),
    "mse": (lambda o, y, **m: F.mse_loss(o, y, **m), {"y": numbers}),
    "l1": (lambda o, y, **m: F.l1_loss(o, y, **m), {"y": numbers}),
    "smooth l1": (lambda o, y, **m: F.smooth_l1_loss(o, y, **m), {"y": numbers}),
    "huber": (lambda o, y, **m: F.huber_loss(o, y, **m), {"y": numbers}),
    "bce": (lambda o, y, **m: F.binary_cross_entropy(o.sigmoid(), y, **m), {"y": chances}),
    "bce with logits": (
        lambda o, y, **m: F.binary_cross_entropy_with_logits(o, y, pos_weight=weights(o), **m),
        {"y": chances},
    ),
    "kl div": (lambda o, y, **m: F.kl_div(o.log_softmax(-1), y.softmax(-1), **m), {"y": numbers}),
    "cosine embedding": (_cosine, {"y": numbers}),
    "triplet margin": (lambda o, y, **m: F.triplet_margin_loss(o, y, y.flip(1), **m), {"y": numbers}),
    "hinge embedding": (lambda o, y, **m: F.hinge_embedding_loss(o, y, **m), {"y": signs}),
    "margin ranking": (lambda o, y, **m: F.margin_ranking_loss(o, o.sin(), y, margin=0.1, **m), {"y": signs}),
    "multi margin": (lambda o, y, **m: F.multi_margin_loss(o.mean(1), y, **m), {"y": one_each}),
    "multilabel margin": (lambda o, y, **m: F.multilabel_margin_loss(o.mean(1), y, **m), {"y": listed}),
    "multilabel soft margin": (lambda o, y, **m: F.multilabel_soft_margin_loss(o, y, **m), {"y": chances}),
    "soft margin": (lambda o, y, **m: F.soft_margin_loss(o, y, **m), {"y": signs}),
    "poisson nll": (lambda o, y, **m: F.poisson_nll_loss(o, y * 3, full=True, **m), {"y": chances}),
}
