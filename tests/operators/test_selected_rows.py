"""Losses of what a boolean mask selects are eager's however the batch is cut, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from hspmd_compiler.errors import HspmdError
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import Recompute, RecomputeKind, Strategy
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.verify.eager import eager_model, eager_step
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor
from hspmd_compiler.verify.values import simulate
from hspmd_compiler.verify.widen import widen_program

from ..training.equal_to_eager import EXACT, Case
from ..training.training_cases import program_for

SAMPLES, TOKENS, WIDTH, CLASSES = 6, 5, 8, 7
IGNORED = -100
GARBAGE = 10**6
Loss = Callable[["Model", Tensor, Tensor, Tensor], Tensor]


class Model(nn.Module):
    """Two layers, and a loss of h [samples, tokens, width], labels y and a mask m."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head, self.norm = nn.Linear(WIDTH, CLASSES), nn.LayerNorm(WIDTH)
        self.token = nn.Parameter(torch.zeros(WIDTH))
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return self.loss(self, x, y, m)


def masked_language(o: Model, h: Tensor, y: Tensor, _: Tensor) -> Tensor:
    """The mask is computed twice, and labels that it leaves out are no classes."""
    return F.cross_entropy(o.head(h)[y != IGNORED], y[y != IGNORED])


def sparse_head(o: Model, h: Tensor, y: Tensor, _: Tensor) -> Tensor:
    """As the head of a masked language model that computes selected tokens only."""
    h, y = h.view(-1, WIDTH), y.view(-1)
    chosen = y != IGNORED
    return F.cross_entropy(o.head(o.norm(h[chosen])).view(-1, CLASSES), y[chosen].view(-1).long())


def autoencoder(_: Model, h: Tensor, y: Tensor, m: Tensor) -> Tensor:
    return F.mse_loss(h[m], h.detach().sin()[m])


def tokens_replaced(o: Model, h: Tensor, y: Tensor, m: Tensor) -> Tensor:
    h = h.clone()
    h[m] = o.token
    h[~m] += o.token.tanh()
    h[m[:, 0]] = o.norm(h[m[:, 0]])
    return o.head(h).pow(2).mean()


def infinite_elsewhere(o: Model, h: Tensor, y: Tensor, m: Tensor) -> Tensor:
    """Rows that are left out have no logarithm, and scores that are all the same have no norm's gradient."""
    hidden = torch.where(m[..., None], h.exp(), torch.zeros_like(h))
    return (hidden[m].log() / o.token.exp()).pow(2).mean() + (h[m] - 0.5).abs().log().mean()


MAIN: dict[str, Loss] = {
    "masked language": masked_language,
    "sparse head": sparse_head,
    "autoencoder": autoencoder,
    "tokens replaced": tokens_replaced,
    "infinite elsewhere": infinite_elsewhere,
}
FORMS: dict[str, Loss] = {
    "mean": lambda o, h, y, m: h[m].pow(2).mean(),
    "mean of samples": lambda o, h, y, m: h.mean(1)[m[:, 0]].pow(2).mean(),
    "mean of columns": lambda o, h, y, m: h[m].mean(0).sum(),
    "divided by their number": lambda o, h, y, m: h[m].abs().sum() / h[m].shape[0] / h[m].numel(),
    "at least one": lambda o, h, y, m: h[m].sum() / max(1, h[m].shape[0]),
    "a mask of activations": lambda o, h, y, m: h[h > 0].log().mean(),
    "masked_select": lambda o, h, y, m: torch.masked_select(h, m[..., None]).exp().mean(),
    "where": lambda o, h, y, m: h[torch.where(m)].pow(2).sum(),
    "places": lambda o, h, y, m: h[m.nonzero()[:, 0], m.nonzero()[:, 1]].pow(2).mean(),
    "nonzero": lambda o, h, y, m: h.view(-1, WIDTH)[m.view(-1).nonzero().squeeze(-1)].pow(2).mean(),
    "weights": lambda o, h, y, m: F.cross_entropy(
        o.head(h)[m], y[m], weight=torch.arange(1.0, CLASSES + 1), label_smoothing=0.1
    ),
    "none, then mean": lambda o, h, y, m: F.cross_entropy(o.head(h)[m], y[m], reduction="none").mean(),
    "chances": lambda o, h, y, m: F.cross_entropy(o.head(h)[m], o.head(h.detach())[m].softmax(-1)),
    "one hot": lambda o, h, y, m: (
        (o.head(h)[m].log_softmax(-1) * F.one_hot(y[m], CLASSES)).sum(-1).neg().mean()
    ),
    "gather": lambda o, h, y, m: -o.head(h)[m].log_softmax(-1).gather(1, y[m].unsqueeze(1)).squeeze(1).mean(),
    "rows of a table": lambda o, h, y, m: (h[m] - o.head.weight[y[m]]).pow(2).sum(-1).mean(),
    "bce": lambda o, h, y, m: F.binary_cross_entropy(h[m].sigmoid(), h.detach()[m].sigmoid()),
    "divergence": lambda o, h, y, m: F.kl_div(
        h[m].log_softmax(-1), h.detach()[m].softmax(-1), reduction="batchmean"
    ),
    "cosine": lambda o, h, y, m: (
        1 - F.cosine_similarity(F.normalize(h[m], dim=-1), h.detach().sin()[m], dim=-1)
    ).mean(),
    "cosine loss": lambda o, h, y, m: nn.CosineEmbeddingLoss()(h[m], h.detach()[m].sin(), y[m].sign()),
    "margin": lambda o, h, y, m: nn.MultiMarginLoss()(o.head(h)[m], y[m]),
    "weighted mse": lambda o, h, y, m: F.mse_loss(h[m], h.detach().sin()[m], weight=weights(y)[m]),
    "weighted l1": lambda o, h, y, m: F.l1_loss(h[m], h.detach().sin()[m], weight=weights(y)[m]),
    "rows of rows": lambda o, h, y, m: h[m][y[m] > 3].pow(2).mean(),
    "masks given back": lambda o, h, y, m: F.cross_entropy(o.head(h)[m.bool()], y[m.bool()]),
    "losses by name": lambda o, h, y, m: F.cross_entropy(target=y[m], input=o.head(h)[m]),
    "losses by place": lambda o, h, y, m: (
        F.mse_loss(h[m], h.detach()[m].sin(), None, None, "sum")
        + F.cross_entropy(o.head(h)[m], y[m], None, None, 0, None, "sum")
    ),
    "types of rows": lambda o, h, y, m: (h[m] * y[m].type_as(h[m]).unsqueeze(1) * y.sum().to(h[m])).mean(),
    "a copy that changes": lambda o, h, y, m: h[m].clone().mul_(2).pow(2).mean(),
    "accuracy": lambda o, h, y, m: h.mean() + (o.head(h)[m].argmax(-1) == y[m]).float().mean(),
    "elements": lambda o, h, y, m: h[m].view(-1).exp().mean() + h[m].flatten(0, 1).view(-1, 1).sum(),
}


