"""Rows that a model sorts by expert stay where they are: the same step, without the sort."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.errors import DeduceError
from hspmd_compiler.ir.own_names import ANCHOR, EXPERT_GRAD, EXPERT_MM
from hspmd_compiler.ir.own_operators import GROUPED
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

from ..training.equal_to_eager import Case

SAMPLES, TOKENS, WIDTH, EXPERTS, CHOICES = 4, 3, 6, 5, 2
SPLIT = Strategy(
    (PipelineSpec((StageSpec((0,), (0, 1)),), (1, 2)), PipelineSpec((StageSpec((1,), (0, 1)),), (1,)))
)
ALONE = Strategy((PipelineSpec((StageSpec((0,), (0, 1)),), (SAMPLES,)),))
Inside = Callable[[Tensor, "Layer"], Tensor]


class Layer(nn.Module):
    """Experts as transformers computes them, and something done to their sorted rows. ids: places that
    the router knows; one behind the experts computes nothing."""

    def __init__(self, inside: Inside, choices: int = CHOICES, ids: int = EXPERTS) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, ids)
        self.weights = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))
        self.bias = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.inside, self.choices = inside, choices

    def forward(self, x: Tensor) -> Tensor:
        from transformers.integrations.moe import _grouped_mm

        tokens = x.reshape(-1, WIDTH)
        shares, chosen = self.router(tokens).softmax(-1).topk(self.choices)
        ids, order = chosen.reshape(-1).sort()
        counts = torch.histc(ids.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
        rows = tokens[order // self.choices]
        rows = _grouped_mm(rows, self.weights, counts.cumsum(0, dtype=torch.int32))
        rows = self.inside(rows + self.bias[ids.clamp(max=EXPERTS - 1)], self)
        rows = rows * shares.reshape(-1)[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return x + rows[back].view(len(tokens), self.choices, WIDTH).sum(1).view(x.shape)


class Model(nn.Module):
    """One layer of experts, and a loss per element."""

    def __init__(self, **layer: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer(**layer)])  # type: ignore[arg-type]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.layers[0](x), y)


def normed(rows: Tensor, layer: Layer) -> Tensor:
    """A norm of each row, and a weight whose gradient is a sum over rows."""
    return rows * (rows.pow(2).mean(-1, keepdim=True) + 1e-3).rsqrt() * layer.scale


def halves(rows: Tensor, layer: Layer) -> Tensor:
    """Slices, views and joins inside of a row."""
    first, second = rows.view(-1, 2, 3).transpose(1, 2).reshape(-1, WIDTH).chunk(2, -1)
    return torch.cat([rows[:, ::2] * first, second.softmax(-1)], -1) @ layer.weights[0]


ALONE_ROWS: dict[str, Inside] = {
    "as they are": lambda rows, _: rows,
    "activation": lambda rows, layer: torch.nn.functional.gelu(rows) * layer.scale,
    "norm": normed,
    "parts of rows": halves,
}


def case(**layer: object) -> Case:
    generator = torch.Generator().manual_seed(1)
    batch = {key: torch.randn(SAMPLES, TOKENS, WIDTH, generator=generator) for key in "xy"}
    return Case.of(lambda: Model(**layer), batch)


@pytest.mark.parametrize("inside", ALONE_ROWS)
@pytest.mark.parametrize("choices", [1, CHOICES])
def test_rows_alone_need_no_order(inside: str, choices: int) -> None:
    made = case(inside=ALONE_ROWS[inside], choices=choices)
    found = {row.op for row in made.graph.rows}
    assert {EXPERT_MM, EXPERT_GRAD} <= found
    assert found.isdisjoint({GROUPED, "aten.sort.default", "aten.argsort.default"})
    made.check(SPLIT)


def test_anchors_among_sorted_rows() -> None:
    """A search puts one behind every call, also of what is called on sorted rows."""
    model = Model(inside=lambda rows, layer: layer.after(rows))
    model.layers[0].after = nn.SiLU()
    batch = {key: torch.randn(SAMPLES, TOKENS, WIDTH) for key in "xy"}
    made = Case.of(lambda: deepcopy(model), batch, anchors=("*",))
    found = [row for row in made.graph.rows if row.op in (ANCHOR, "aten.sort.default")]
    assert any("after" in str(row.args[1]) for row in found)
    assert all(row.op == ANCHOR for row in found)
    made.check(SPLIT)


def test_a_row_without_an_expert_gives_zeros() -> None:
    case(inside=normed, ids=EXPERTS + 1).check(SPLIT)


@pytest.mark.parametrize(
    "inside", [lambda rows, _: rows.cumsum(0), lambda rows, _: rows - rows[:1]], ids=["sums", "first row"]
)
def test_rows_that_meet_stay_sorted(inside: Inside) -> None:
    """Exact where the batch is whole; where it is cut, refused."""
    made = case(inside=inside)
    assert GROUPED in {row.op for row in made.graph.rows}
    made.check(ALONE)
    with pytest.raises(DeduceError):
        made.check(SPLIT)
