"""Models that draw random numbers train exactly like eager with the same numbers, however they are split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hspmd_compiler as hspmd
from hspmd_compiler.errors import HspmdError
from hspmd_compiler.ir.own_names import RANDOM_MASK, RANDOM_NUMBERS
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import Recompute, RecomputeKind, Strategy
from hspmd_compiler.strategy.strategy import StageSpec as S

from ..training.equal_to_eager import Case

SAMPLES, TOKENS, WIDTH = 6, 5, 8
Noise = Callable[[Tensor], Tensor]
SGD = OptimizerConfig(name=OptimizerName.SGD, lr=0.1)


class Layer(nn.Module):
    """Its result [samples, tokens, width] meets random numbers."""

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        self.linear, self.noise = nn.Linear(WIDTH, WIDTH), noise

    def forward(self, x: Tensor) -> Tensor:
        return self.noise(self.linear(x).tanh())


class Noisy(nn.Module):
    def __init__(self, noise: Noise) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(noise) for _ in range(2))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        loss: Tensor = self.head(x).pow(2).mean()
        return loss


def drop_path(h: Tensor) -> Tensor:
    """As vision transformers drop a whole sample's path."""
    kept = 0.7 + torch.rand((h.shape[0], 1, 1), dtype=h.dtype)
    return h / 0.7 * kept.floor()


def diffusion(h: Tensor) -> Tensor:
    """A time for each sample, and noise for each element."""
    times = torch.randint(0, 10, (h.shape[0],))
    kept = torch.linspace(0.9, 0.1, 10)[times].view(-1, 1, 1)
    return kept.sqrt() * h + (1 - kept).sqrt() * torch.randn_like(h)


def visible_tokens(h: Tensor) -> Tensor:
    """As masked autoencoders choose tokens: by the order of random numbers."""
    chosen = torch.rand(h.shape[0], h.shape[1]).argsort(1)[:, :2]
    return h + h.gather(1, chosen.unsqueeze(-1).expand(-1, -1, WIDTH)).mean(1, keepdim=True)


def unread(h: Tensor) -> Tensor:
    """Eager draws for what nobody reads, and masks count among the others."""
    torch.rand(3)
    return F.dropout(h, 0.2) + torch.randn_like(h) + F.dropout(h, 0.3)


def autoencoded(h: Tensor) -> Tensor:
    """A sample of a normal distribution, as variational autoencoders take it."""
    return h + (0.5 * h).exp() * torch.randn_like(h)