def weights(y: Tensor) -> Tensor:
    """One for each element, of inputs alone."""
    return y.unsqueeze(-1).abs() + torch.arange(1.0, WIDTH + 1)


REFUSED: dict[str, tuple[Loss, str]] = {
    "len": (lambda o, h, y, m: h[m].sum() / len(h[m]), "len()"),
    "branch": (lambda o, h, y, m: h[m].sum() if h[m].shape[0] > 0 else h.sum(), "can't be traced"),
    "sort": (lambda o, h, y, m: h[m].sort(0)[0].sum(), "sort over the rows"),
    "softmax": (lambda o, h, y, m: h[m].softmax(0).exp().sum(), "softmax over the rows"),
    "largest": (lambda o, h, y, m: h[m].max(), "max over the rows"),
    "spread": (lambda o, h, y, m: h[m].std(), "std over the rows"),
    "products": (lambda o, h, y, m: (h[m] @ h[m].T).mean(), "T of the rows' dim"),
    "pairs": (lambda o, h, y, m: (h[m][:, None] - h[m][None]).sum(), "an index of the rows' dim"),
    "first": (lambda o, h, y, m: h[m][0].sum(), "an index of the rows' dim"),
    "dropout": (lambda o, h, y, m: F.dropout(h[m], 0.5).sum(), "dropout"),
    "noise": (lambda o, h, y, m: (h[m] * torch.rand_like(h[m])).sum(), "rand_like"),
    "two masks": (lambda o, h, y, m: (h[m] + h[~m]).sum(), "add of rows of two masks"),
    "all rows": (lambda o, h, y, m: (h[m] + h.view(-1, WIDTH)).sum(), "add of a tensor of shape [30, 8]"),
    "join": (lambda o, h, y, m: torch.cat([h[m], h[~m]]).sum(), "cat along the rows"),
    "batch norm": (lambda o, h, y, m: F.batch_norm(h[m], None, None, training=True).sum(), "batch_norm"),
    "loop": (lambda o, h, y, m: sum(row.sum() for row in h[m]), "unbind over the rows"),  # type: ignore[return-value]
    "own function": (lambda o, h, y, m: Tripled.apply(h[m]).sum(), "Tripled"),
    "places in one dim of two": (lambda o, h, y, m: h[torch.where(m)[0]].sum(), "picks across the batch"),
    "places in another order": (lambda o, h, y, m: h[torch.where(m)[::-1]].sum(), "an index of selected"),
    "mask in the middle": (lambda o, h, y, m: h.transpose(0, 1)[:, m[:, 0]].sum(), "a mask among others"),
    "a mask that changed": (lambda o, h, y, m: _changed(h, y), "rows of two masks"),
    "a view that changes": (lambda o, h, y, m: _viewed(o, h, m), "of what has one"),
    "through a view": (lambda o, h, y, m: _through(h[m], lambda rows: rows.view(-1)), "of a view"),
    "through a column": (lambda o, h, y, m: _through(h[m], lambda rows: rows[:, 0]), "of a view"),
    "through the same": (lambda o, h, y, m: _through(h[m], lambda rows: rows.float().detach()), "of a view"),
    "through more dims": (lambda o, h, y, m: _through(h[m], lambda rows: rows.unsqueeze(1)), "of a view"),
    "under its parts": (lambda o, h, y, m: _under(h[m].detach() * 1, h[m]), "of what has one"),
    "flip": (lambda o, h, y, m: (h[m].flip(1, 0) * h.detach()[m]).sum(), "flip over the rows"),
}


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad * 3


