"""What a rule made is made again without it: the same program, and most rows of a deep model are so made."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.base.codec import encode
from hspmd_compiler.passes.deduction import deduce_memo
from hspmd_compiler.passes.deduction.deduce_memo import MadeRow, RuleMemo, signatures
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.trace.tracer import trace

from ..training.training_cases import STRATEGIES, graph_of, program_for

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize(
    ("subject", "strategy"),
    [
        ("llama", "sp-heads3111"),
        pytest.param("llama-kv1", "tp3", marks=pytest.mark.slow),
        pytest.param("gpt2", "mixed", marks=pytest.mark.slow),
        pytest.param("gpt2", "pp", marks=pytest.mark.slow),
        pytest.param("gpt2", "empty", marks=pytest.mark.slow),
        pytest.param("gpt2-dropout", "tp32", marks=pytest.mark.slow),
        ("mlp-ce", "micro"),
    ],
)
def test_the_program_is_that_of_the_rules(subject: str, strategy: str, monkeypatch: Patch) -> None:
    graph = graph_of(subject)
    used: list[MadeRow] = []

    def counted(memo: RuleMemo, key: deduce_memo.MemoKey | None) -> MadeRow | None:
        found = find(memo, key)
        used.extend([found] if found is not None else [])
        return found

    find = RuleMemo.find
    monkeypatch.setattr(RuleMemo, "find", counted)
    found = encode(program_for(graph, STRATEGIES[strategy]))
    monkeypatch.setattr(RuleMemo, "find", lambda *_: None)
    assert found == encode(program_for(graph, STRATEGIES[strategy]))
    assert len(used) > 10


class Twins(nn.Module):
    """Products of a value with itself and with an equal one; literals equal but for their type."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x), self.second(x)
        return ((a * a) * 1.0 + (a * b) * 1 + (b * a) * True).sum()


def test_equal_and_same_operands_are_told_apart(monkeypatch: Patch) -> None:
    graph = trace(Twins(), {"x": torch.zeros(2, 4)}, batch=4)
    numbers = signatures(graph)
    products = [row for row in graph.rows if row.op == "aten.mul.Tensor"]
    square = next(row for row in products if row.args[0] == row.args[1])
    mixed = [
        row for row in products if row.shape == square.shape and row is not square and len(row.args) == 2
    ]
    assert all(numbers[row.id] != numbers[square.id] for row in mixed)
    literals = [row for row in products if isinstance(row.args[1], (int, float))]
    types = {type(row.args[1]) for row in literals}
    assert len({numbers[row.id] for row in literals}) >= len(types) > 1
    strategy = Strategy((PipelineSpec((StageSpec((0, 1), (0, 1)),), (4,)),))
    found = encode(program_for(graph, strategy))
    monkeypatch.setattr(RuleMemo, "find", lambda *_: None)
    assert found == encode(program_for(graph, strategy))
