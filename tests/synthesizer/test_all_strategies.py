"""The plan of a small model beside every strategy of it, each compiled and priced in full."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.cluster.cluster import ClusterSpec
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.ir.graph import Phase
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.synthesizer.planner.plan import plan_graph, task_of
from hspmd_compiler.synthesizer.planner.ranking import AS_QUICK
from hspmd_compiler.synthesizer.planner.searching import find_candidates
from tests.cost_models.priced import cluster, device
from tests.synthesizer.all_strategies import least_step_s


class Pair(nn.Module):
    """Two products, with what is between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, 2 * width, bias=False)
        self.second = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).square().mean()


MOST_OPERATORS = 12
CLOSE = 2e-3
"""The search compares by closed forms, and a few of the best are compiled: what is left of the difference."""
SLOW = {"peak": 1e9}
MACHINES = {
    "alike": cluster([device(**SLOW), device(**SLOW)]),
    "unequal": cluster([device(**SLOW), device(**SLOW, pace=3)]),
    "apart": cluster([device(**SLOW)], [device(**SLOW, pace=2)]),
}
"""Name: machines."""
CASES = [(width, batch, machine) for width, batch in ((8, 600), (96, 4), (48, 48)) for machine in MACHINES]


def found_and_least(
    width: int, batch: int, spec: ClusterSpec, at: tuple[str, ...], zeros: tuple[int, ...]
) -> tuple[float, float, int]:
    """Seconds of the quickest that was found, of the best strategy, and how many strategies compile."""
    graph = trace_graph(Pair(width), {"x": torch.zeros(2, width)}, batch, anchors=("*",)).graph
    operators = [row for row in graph.rows if row.phase is Phase.FORWARD and row.op.startswith("aten.")]
    assert len(operators) <= MOST_OPERATORS
    given = task_of(graph, spec, OptimizerConfig())
    found = plan_graph(graph, spec, OptimizerConfig(), searcher=find_candidates)
    quickest_s = min(one.step_s for one in (found.chosen, *found.runner_ups) if one.fits)
    assert found.estimate.step_s <= quickest_s * (1 + AS_QUICK)
    return quickest_s, *least_step_s(given, at, zeros)


def test_no_strategy_is_quicker() -> None:
    """Layouts at one anchor."""
    step_s, least_s, count = found_and_least(48, 48, MACHINES["unequal"], ("relu",), (0,))
    assert step_s <= least_s * (1 + CLOSE)
    assert count > 70


@pytest.mark.slow
@pytest.mark.parametrize(("width", "batch", "machine"), CASES)
def test_no_strategy_of_many_is_quicker(width: int, batch: int, machine: str) -> None:
    """Layouts at two anchors, with ZeRO and without."""
    step_s, least_s, count = found_and_least(width, batch, MACHINES[machine], ("x", "relu"), (0, 1))
    assert step_s <= least_s * (1 + CLOSE)
    assert count > 250
