"""A layout that the next operator gathers is told, with both lines and the reason; one that stays is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hspmd_compiler.passes.annotate import annotate
from hspmd_compiler.passes.deduction.deduce_all import deduce_all
from hspmd_compiler.strategy.strategy import Override, PipelineSpec, StageSpec, Strategy

from ..trace.marked_models import traced, with_marks
from ..training.equal_to_eager import Case
from ..training.sampled_models import Shared, case_of, strategy_of, text_of

FOUR = (Shared(4, (4, 2), "S0x2 S1x2"),)
TWO = (Shared(2, (4, 2), "S0x2"),)
ROWS = (Shared(2, (4, 2), "S2x2"),)
UNEQUAL = Strategy(
    (PipelineSpec((StageSpec((0, 1), (0, 1)), StageSpec((2, 3, 4), (1, 2))), (3, 1)),),
    overrides=(Override("*", duplicate=True),),
)
HALVES = Override("up.weight", split=0)
BETWEEN = {"between": "[0,1 | 2,3,4] <S0x2 | S0x3> hetero=0"}
GATHERED = {
    "two_dims": lambda: deduced("encoder", FOUR),
    "split_parameter": lambda: deduced("mlp", TWO, HALVES),
    "needed_whole": lambda: deduced("conv", ROWS),
    "crossing": lambda: deduced_of(with_marks(traced(), BETWEEN), UNEQUAL),
}


def deduced(name: str, pipelines: Sequence[Shared], *overrides: Override) -> None:
    strategy = strategy_of(name, pipelines, *overrides)
    deduced_of(case_of(name, strategy.global_batch, text_of(pipelines)), strategy)


def deduced_of(case: Case, strategy: Strategy) -> None:
    deduce_all(case.graph, strategy, annotate(case.graph, strategy)[1])


@pytest.mark.parametrize("kind", GATHERED)
def test_the_operator_and_both_lines_are_told(
    kind: str, caplog: pytest.LogCaptureFixture, expect: Callable[[str, str], None]
) -> None:
    GATHERED[kind]()
    (message,) = (message for message in caplog.messages if "asked for" in message)
    expect(f"comm/gathered_{kind}", message)


@pytest.mark.parametrize("name", ["mlp", "conv", "encoder", "language"])
def test_what_stays_is_not_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    deduced(name, TWO)
    assert not any("asked for" in message for message in caplog.messages)