MAIN: dict[str, Noise] = {
    "drop path": drop_path,
    "diffusion": diffusion,
    "autoencoder": autoencoded,
    "gumbel": lambda h: h + F.gumbel_softmax(h, 0.5),
    "unread": unread,
}
FORMS: dict[str, Noise] = {
    "visible tokens": visible_tokens,
    "hard gumbel": lambda h: h + F.gumbel_softmax(h, 0.5, hard=True),
    "without samples": lambda h: h * torch.rand(WIDTH) + torch.randn(TOKENS, 1),
    "rand_like": lambda h: torch.where(torch.rand_like(h) < 0.5, h, 0.0),
    "kept paths": lambda h: h * h.new_empty((h.shape[0], 1, 1)).bernoulli_(0.7) / 0.7,
    "normal of means": lambda h: torch.normal(h, 0.1) + h,
    "normal of spreads": lambda h: h + torch.normal(0.5, h.detach().abs()),
    "normal of both": lambda h: h + torch.normal(torch.zeros_like(h), h.detach().abs()),
    "normal of a size": lambda h: h + torch.normal(0.0, 0.1, (h.shape[0], TOKENS, WIDTH)),
    "normal in place": lambda h: h + torch.empty_like(h).normal_(0.5, 0.1),
    "uniform in place": lambda h: h + torch.empty_like(h).uniform_(-0.1, 0.1),
    "chances": lambda h: h * torch.bernoulli(h.sigmoid().detach()),
    "chances in place": lambda h: h * torch.empty_like(h).bernoulli_(h.sigmoid().detach()),
    "randint": lambda h: h * torch.randint(1, 5, (h.shape[0], 1, 1)) * torch.randint_like(h.detach(), 1, 3),
    "rrelu": lambda h: F.rrelu(h, training=True),
    "exponential": lambda h: h * torch.empty_like(h).exponential_(2.0),
    "cauchy": lambda h: h + torch.empty_like(h).cauchy_(0, 0.1).tanh(),
    "geometric": lambda h: h * torch.empty_like(h).geometric_(0.5),
    "log normal": lambda h: h * torch.empty_like(h).log_normal_(0, 0.1),
    "distribution": lambda h: torch.distributions.Normal(h, 1.0, validate_args=False).rsample(),
    "mean of the batch": lambda h: h * torch.randn_like(h).mean(),
}
REFUSED: dict[str, tuple[Noise, str]] = {
    "permutation": (lambda h: h[:, torch.randperm(TOKENS)], "can't be drawn by position"),
    "multinomial": (
        lambda h: h * torch.multinomial(h.flatten(0, 1).softmax(-1), 1).view(SAMPLES, TOKENS, 1),
        "can't be drawn by position",
    ),
    "generator": (lambda h: h * torch.rand(WIDTH, generator=torch.Generator()), "torch.Generator of its own"),
    "number": (lambda h: h if torch.rand(()) < 0.5 else h * 2, "remove branches"),
    "other samples": (lambda h: h + h[torch.randint(0, SAMPLES, (SAMPLES,))], "picks across the batch"),
}
MIXED = Strategy((P((S((0, 1), (0, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (3,))))
WHOLE = P((S((0, 1, 2), (0, 2), shares=(2, 1, 1)),), (3, 2, 1))
STRATEGIES = {
    "one": Strategy((P((S((0,), (0, 2)),), (3, 2, 1)),)),
    "shares": Strategy((WHOLE,)),
    "sequence parallel": Strategy((WHOLE,), sequence_parallel=True),
    "zero": replace(MIXED, zero=3),
    "recompute": Strategy((replace(WHOLE, recompute=(Recompute((0, 2), RecomputeKind.FULL),)),)),
}


def batch() -> dict[str, Tensor]:
    return {"x": torch.randn(SAMPLES, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))}


@cache
def main(name: str) -> Case:
    return Case.of(lambda: Noisy(MAIN[name]), batch())


QUICK = ("visible tokens", "without samples", "normal of both", "randint", "rrelu", "mean of the batch")


@pytest.mark.parametrize(
    "name",
    [*MAIN, *(pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FORMS)],
)
def test_exact(name: str) -> None:
    case = main(name) if name in MAIN else Case.of(lambda: Noisy(FORMS[name]), batch())
    case.check(MIXED)
    drawn = [row.args[1] for row in case.graph.rows if row.op in (RANDOM_MASK, RANDOM_NUMBERS)]
    assert len(drawn) == len(set(drawn)) > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", [pytest.param("drop path", marks=pytest.mark.slow), "diffusion"])
def test_every_strategy(name: str, strategy: str) -> None:
    main(name).check(STRATEGIES[strategy])


def test_what_is_computed_again_draws_the_same() -> None:
    """Backward draws the noise of recomputed layers anew: nothing of it is kept."""
    program = main("autoencoder").check(STRATEGIES["recompute"])
    forward, backward = program.classes["c0"].segments[:2]
    drawn = [[row.op for row in part.rows].count("hspmd.random_numbers") for part in (forward, backward)]
    assert drawn == [2, 2]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    noise, words = REFUSED[name]
    with pytest.raises(HspmdError) as caught:
        Case.of(lambda: Noisy(noise), batch()).check(MIXED)
    assert words in caught.value.text()
    assert "test_random_numbers.py" in caught.value.text()


def made() -> tuple[nn.Module, dict[str, Tensor]]:
    return Noisy(MAIN["diffusion"]), {"x": torch.zeros(2, TOKENS, WIDTH)}


def test_an_artifact_is_verified() -> None:
    """Five steps beside eager, each with numbers of its own, and every value beside the single device."""
    report = hspmd.compile(made, strategy=MIXED, optimizer=SGD).verify(values=True, rows=True)
    assert report.values is not None and len(report.values.steps) == 5
    assert report.rows is not None and RANDOM_NUMBERS not in report.rows.left_out
