"""How much a part of a step weighs, and which models can't be run in parts."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import pytest
import torch
from torch import nn

from hspmd_compiler.artifact.proved_loss import LossKind, ProvedLabels, ProvedLoss
from hspmd_compiler.errors import RunError
from hspmd_compiler.runtime.batches.buckets import BucketBatch, CountedLabels
from hspmd_compiler.runtime.hot.gradient_sum import GradientSum
from hspmd_compiler.runtime.hot.parts import HotPart, StepPart, weighed
from hspmd_compiler.runtime.hot.refusals import reasons, refuse
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

from ..training.training_cases import STRATEGIES, SUBJECTS, graph_of, program_for, traced

IGNORED = -100
ROW = torch.tensor([[1, 2, 3, IGNORED]])
BOTH = {"labels": torch.cat([ROW, ROW])}
NONE = {"labels": torch.full((3, 4), IGNORED)}
Expect = Callable[[str, str], None]


def labels(first: int = 1) -> ProvedLoss:
    return ProvedLoss(LossKind.LABELS, ProvedLabels("labels", IGNORED, first))


def told(parts: list[StepPart], loss: ProvedLoss | None = None) -> list[tuple[str, float, int]]:
    return [(each.strategy, each.weight, each.first) for each in weighed(parts, loss or labels())]


def test_parts_weigh_by_their_labels() -> None:
    """Nothing predicts the first place of a row. A part without labels is not run, but has its place."""
    parts: list[StepPart] = [("a", BOTH), ("b", NONE), BucketBatch("c", {"labels": ROW}, ((0,),), 2)]
    assert told(parts) == [("a", 4 / 6, 0), ("c", 2 / 6, 5)]
    assert [each.labels for each in weighed(parts, labels())] == [4, 2]
    by_all = weighed(parts, labels(0), LossKind.LABELS, CountedLabels(first=0))
    assert [each.weight for each in by_all] == [6 / 9, 3 / 9]


def test_other_kinds_of_losses() -> None:
    parts: list[StepPart] = [HotPart("a", BOTH), HotPart("b", NONE)]
    assert told(parts, ProvedLoss(LossKind.SAMPLES)) == [("a", 2 / 5, 0), ("b", 3 / 5, 2)]
    assert told(parts, ProvedLoss(LossKind.SUM)) == [("a", 1.0, 0), ("b", 1.0, 2)]
    assert told([("a", BOTH, 0.25), ("b", NONE, 2.0), ("c", NONE, 0.0)]) == [("a", 0.25, 0), ("b", 2.0, 2)]
    assert all(each.labels is None for each in weighed([("a", BOTH, 0.25)], None))


def test_weights_that_make_no_step(expect: Expect) -> None:
    wrong: list[list[StepPart]] = [
        [("a", BOTH, 0.5), ("b", NONE)],
        [("a", NONE), ("b", NONE)],
        [("a", BOTH, nan), ("b", BOTH, 1.0), ("c", BOTH, inf)],
        [],
    ]
    errors = []
    for parts in wrong:
        with pytest.raises(RunError) as caught:
            weighed(parts, labels())
        errors.append(str(caught.value))
    expect("cli/hot_weights", "\n".join(errors))


TWO = Strategy(tuple(PipelineSpec((StageSpec((at,), (0, 1)),), (size,)) for at, size in enumerate((6, 4))))


class Normed(nn.Module):
    """Batch norm, whose statistics are those of the batch; where it keeps some, they change in each step."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(36, track_running_stats=keeps)
        self.head = nn.Linear(36, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.head(self.norm(x)), y)


@pytest.mark.parametrize("keeps", [True, False])
def test_batch_norm_is_refused(keeps: bool, expect: Expect) -> None:
    program = program_for(traced(Normed(keeps), SUBJECTS["mlp-mse"].batch(0), 10), TWO)
    found = [each for own in program.ranks for each in reasons(own, program.classes[own.class_name])]
    with pytest.raises(RunError) as caught:
        refuse(found)
    expect("cli/hot_refused" if keeps else "cli/hot_refused_statistics", str(caught.value))


@pytest.mark.parametrize("strategy", ["mixed", "micro"])
def test_counts_of_labels_are_no_reason(strategy: str) -> None:
    program = program_for(graph_of("llama"), STRATEGIES[strategy])
    refuse(each for own in program.ranks for each in reasons(own, program.classes[own.class_name]))


def test_what_is_added_stays_as_it_is() -> None:
    """Two parameters may share one gradient."""
    grad, one = torch.ones(3), torch.ones(2)
    total = GradientSum()
    total.add({"a": grad, "b": grad}, 0.5)
    total.add({"a": grad, "b": grad, "c": one}, 2.0)
    assert total.total["a"].tolist() == total.total["b"].tolist() == [2.5] * 3
    assert total.total["c"].tolist() == [2.0] * 2
    assert grad.tolist() == [1.0] * 3 and one.tolist() == [1.0] * 2


def test_narrow_gradients_are_added_in_a_wide_type() -> None:
    """Beside 256, bfloat16 has no place for a half, nor for all sixteen of them."""
    total = GradientSum()
    total.add({"a": torch.full((2,), 256.0, dtype=torch.bfloat16)})
    for _ in range(16):
        total.add({"a": torch.ones(2, dtype=torch.bfloat16)}, 0.5)
    assert total.total["a"].dtype == torch.float32 and total.total["a"].tolist() == [264.0] * 2
