"""Counts over the whole batch, used in several stages: one stage of each pipeline counts, all get the sum."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hspmd_compiler.errors import DeduceError
from hspmd_compiler.ir.annotated import PipelineGraph
from hspmd_compiler.passes.annotate import annotate
from hspmd_compiler.passes.deduction.deduce_all import deduce
from hspmd_compiler.passes.liveness import StageRows, live_pipeline
from hspmd_compiler.passes.step_counts import ranks_of_counts
from hspmd_compiler.program.check import check
from hspmd_compiler.program.program import Op, Program
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.verify.artifact import verify_artifact

from ..training.equal_to_eager import Case

WIDTH, SAMPLES, IGNORE = 6, 10, -100


class Auxiliary(nn.Module):
    """Each layer adds a loss of its own, a mean over the valid samples; the last two weigh them, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        valid = (y != IGNORE).to(x.dtype)
        count, weight, extra = valid.sum(), w.sum(), x.new_zeros(())
        for place, layer in enumerate(self.layers):
            x = layer(x).tanh()
            extra = extra + (x.pow(2).sum(-1) * valid).sum() / count
            if place:
                extra = extra + (x.sum(-1) * w).sum() / weight
        return functional.cross_entropy(x, y) + 0.1 * extra


@cache
def case() -> Case:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, WIDTH, (SAMPLES,), generator=generator)
    y[::3] = IGNORE
    x, w = torch.randn(SAMPLES, WIDTH, generator=generator), torch.rand(SAMPLES, generator=generator)
    return Case.of(Auxiliary, {"x": x, "y": y, "w": w})


def stages(*ranks: tuple[int, ...]) -> tuple[S, ...]:
    """One layer each."""
    return tuple(S(own, (place, place + 1)) for place, own in enumerate(ranks))


STRATEGIES = {
    "three stages": Strategy((P(stages((0,), (1,), (2,)), (4, 4, 2)),)),
    "stages of several ranks": Strategy((P(stages((0, 1), (2,), (3, 4)), (3, 3, 3, 1)),)),
    "other stages beside": Strategy(
        (
            P((S((0, 1), (0, 2)), S((2,), (2, 3))), (3, 2)),
            P(stages((3,), (4,), (5,)), (2, 1)),
            P((S((6, 7), (0, 3)),), (2,)),
        )
    ),
    "one stage": Strategy((P((S((0,), (0, 3)),), (6, 4)),)),
}


def reductions(program: Program) -> dict[int, list[tuple[int, ...]]]:
    """The groups in which each rank reduces counts, in order."""
    return {
        own.rank: [own.comms[step.slot].group for step in own.instructions if step.op is Op.STEP_REDUCE]
        for own in program.ranks
    }


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_stage_has_the_count_of_all(name: str) -> None:
    check(case().check(STRATEGIES[name]))


def test_stages_that_need_no_count_take_no_part() -> None:
    """The weights' sum is used by the last two stages alone; one rank by itself reduces nothing."""
    found = reductions(case().check(STRATEGIES["three stages"]))
    assert {rank: sorted(groups) for rank, groups in found.items()} == {
        0: [(0, 1, 2)],
        1: [(0, 1, 2), (1, 2)],
        2: [(0, 1, 2), (1, 2)],
    }
    assert reductions(case().check(STRATEGIES["one stage"])) == {0: []}


def test_a_count_that_one_pipeline_lacks_is_refused() -> None:
    """It would be the count of some samples only."""
    live = live_pipeline(deduced("one stage"), 1).stages[0]
    with pytest.raises(DeduceError, match="not made alike in all pipelines"):
        ranks_of_counts([(0, (0,), live), (1, (1,), StageRows())])


def deduced(name: str) -> PipelineGraph:
    """The first pipeline of a strategy."""
    graph, strategy = case().graph, STRATEGIES[name]
    _, placements = annotate(graph, strategy)
    return deduce(graph, 0, strategy.pipelines[0], placements[0])


def test_values_and_rows_are_verified() -> None:
    """Stages that add zero are not taken for wrong ones."""
    import hspmd_compiler as hspmd

    model, batch = Auxiliary(), {key: value[:2] for key, value in case().batch.items()}
    batch = {key: value.float() if value.is_floating_point() else value for key, value in batch.items()}
    compiled = hspmd.compile(model, batch, strategy=STRATEGIES["other stages beside"])
    verify_artifact(compiled.artifact, values=True, rows=True, model=model)
