"""Pipelines that share sequences compute what one device does: losses, gradients, parameters, in float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hspmd_compiler as hspmd
from hspmd_compiler.base.context import ContextForm
from hspmd_compiler.errors import HspmdError, StrategyError, VerifyError
from hspmd_compiler.passes.context import attend
from hspmd_compiler.program.program import Program
from hspmd_compiler.strategy.context_spec import ContextChoice, ContextSpec
from hspmd_compiler.strategy.strategy import Strategy

from .context_cases import CASES, FORMS, GPT2, LLAMA, PAIR, QUICK, TOKENS, TWO

WIDTH = 8
EVERY = CASES | FORMS


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EVERY]
)
def test_members_train_like_one_device(name: str) -> None:
    program = hspmd.compile(LLAMA.build, strategy=EVERY[name])
    assert program.verify(values=True).values is not None
    assert any(own.piece is not None for own in program.artifact.program.ranks)


def test_learned_positions_are_those_of_the_sample() -> None:
    """The table of positions has a row for each token of a sample, of which a member reads its own."""
    hspmd.compile(GPT2.build, strategy=CASES["balanced, tokens split"]).verify(values=True)


def test_a_wrong_token_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a member runs is compared: with the first tokens for all, numbers differ."""
    from hspmd_compiler.program.context.row_piece import RowPiece

    program = hspmd.compile(LLAMA.build, strategy=CASES["one device beside"])
    whole = RowPiece.of
    monkeypatch.setattr(
        RowPiece, "of", lambda self, *given: whole(replace(self, runs=((0, self.tokens),)), *given)
    )
    with pytest.raises(VerifyError, match="loss of step 1"):
        program.verify(values=True)


def test_padding_bears_no_label(expect: Callable[[str, str], None]) -> None:
    program = hspmd.compile(LLAMA.build, strategy=CASES["padding"])
    samples = CASES["padding"].global_batch
    tokens = torch.randint(0, 32, (samples, TOKENS), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": tokens, "labels": tokens.clone()}
    with pytest.raises(VerifyError) as caught:
        program.verify(values=True, batch=batch)
    expect("context/padding_counts", str(caught.value))
    for rows, padding in (((0, 3), 5), ((3, 6), 2)):
        batch["labels"][rows[0] : rows[1], TOKENS - padding :] = -100
    program.verify(values=True, batch=batch)


@pytest.mark.parametrize(
    "name",
    [name if name == "ring, balanced" else pytest.param(name, marks=pytest.mark.slow) for name in FORMS],
)
def test_documents_are_those_of_the_whole_sample(name: str) -> None:
    """Packed samples whose documents members share, wherever they are cut."""
    hspmd.compile(replace(LLAMA, packed=1).build, strategy=FORMS[name]).verify(values=True)


def test_rows_of_pieces_are_not_compared() -> None:
    with pytest.raises(VerifyError, match="not compared"):
        hspmd.compile(LLAMA.build, strategy=CASES["one device beside"]).verify(rows=True)


class Mixing(nn.Module):
    """A model of tokens in which `how` is between the embedding and the classes."""

    def __init__(self, how: Callable[[Tensor], Tensor], loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(32, WIDTH)
        self.head = nn.Linear(WIDTH, 32)
        self.how, self.loss = how, loss

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.head(self.how(self.table(ids))), labels)


def picked(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def per_sample(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels[:, 0])


def squared(scores: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(scores[..., 0], labels.float())


MEETS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "sum before": (lambda x: x.cumsum(1), picked),
    "next token": (lambda x: x + x.roll(1, 1), picked),
    "first token": (lambda x: x + x[:, :1], picked),
    "flipped": (lambda x: x.flip(1), picked),
    "pooled": (lambda x: x.sum(1), per_sample),
    "mean of all": (lambda x: x, squared),
    "softmax over tokens": (lambda x: x.softmax(1), picked),
    "looks at length": (lambda x: x * 2 if x.shape[1] > 16 else x, picked),
    "half of the length": (lambda x: x * (x.shape[1] // 2), picked),
    "dropout": (lambda x: F.dropout(x, 0.5), picked),
}


@pytest.mark.parametrize("name", MEETS)
def test_tokens_that_meet_elsewhere_are_refused(name: str, expect: Callable[[str, str], None]) -> None:
    inputs = {key: torch.zeros((2, TOKENS), dtype=torch.int64) for key in ("ids", "labels")}
    strategy = Strategy(tuple(replace(one, stages=(replace(one.stages[0], layers=(0, 1)),)) for one in TWO))
    model = Mixing(*MEETS[name])
    hspmd.compile(model, inputs, strategy=strategy)
    with pytest.raises(HspmdError) as caught:
        hspmd.compile(model, inputs, strategy=replace(strategy, context=(PAIR,)))
    told = re.sub(r"\.py:\d+", ".py", str(caught.value))
    expect(f"context/meets_{name.replace(' ', '_')}", told)


def test_tokens_that_stay_apart_are_not() -> None:
    inputs = {key: torch.zeros((2, TOKENS), dtype=torch.int64) for key in ("ids", "labels")}
    strategy = Strategy(tuple(replace(one, stages=(replace(one.stages[0], layers=(0, 1)),)) for one in TWO))
    model = Mixing(lambda x: x.relu() + x.mean(-1, keepdim=True), picked)
    program = hspmd.compile(model, inputs, strategy=replace(strategy, context=(PAIR,)))
    program.verify(values=True)


@pytest.mark.parametrize("spec", [ContextSpec((0, 1), (13, 8)), ContextSpec((0, 1), padding=19)])
def test_lengths_are_those_of_the_sequence(spec: ContextSpec, expect: Callable[[str, str], None]) -> None:
    with pytest.raises(StrategyError) as caught:
        hspmd.compile(LLAMA.build, strategy=Strategy(TWO, context=(spec,)))
    expect(f"context/lengths_{spec.padding}", str(caught.value))


def test_samples_without_tokens_are_refused() -> None:
    with pytest.raises(StrategyError, match="have no tokens to share out"):
        hspmd.compile("mlp", strategy=Strategy(TWO, context=(PAIR,)))


CLUSTER = {
    "version": 1,
    "nodes": [
        {
            "address": "node",
            "devices": [{"count": 4, "kind": "cuda A100-SXM4-80GB"}],
            "link": {"kind": "nvlink", "bandwidth": "300GB/s", "latency": "2us"},
        }
    ],
}


def test_without_a_form_the_cheapest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the links of a cluster, where one is given; else keys and values are gathered."""
    strategy = CASES["one device beside"]

    def named(form: ContextChoice, cluster: dict[str, object] | None = None) -> Program:
        of_form = replace(strategy, context=(replace(PAIR, form=form),))
        return hspmd.compile(LLAMA.build, strategy=of_form, cluster=cluster).artifact.program

    assert named(ContextChoice.AUTO) == named(ContextChoice.GATHER)
    every = [named(form, CLUSTER) for form in ContextChoice]
    assert every.count(every[0]) == 2
    for form, program in zip(list(ContextChoice)[1:], every[1:], strict=True):
        wanted = ContextForm(form.value)
        monkeypatch.setattr(attend, "cheapest_form", lambda prices, wanted=wanted: wanted)
        assert named(ContextChoice.AUTO, CLUSTER) == program
