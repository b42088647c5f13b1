"""Parameters stored in pieces of two dims: gathered for use, gradients and updates on the pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hspmd_compiler.annotations import DistributedStates, Duplicate, Split
from hspmd_compiler.ir.graph import ParamInfo
from hspmd_compiler.program.check import check
from hspmd_compiler.program.program import Program
from hspmd_compiler.strategy.strategy import Override, StageSpec, Strategy
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.verify.values import simulate
from hspmd_compiler.verify.widen import widen_program

from ..annotations.strategies import splits
from ..fit import check_fit
from ..trace.marked_models import FACTORS
from ..training.test_end_to_end import ADAMW, EXACT, LocalOptimizers, batches, compare, reference, start
from ..training.training_cases import ALL, FIRST, SECOND, graph_of, program_for

QUIET = list(HealthCheck)
FOUR = Strategy((P((S((0, 1, 2, 3), ALL),), (6, 4)),))
SIX = Strategy((P((S((2, 0, 1, 4, 3, 5), ALL),), (7, 3)),))
EQUAL = Strategy((P((S((0, 1, 2, 3), ALL),), (3, 2)), P((S((4, 5, 6, 7), ALL),), (3, 2))))
UNEQUAL = Strategy(
    (P((S((0, 1, 2, 3), FIRST), S((4, 5), SECOND)), (3, 2)), P((S((6, 7, 8, 9, 10, 11), ALL),), (5,)))
)
TOKENWISE = replace(
    Strategy((P((S((0, 1, 2, 3), ALL),), (4, 2)), P((S((4, 5, 6, 7, 8, 9), ALL),), (4,)))),
    sequence_parallel=True,
)


def in_pieces(info: ParamInfo, stages: Sequence[StageSpec], states: Sequence[DistributedStates]) -> Override:
    """One subgroup for each stage."""
    groups = " | ".join(",".join(map(str, stage.devices)) for stage in stages)
    relation = "  hetero=dup" if len(stages) > 1 else ""
    return Override(info.name, annotation=f"[{groups}]  <{' | '.join(map(str, states))}>{relation}")


def stages_of(strategy: Strategy) -> list[StageSpec]:
    return [stage for pipeline in strategy.pipelines for stage in pipeline.stages]


def tiled(info: ParamInfo, number: int, ranks: int) -> DistributedStates:
    """Tiles of unlike sizes, some stages by columns first; vectors in halves with copies."""
    rows, columns = info.shape[0], info.shape[-1]
    if len(info.shape) == 1 or ranks == 2:
        return DistributedStates((Duplicate(ranks // 2), Split(0, 2)))
    high = Split.by_shares(0, (rows // 3, rows - rows // 3))
    wide = Split(1, 2) if ranks == 4 else Split.by_shares(1, (columns // 2, 0, columns - columns // 2))
    return DistributedStates((high, wide) if number % 2 == 0 else (wide, high))


def tiles(strategy: Strategy, subject: str) -> Strategy:
    """Every parameter in tiles."""
    stages = stages_of(strategy)
    overrides = [
        in_pieces(info, stages, [tiled(info, number, stage.tp) for number, stage in enumerate(stages)])
        for info in graph_of(subject).params.values()
        if not info.is_buffer
    ]
    return replace(strategy, overrides=tuple(overrides))


def trained(subject: str, strategy: Strategy) -> Program:
    """Five steps of AdamW equal eager's: losses, gradients and parameters."""
    program = program_for(graph_of(subject), strategy)
    check(program)
    check_fit(program)
    found = simulate(
        widen_program(program), start(subject, True), batches(subject, True), LocalOptimizers(ADAMW)
    )
    compare(found, reference(subject, True), EXACT, ADAMW.lr)
    return program


CASES = [
    ("mlp-ce", FOUR, 0),
    ("mlp-mse", SIX, 0),
    ("mlp-ce", UNEQUAL, 1),
    ("gpt2", EQUAL, 1),
    ("llama", SIX, 0),
    ("llama", UNEQUAL, 2),
    ("mlp-ce", EQUAL, 3),
    ("llama-kv1", TOKENWISE, 3),
]
QUICK = [*CASES[:3], CASES[6]]


@pytest.mark.parametrize(
    ("subject", "strategy", "zero"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES],
)
def test_training_is_exact(subject: str, strategy: Strategy, zero: int) -> None:
    trained(subject, replace(tiles(strategy, subject), zero=zero))


def test_ranks_store_their_tiles_only() -> None:
    program = trained("mlp-ce", tiles(FOUR, "mlp-ce"))
    shapes = [[shard.shape for shard in rank.shards if shard.name == "head.weight"] for rank in program.ranks]
    assert shapes == [[(2, 18)], [(2, 18)], [(4, 18)], [(4, 18)]]


@st.composite
def pieces(draw: st.DrawFn, ranks: int, info: ParamInfo) -> DistributedStates:
    """Placements on so many ranks, in any order."""
    keys: list[int | None] = [None, *range(len(info.shape))]
    chosen = draw(st.permutations(keys))
    found: list[Split | Duplicate] = []
    for key, parts in zip(chosen, draw(st.sampled_from(FACTORS[ranks])), strict=False):
        found.append(Duplicate(parts) if key is None else draw(splits(key, parts, info.shape[key])))
    return DistributedStates(tuple(found))


@st.composite
def strategies(draw: st.DrawFn, subject: str) -> Strategy:
    """Some parameters in any pieces."""
    base = draw(st.sampled_from([FOUR, SIX, EQUAL, UNEQUAL, TOKENWISE]))
    params = [info for info in graph_of(subject).params.values() if not info.is_buffer]
    chosen = draw(st.lists(st.sampled_from(params), min_size=1, max_size=6, unique_by=lambda info: info.name))
    stages = stages_of(base)
    overrides = tuple(in_pieces(i, stages, [draw(pieces(stage.tp, i)) for stage in stages]) for i in chosen)
    return replace(base, overrides=overrides, zero=draw(st.integers(0, 3)))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=QUIET, database=None)
@given(st.data())
def test_training_in_any_pieces_is_exact(data: st.DataObject) -> None:
    subject = data.draw(st.sampled_from(["mlp-ce", "mlp-mse", "llama", "gpt2"]))
    trained(subject, data.draw(strategies(subject)))
