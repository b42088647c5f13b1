"""torch's own encoders and decoders with masks: whether one is causal is torch's own look at a constant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.rules.lines.attention_lines import FLASH
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.equality import differences, without_numbers

from ..quick import quick_are
from ..training.equal_to_eager import Case

WIDTH, TOKENS, SAMPLES = 8, 4, 4
Use = Callable[["Translating", Tensor, Tensor], Tensor]


class Translating(nn.Module):
    """`nn.Transformer` called in one of many ways."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.both = nn.Transformer(WIDTH, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.use = use
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.use(self, x, y), y)


def causal() -> Tensor:
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)


USES: dict[str, Use] = {
    "made in forward": lambda m, x, y: m.both(
        x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(TOKENS)
    ),
    "told to be causal": lambda m, x, y: m.both(x, y, tgt_mask=causal(), tgt_is_causal=True),
    "booleans": lambda m, x, y: m.both(x, y, src_mask=causal(), tgt_mask=causal()),
    "a band": lambda m, x, y: m.both(x, y, src_mask=torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(2)),
    "padding": lambda m, x, y: m.both(x, y, src_key_padding_mask=torch.arange(TOKENS) > 2 + 0 * x.sum(-1)),
}


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(SAMPLES, TOKENS, WIDTH, generator=generator) for name in ("x", "y")}


@pytest.mark.parametrize("name", quick_are(USES, ("made in forward", "a band")))
def test_masks_are_eagers(name: str) -> None:
    case = Case.of(lambda: Translating(USES[name]), batch())
    case.check(Strategy((P((S((0, 1), (0, 2)),), (2, 1)), P((S((2,), (0, 2)),), (1,)))))


def test_a_mask_in_a_buffer_is_read_as_it_is() -> None:
    model = Translating(lambda m, x, y: m.both(x, y, src_mask=m.mask, tgt_mask=m.mask))
    graph = trace(model, batch(), batch=SAMPLES)
    assert sum(row.op == FLASH and "attn_mask" in row.kwargs for row in graph.rows) == 2


def test_equal_infinities_are_no_difference() -> None:
    """The buffer of a mask is compared like any other tensor."""
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    for other, right in ((mask, True), (mask + 1, False), (-mask, False), (mask.exp(), False)):
        (found,) = differences({"mask": other}, {"mask": mask}, 1.0)
        assert found.within(1e-10) == right


class Unset(Translating):
    """Beside the mask, what is read only where it has been set, which no step here does."""

    def __init__(self) -> None:
        super().__init__(lambda m, x, y: m.both(x.where(m.shift.isnan(), x + m.shift), y, src_mask=m.mask))
        self.register_buffer("shift", torch.full((WIDTH,), torch.nan))


def test_a_buffer_without_numbers_is_equal_while_both_sides_leave_it_so() -> None:
    strategy = Strategy((P((S((0, 1), (0, 2)),), (2,)), P((S((2,), (0, 2)),), (2,))))
    assert hspmd.compile(Unset(), batch(), strategy=strategy).verify(values=True)
    lost, number = torch.tensor([torch.nan, 1.0]), torch.tensor([2.0, 1.0])
    unset = without_numbers({"shift": lost, "set": number})
    assert list(unset) == ["shift"]
    for found, wanted, right in ((lost, lost, True), (lost, number, False), (number, lost, False)):
        (one,) = differences({"shift": found}, {"shift": wanted}, 1.0, unset)
        assert one.within(1e-10) == right
    (other,) = differences({"shift": lost.flip(0)}, {"shift": lost.flip(0)}, 1.0, unset)
    assert not other.within(1e-10)
