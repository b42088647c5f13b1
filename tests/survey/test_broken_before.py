"""Models and strategies that once gave a wrong program, or an alarm about a right one; as small as can be."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from hspmd_compiler.program.check import check
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy

from ..training.equal_to_eager import Case

WIDTH, SAMPLES = 6, 4
Layer = Callable[[], nn.Module]


class Chain(nn.Module):
    """Layers one after another, and a loss that may look at the model."""

    def __init__(self, layers: int, layer: Layer, loss: Callable[[Chain, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(layers))
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.loss(self, x, y)


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def mse(_: Chain, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(x, y)


def batch(samples: int = SAMPLES) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(samples, WIDTH, generator=generator), torch.rand(samples, WIDTH, generator=generator)
    return {"x": x, "y": y}


def test_stages_that_tell_micro_batches_apart_differently() -> None:
    """Weight decay in the loss is added in one micro-batch, by the last stage only: transfers still match."""

    def penalised(model: Chain, x: Tensor, y: Tensor) -> Tensor:
        return mse(model, x, y) + sum(p.pow(2).sum() for p in model.parameters())

    strategy = Strategy((P((S((0,), (0, 1)), S((1,), (1, 2))), (2, 2)),))
    Case.of(lambda: Chain(2, linear, penalised), batch()).check(strategy)


def test_optional_weights_of_a_loss_left_out() -> None:
    """A trace leaves out trailing defaults; the reduction must not land in the place of a weight."""

    def bce(_: Chain, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(x, y)

    def bce_of_probabilities(_: Chain, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy(x.sigmoid(), y)

    strategy = Strategy((P((S((0, 1), (0, 2)),), (3, 1)),))
    for loss in (bce, bce_of_probabilities):
        Case.of(lambda loss=loss: Chain(2, linear, loss), batch()).check(strategy)  # type: ignore[misc]


def test_gradient_made_in_a_stage_that_does_not_use_the_parameter() -> None:
    """A layer used again in a later stage draws the backward before it to its own stage."""

    class Again(Chain):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            for layer in (*self.layers, self.layers[0]):
                x = layer(x)
            return self.loss(self, x, y)

    strategy = Strategy((P((S((0, 1), (0, 1)), S((2,), (1, 2))), (4,)),))
    check(Case.of(lambda: Again(2, linear, mse), batch()).check(strategy))


def test_norm_with_the_eps_of_its_type() -> None:
    """RMSNorm without eps takes that of float32 in the trace; in double the reference takes the same."""
    strategy = Strategy((P((S((0, 1), (0, 2)),), (4,)),))
    case = Case.of(lambda: Chain(2, lambda: nn.Sequential(nn.RMSNorm(WIDTH), linear()), mse), batch())
    case.check(strategy)


def test_weights_computed_from_parameters() -> None:
    """The gradient of tanh(w) is a sum over the batch until the step's end; a derivative is linear in it."""

    class Bounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            weight = (
                self.weight.tanh() * self.weight.softmax(0) / self.weight.pow(2).sum(1, keepdim=True).sqrt()
            )
            return nn.functional.linear(x, weight, self.bias)

    strategy = Strategy((P((S((0, 1), (0, 2)),), (2, 1)), P((S((2,), (0, 2)),), (1,))))
    Case.of(lambda: Chain(2, lambda: Bounded(WIDTH, WIDTH), mse), batch()).check(strategy)


