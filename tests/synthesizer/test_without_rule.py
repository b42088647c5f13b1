"""An operator that no rule splits: the plan computes it whole on every rank of a group, and says so."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hspmd_compiler.api import compile, plan
from hspmd_compiler.pages.plan_page import plan_sections
from hspmd_compiler.synthesizer.planner.explain import explain
from tests.cost_models.priced import cluster, device

OPERATOR = "aten.cholesky_solve.default"
WIDE = 256


class Solved(nn.Module):
    """A small solve between wide layers, which are worth sharing out."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.sides = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 9)
        self.back, self.out = nn.Linear(3, WIDE), nn.Linear(WIDE, WIDE)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        sides = self.sides(torch.relu(self.wide(x))).view(-1, 3, 3) + 4 * torch.eye(3)
        found = torch.cholesky_solve(torch.eye(3).expand_as(sides), sides)
        return (self.out(torch.relu(self.back(found).mean(1))) - y).square().mean()


def solved() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Solved(), {"x": torch.zeros(2, WIDE), "y": torch.zeros(2, WIDE)}


def test_the_plan_says_what_every_rank_computes_whole() -> None:
    spec = cluster(*[[device(peak=1e10)] for _ in range(4)])
    found = plan(solved, cluster=spec, global_batch=64)
    program = found.found
    assert program is not None and program.ranks > 1
    assert [found.graph.rows[row].op for row in program.whole] == [OPERATOR]
    (told,) = (note for note in found.notes if note.startswith(OPERATOR))
    assert "has no rule: every rank of its stage computes it whole" in told
    (anchor, *others) = explain(program, "cholesky_solve")
    assert not others and anchor.made_whole == OPERATOR
    assert [one.made_whole for one in explain(program, "wide")] == [""] * len(explain(program, "wide"))
    titles = [getattr(section, "title", "") for section in plan_sections(found, (anchor,))]
    assert any(f"{OPERATOR} has no rule, so every rank of a group computes it whole" in one for one in titles)
    compile(solved, strategy=found.strategy, cluster=spec).verify(values=True)
