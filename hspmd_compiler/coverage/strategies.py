"""The columns of the matrix: strategies for a model of any number of layers, all of SAMPLES samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ..strategy.strategy import PipelineSpec, StageSpec, Strategy
from .model import SAMPLES

MOST_STAGES = 3


@dataclass(frozen=True, slots=True)
class Column:
    """name: head of the column. meaning: for the reader. of: the strategy for a number of layers."""

    name: str
    meaning: str
    of: Callable[[int], Strategy]


def _tensor_parallel(degree: int, sequence_parallel: bool = False) -> Callable[[int], Strategy]:
    def of(layers: int) -> Strategy:
        stage = StageSpec(tuple(range(degree)), (0, layers))
        return Strategy((PipelineSpec((stage,), (2, 1)),), sequence_parallel=sequence_parallel)

    return of


def _data_parallel(layers: int) -> Strategy:
    return Strategy(
        tuple(
            PipelineSpec((StageSpec((device,), (0, layers)),), (samples,))
            for device, samples in enumerate((2, 1))
        )
    )


def _unequal_depth(layers: int) -> Strategy:
    bounds = _bounds(layers, min(MOST_STAGES, layers))
    stages = tuple(StageSpec((device,), pair) for device, pair in enumerate(pairwise(bounds)))
    flat = StageSpec((len(stages),), (0, layers))
    return Strategy((PipelineSpec(stages, (1, 1)), PipelineSpec((flat,), (1,))))


def _mixed(layers: int) -> Strategy:
    first, *rest = pairwise(_bounds(layers, min(2, layers)))
    deep = (StageSpec((0, 1), first, shares=(2, 1)), *(StageSpec((2,), second) for second in rest))
    flat = StageSpec((3, 4, 5), (0, layers))
    return Strategy(
        (PipelineSpec(deep, (1, 1)), PipelineSpec((flat,), (1,))),
        sequence_parallel=True,
    )


def _bounds(layers: int, stages: int) -> list[int]:
    return [layers * stage // stages for stage in range(stages + 1)]


COLUMNS: tuple[Column, ...] = (
    Column("TP 2", "2 devices split every layer", _tensor_parallel(2)),
    Column("TP 3", "3 devices split every layer, heads unevenly", _tensor_parallel(3)),
    Column("SP 2", "2 devices split every layer, and the tokens between", _tensor_parallel(2, True)),
    Column("DP 2:1", "2 pipelines of one device, 2 samples and 1", _data_parallel),
    Column("PP 3 + 1", "a pipeline of a stage per layer (3 at most) beside one stage", _unequal_depth),
    Column(
        "mixed",
        "a stage of 2 devices with shares 2:1, then one of 1, beside a stage of 3; tokens split",
        _mixed,
    ),
)


def strategy_of(column: Column, layers: int, *, whole_statistics: bool) -> Strategy:
    """The column's strategy; with whole_statistics every pipeline runs its samples as one micro-batch.

    layers: 0 for a model without layers, which counts as one and isn't cut in stages.
    """
    strategy = column.of(max(layers, 1))
    assert strategy.global_batch == SAMPLES
    if not whole_statistics:
        return strategy
    joined = (PipelineSpec(p.stages, (p.batch_size,)) for p in strategy.pipelines)
    return Strategy(tuple(joined), sequence_parallel=strategy.sequence_parallel)