def test_divergence_of_distributions() -> None:
    """KL divergence over a batch that is split; its xlogy had no rule."""

    def divergence(_: Chain, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")

    strategy = Strategy((P((S((0, 1), (0, 2)),), (3, 1)),))
    Case.of(lambda: Chain(2, linear, divergence), batch()).check(strategy)


def test_one_device_counts_alone() -> None:
    """Several micro-batches on a single device: the count of all of them needs no group to reduce it."""

    def ignoring(_: Chain, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(x, torch.where(y[:, 0] < 0.5, -100, 1))

    strategy = Strategy((P((S((0,), (0, 2)),), (1, 2, 1)),))
    check(Case.of(lambda: Chain(2, linear, ignoring), batch()).check(strategy))


def test_fractions_of_whole_numbers() -> None:
    """Positions divided by a number are float32 in the trace; in double both sides divide in double."""

    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x * (torch.arange(WIDTH) / 7.0).cos())

    strategy = Strategy((P((S((0, 1), (0, 2)),), (3, 1)),))
    Case.of(lambda: Chain(2, Placed, mse), batch()).check(strategy)


def test_tensors_made_from_numbers() -> None:
    """They round the numbers to the model's type, in a proof in double precision too."""

    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            scale = torch.sqrt(torch.tensor(3, dtype=torch.float) * torch.tensor(0.1))
            return torch.Tensor.tanh(super().forward(x) / scale)

    strategy = Strategy((P((S((0, 1), (0, 2)),), (3, 1)),))
    Case.of(lambda: Chain(2, lambda: Scaled(WIDTH, WIDTH), mse), batch()).check(strategy)


def test_a_layer_norm_of_a_parameter() -> None:
    """Its gradient stays a sum over all samples until the step ends."""

    class Normed(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.norm(self.weight), self.bias).tanh()

    for sequence_parallel in (False, True):
        strategy = Strategy(
            (P((S((0, 1), (0, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (1,))),
            sequence_parallel=sequence_parallel,
        )
        Case.of(lambda: Chain(2, Normed, mse), batch()).check(strategy)


class PenalisedNorms(nn.Module):
    """A language model whose loss also has the squares of its norm weights."""

    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(
            hidden_size=24,
            intermediate_size=20,
            num_hidden_layers=1,
            num_attention_heads=3,
            num_key_value_heads=3,
            vocab_size=30,
            use_cache=False,
        )
        self.model = LlamaForCausalLM(config)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.model(input_ids=input_ids, labels=labels).loss
        return loss + sum(p.square().sum() for p in self.parameters() if p.dim() == 1)


def test_a_pending_gradient_and_a_whole_one_of_one_parameter() -> None:
    """A norm's gradient pends over the ranks under sequence parallelism; its penalty's counts once."""
    ids = torch.randint(0, 30, (3, 6), generator=torch.Generator().manual_seed(0))
    strategy = Strategy((P((S((0, 1), (0, 1)),), (2, 1)),), sequence_parallel=True)
    Case.of(PenalisedNorms, {"input_ids": ids, "labels": ids}).check(strategy)


def test_a_parameter_without_elements() -> None:
    """Its gradient has no element to reduce: that no rank sums it is no misfit."""

    class WithNothing(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.nothing = nn.Parameter(torch.zeros(0))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sin() + self.nothing.sum()

    strategy = Strategy(
        (P((S((0, 1), (0, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (1,))), zero=3
    )
    check(Case.of(lambda: Chain(2, WithNothing, mse), batch()).check(strategy))


def test_an_empty_vector_beside_what_is_joined() -> None:
    """torch takes one beside parts of any shape, as a cache of keys begins: it had no dim to be joined in."""
    config = GPT2Config(n_embd=12, n_layer=2, n_head=3, vocab_size=30, n_positions=8, use_cache=True)
    ids = torch.arange(16).view(4, 4)
    case = Case.of(lambda: GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids})
    case.check(Strategy((P((S((0, 1), (0, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (1,)))))


EVERYWHERE = Strategy((P((S((0, 1), (0, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (1,))))
TOKENS, HEADS = 5, 2


def tokens() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {key: torch.randn(SAMPLES, TOKENS, 8, generator=generator) for key in "xy"}


class Attention(nn.Module):
    """Query, key and value of one projection, and what is made of them."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.attend = attend
        angles = torch.arange(TOKENS)[:, None] * torch.tensor([1.0, 0.1])
        self.register_buffer("turns", torch.polar(torch.ones(TOKENS, 2), angles), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, HEADS, 4)).unbind(2)
        return x + self.out(self.attend(self.turns, q, k, v).flatten(2))


def test_fewer_key_heads_in_attention() -> None:
    """Compiling never ended: a dim of one size was converted to one of another, piece by piece of size 1."""

    def grouped(_: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k[:, :, :1], v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return attended.transpose(1, 2)

    program = Case.of(lambda: Chain(2, lambda: Attention(grouped), mse), tokens()).check(EVERYWHERE)
    assert any(row.op == "hspmd.attention" for row in program.classes["c0"].segments[0].rows)


def test_rotary_embedding_by_complex_numbers() -> None:
    """Pairs must lie side by side to be complex numbers; a copy that the trace made for it is none here."""

    def turned(turns: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = (
            torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns[None, :, None])
            for x in (q, k)
        )
        q, k, v = (x.reshape(*x.shape[:3], -1).transpose(1, 2) for x in (q, k, v))
        return ((q @ k.transpose(2, 3)).softmax(-1) @ v).transpose(1, 2)

    Case.of(lambda: Chain(2, lambda: Attention(turned), mse), tokens()).check(EVERYWHERE)


def test_attention_over_what_a_convolution_gives() -> None:
    """Rows with gaps in memory: PyTorch's kernel on CPUs computed something else from them, silently."""

    class Convolutional(nn.Conv1d):
        def __init__(self) -> None:
            super().__init__(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            made = super().forward(x.transpose(1, 2)).unflatten(1, (HEADS, 4))
            heads = made.transpose(2, 3).contiguous()
            attended = nn.functional.scaled_dot_product_attention(heads, heads, heads)
            return x + attended.transpose(1, 2).flatten(2)

    Case.of(lambda: Chain(2, Convolutional, mse), tokens()).check(EVERYWHERE)
