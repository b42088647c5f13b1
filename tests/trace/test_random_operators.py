"""Whatever eager draws at random is drawn by position or refused: nothing is traced as if it drew nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hspmd_compiler.errors import TraceError
from hspmd_compiler.ir.own_names import RANDOM_MASK
from hspmd_compiler.trace.tracer import trace

from ..quick import quick_are

SAMPLES, WIDTH = 4, 8
Draw = Callable[[Tensor], Tensor]


class Drawing(nn.Module):
    """Values of [samples, 8] that something random is done to; `part` may be a module of torch."""

    def __init__(self, draw: Draw | None, part: nn.Module | None = None) -> None:
        super().__init__()
        self.out, self.draw = nn.Linear(WIDTH, WIDTH), draw
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        value = self.out(x)
        made = self.draw(value) if self.part is None or self.draw is not None else self.part(value)
        return made.square().mean()


def images(x: Tensor) -> Tensor:
    return x.view(SAMPLES, 2, 2, 2)


def tokens(x: Tensor) -> Tensor:
    return x.view(SAMPLES, 2, 4)


def chances(x: Tensor) -> Tensor:
    return x.detach().sigmoid()


MASKED: dict[str, Draw] = {
    "dropout": lambda x: functional.dropout(x, 0.5),
    "dropout_": lambda x: torch.dropout_(x.clone(), 0.5, True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "dropout1d": lambda x: functional.dropout1d(tokens(x), 0.5),
    "dropout2d": lambda x: functional.dropout2d(images(x), 0.5),
    "dropout3d": lambda x: functional.dropout3d(images(x).unsqueeze(-1), 0.5),
    "feature_dropout": lambda x: torch.feature_dropout(images(x), 0.5, True),
    "alpha_dropout": lambda x: functional.alpha_dropout(x, 0.5, training=True),
    "feature_alpha_dropout": lambda x: functional.feature_alpha_dropout(images(x), 0.5, training=True),
    "attention": lambda x: functional.scaled_dot_product_attention(
        tokens(x), tokens(x), tokens(x), dropout_p=0.5
    ),
    "causal attention": lambda x: functional.scaled_dot_product_attention(
        tokens(x), tokens(x), tokens(x), dropout_p=0.5, is_causal=True
    ),
    "bernoulli_": lambda x: x * torch.empty_like(x).bernoulli_(0.5),
    "bernoulli(p)": lambda x: x * torch.bernoulli(torch.empty_like(x), 0.5),
}
"""Those that draw by position."""


def attention(x: Tensor, part: nn.Module) -> Tensor:
    made: Tensor = part(tokens(x), tokens(x), tokens(x), need_weights=False)[0]
    return made


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Draw], int]] = {
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True),
        lambda part: lambda x: attention(x, part),
        1,
    ),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 4, dropout=0.5, batch_first=True),
        lambda part: lambda x: part(tokens(x)),
        4,
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(4, 2, 4, dropout=0.5, batch_first=True),
        lambda part: lambda x: part(tokens(x), tokens(x)),
        6,
    ),
    "LSTM": (lambda: nn.LSTM(4, 4, 3, dropout=0.5), lambda part: lambda x: part(tokens(x))[0], 2),
    "GRU": (lambda: nn.GRU(4, 4, 3, dropout=0.5), lambda part: lambda x: part(tokens(x))[0], 2),
    "RNN": (
        lambda: nn.RNN(4, 4, 2, dropout=0.5, nonlinearity="relu"),
        lambda part: lambda x: part(tokens(x))[0],
        1,
    ),
}
"""Modules of torch: how one is called, and how many masks it draws."""

ELSEWHERE: dict[str, Draw] = {
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "rrelu_": lambda x: torch.rrelu_(x.clone(), training=True),
    "fractional_max_pool2d": lambda x: functional.fractional_max_pool2d(images(x), 1, output_size=1),
    "fractional_max_pool3d": lambda x: functional.fractional_max_pool3d(
        images(x).unsqueeze(1), 1, output_size=1
    ),
    "bernoulli of chances": lambda x: x * torch.bernoulli(chances(x)),
    "bernoulli_ of chances": lambda x: x * torch.empty_like(x).bernoulli_(chances(x)),
    "multinomial": lambda x: x * torch.multinomial(chances(x), 1),
    "randperm": lambda x: x[:, torch.randperm(WIDTH)],
    "randint": lambda x: x * torch.randint(0, 5, (WIDTH,)),
    "randint_like": lambda x: x * torch.randint_like(x.detach(), 5),
    "normal": lambda x: x * torch.normal(torch.zeros(WIDTH), torch.ones(WIDTH)),
    "normal_": lambda x: x + torch.empty_like(x).normal_(),
    "nn.init": lambda x: x + nn.init.xavier_uniform_(torch.empty(SAMPLES, WIDTH)),
    "exponential_": lambda x: x + torch.empty_like(x).exponential_(),
    "geometric_": lambda x: x + torch.empty_like(x).geometric_(0.5),
    "cauchy_": lambda x: x + torch.empty_like(x).cauchy_(),
    "log_normal_": lambda x: x + torch.empty_like(x).log_normal_(),
    "random_": lambda x: x + torch.empty_like(x).random_(5),
    "poisson": lambda x: x * torch.poisson(chances(x)),
    "binomial": lambda x: x * torch.binomial(torch.ones(SAMPLES, WIDTH), chances(x)),
    "gamma": lambda x: x * torch._standard_gamma(chances(x)),
    "dirichlet": lambda x: x * torch._sample_dirichlet(chances(x)),
    "own generator": lambda x: x * torch.empty_like(x).bernoulli_(0.5, generator=torch.Generator()),
    "distributions": lambda x: x * torch.distributions.Laplace(x, 1.0, validate_args=False).rsample(),
    "spectral init": lambda x: x * functional.normalize(x.new_empty(WIDTH).normal_(0, 1), dim=0),
}
"""Those that are refused by name, unless they come to be drawn by position."""
BY_POSITION: dict[str, Draw] = {
    "rand": lambda x: x * torch.rand(WIDTH),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x + torch.randn(WIDTH),
    "randn_like": lambda x: x + torch.randn_like(x),
    "uniform_": lambda x: x + torch.empty_like(x).uniform_(),
    "gumbel": lambda x: functional.gumbel_softmax(x, hard=True),
}
"""Numbers in place of masks: drawn by position, or refused."""


def drawn(model: nn.Module) -> int:
    """How many random operators there are in the graph."""
    graph = trace(model, {"x": torch.randn(SAMPLES, WIDTH)}, batch=SAMPLES)
    return [row.op.startswith("hspmd.random") for row in graph.rows].count(True)


@pytest.mark.parametrize("name", MASKED)
def test_masks_are_drawn_by_position(name: str) -> None:
    assert drawn(Drawing(MASKED[name])) == 1


@pytest.mark.parametrize("name", quick_are(MODULES, ("TransformerDecoderLayer", "LSTM")))
def test_modules_draw_all_their_masks(name: str) -> None:
    build, call, count = MODULES[name]
    part = build()
    assert RANDOM_MASK.startswith("hspmd.random")
    assert drawn(Drawing(call(part), part)) == count


@pytest.mark.parametrize("name", [*ELSEWHERE, *BY_POSITION])
def test_other_numbers_are_refused_or_drawn_by_position(name: str) -> None:
    draw = {**ELSEWHERE, **BY_POSITION}[name]
    try:
        assert drawn(Drawing(draw)) == 1
    except TraceError as refused:
        assert "random" in str(refused) and "input of the batch" in str(refused)


def test_every_operator_of_torch_with_random_numbers_says_so() -> None:
    """What refuses them is a tag of PyTorch's: no operator with a generator may be without."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    untagged = []
    for name in names:
        base, _, overload = name.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, base, None)
        operator = getattr(packet, overload or "default", None)
        draws = operator is not None and any(a.name == "generator" for a in operator._schema.arguments)
        if draws and torch.Tag.nondeterministic_seeded not in operator.tags:
            untagged.append(name)
    assert untagged == []