def _changed(h: Tensor, y: Tensor) -> Tensor:
    """The same comparison of a tensor that was changed between."""
    y = y.clone()
    first = h[y != IGNORED]
    y[:, 0] = IGNORED
    return F.mse_loss(first, h.detach()[y != IGNORED])


def _viewed(o: Model, h: Tensor, m: Tensor) -> Tensor:
    rows = h[m]
    view = rows[:, 0]
    rows += o.token
    return view.sum()


def _through(rows: Tensor, view: Callable[[Tensor], Tensor]) -> Tensor:
    """In eager the rows change with what looks at their memory."""
    view(rows).mul_(2)
    return rows.pow(2).mean()


def _under(rows: Tensor, others: Tensor) -> Tensor:
    part, _ = rows.chunk(2, -1)
    rows.mul_(2)
    return (part * others[:, : WIDTH // 2]).pow(2).mean()


def batch(seed: int, share: float = 0.4) -> dict[str, Tensor]:
    """One sample has no selected token; labels elsewhere are no classes."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(SAMPLES, TOKENS, generator=generator) < share
    mask[1] = False
    labels = torch.randint(0, CLASSES, (SAMPLES, TOKENS), generator=generator)
    x = torch.randn(SAMPLES, TOKENS, WIDTH, generator=generator)
    return {"x": x, "y": torch.where(mask, labels, IGNORED), "m": mask}


MIXED = Strategy((P((S((0, 1), (0, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (3,))))
WHOLE = P((S((0, 1, 2), (0, 2), shares=(2, 1, 1)),), (3, 2, 1))
STRATEGIES = {
    "one": Strategy((P((S((0,), (0, 2)),), (3, 2, 1)),)),
    "shares": Strategy((WHOLE,)),
    "sequence parallel": Strategy((WHOLE,), sequence_parallel=True),
    "zero": replace(MIXED, zero=3),
    "recompute": Strategy((replace(WHOLE, recompute=(Recompute((0, 2), RecomputeKind.FULL),)),)),
}


@cache
def main(name: str) -> Case:
    return Case.of(lambda: Model(MAIN[name]), batch(0))


QUICK = ("at least one", "nonzero", "weights", "rows of a table", "cosine", "elements")


@pytest.mark.parametrize(
    "name",
    [*MAIN, *(pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FORMS)],
)
def test_exact(name: str) -> None:
    case = main(name) if name in MAIN else Case.of(lambda: Model(FORMS[name]), batch(0))
    case.check(MIXED)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "name",
    [
        "masked language",
        pytest.param("autoencoder", marks=pytest.mark.slow),
        pytest.param("tokens replaced", marks=pytest.mark.slow),
    ],
)
def test_every_strategy(name: str, strategy: str) -> None:
    main(name).check(STRATEGIES[strategy])


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    loss, words = REFUSED[name]
    with pytest.raises(HspmdError) as caught:
        Case.of(lambda: Model(loss), batch(0)).check(MIXED)
    assert words in caught.value.text()
    assert "test_selected_rows.py" in caught.value.text()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), share=st.sampled_from((0.0, 0.1, 0.6, 1.0)))
def test_any_mask(seed: int, share: float) -> None:
    """Nothing selected is eager's NaN, with eager's gradients; labels elsewhere may be anything."""
    case = main("sparse head")
    given_batch = batch(seed, share)
    wide = {k: v.double() if v.is_floating_point() else v for k, v in given_batch.items()}
    model = eager_model(lambda: Model(MAIN["sparse head"]), case.state, True)
    wanted = eager_step(model, wide, True)
    found = simulate(widen_program(program_for(case.graph, MIXED)), case.state, [wide])
    assert found.losses[0] == pytest.approx(wanted.loss, rel=EXACT, nan_ok=True)
    check_equal(differences(found.grads[0], wanted.grads, gradient_floor(wanted.grads)), EXACT, "gradients")


def test_labels_left_out_may_be_anything() -> None:
    garbage = batch(0)
    garbage["y"] = torch.where(garbage["m"], garbage["y"], GARBAGE)
    Case.of(lambda: Model(lambda o, h, y, m: F.cross_entropy(o.head(h)[m], y[m])), garbage).check(MIXED)
