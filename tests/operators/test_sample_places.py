"""Which samples or tokens a rank has: attention's masks ask, and joins of samples with other rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler import comm
from hspmd_compiler.strategy.strategy import Override, PipelineSpec, StageSpec, Strategy

from ..training.equal_to_eager import Case

F = nn.functional
SAMPLES, TOKENS, WIDTH, CLASSES = 6, 3, 4, 5


class AcrossSamples(nn.Module):
    """Each sample looks at those before it in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        query, key, value = self.inner(x).permute(1, 0, 2).unsqueeze(1).chunk(3, dim=-1)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return F.cross_entropy(self.head(seen.squeeze(1).transpose(0, 1)).flatten(0, 1), y.flatten())


class Masked(AcrossSamples):
    """A mask of two dims, which all heads and samples have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.rand(TOKENS, TOKENS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        parts = self.inner(comm(x, "[0,1] <S1(1,2)>")).unsqueeze(1).chunk(3, dim=-1)
        seen = F.scaled_dot_product_attention(*parts, attn_mask=self.mask)
        return F.cross_entropy(self.head(seen.squeeze(1)).flatten(0, 1), y.flatten())


class Beside(nn.Module):
    """Samples that ranks share, joined with as many rows of a parameter that ranks split."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.rows = nn.Parameter(torch.randn(SAMPLES, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        inner = self.up(comm(x, "[0,1] <S0(3,1)>"))
        joined = torch.tanh(torch.cat(self.parts(inner)))
        return F.cross_entropy(self.down(joined[SAMPLES:] + joined[:SAMPLES]), y)

    def parts(self, inner: Tensor) -> list[Tensor]:
        return [inner, self.rows]


class Behind(Beside):
    """The parameter's rows come first."""

    def parts(self, inner: Tensor) -> list[Tensor]:
        return [self.rows, inner]


def strategy(ranks: int, *overrides: Override) -> Strategy:
    """Micro-batches of two sizes."""
    stage = StageSpec(tuple(range(ranks)), (0, 1))
    return Strategy((PipelineSpec((stage,), (4, 2)),), overrides=(Override("*", duplicate=True), *overrides))


def sequences() -> dict[str, Tensor]:
    """Samples of several tokens."""
    return {"x": torch.randn(SAMPLES, TOKENS, WIDTH), "y": torch.randint(CLASSES, (SAMPLES, TOKENS))}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_causal_mask_over_samples_knows_which_a_micro_batch_has(ranks: int) -> None:
    Case.of(AcrossSamples, sequences()).check(strategy(ranks))


def test_a_mask_may_have_two_dims() -> None:
    Case.of(Masked, sequences()).check(strategy(2))


@pytest.mark.parametrize("build", [Beside, Behind])
def test_shared_samples_are_joined_with_a_split_parameter(build: type[nn.Module]) -> None:
    batch = {"x": torch.randn(SAMPLES, WIDTH), "y": torch.randint(CLASSES, (SAMPLES,))}
    Case.of(build, batch).check(strategy(2, Override("rows", split=0, shares=(1, 5))))
