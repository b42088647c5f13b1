"""Tokens that a marker splits stay split through norms, products and pointwise operators; of attention keys
and values are gathered, and the queries are not."""

from __future__ import annotations

import pytest

from hspmd_compiler.ir.annotated import PipelineGraph
from hspmd_compiler.ir.graph import Phase
from hspmd_compiler.layout.layout import Coordinate
from hspmd_compiler.strategy.strategy import Override, Strategy

from .equal_to_eager import Case
from .sampled_models import CLASSES, TOKENS, Shared, case_of, deduced, moved, strategy_of

TEXT = "[0,1,2] <S1(1,1,3)>"
SHARED = (Shared(3, (4, 2), ""),)


def subject(name: str, *overrides: Override) -> tuple[Case, Strategy]:
    strategy = strategy_of(name, SHARED, *overrides)
    return case_of(name, strategy.global_batch, TEXT), strategy


def gathered(graph: PipelineGraph) -> list[tuple[int, ...]]:
    """Shapes of what the forward pass communicates."""
    return [row.out.layout.shape for row in moved(graph) if row.phase is Phase.FORWARD]


def test_only_keys_and_values_are_gathered_where_attention_is_written_out() -> None:
    case, strategy = subject("encoder")
    (graph,) = deduced(case, strategy)
    keys, values, mean = (6, 4, 2, TOKENS), (6, 4, TOKENS, 2), (6, CLASSES)
    assert gathered(graph) == [keys, values, keys, values, mean]


def test_only_keys_and_values_are_gathered_by_fused_attention() -> None:
    case, strategy = subject("language")
    (graph,) = deduced(case, strategy)
    (attention,) = [row for row in graph.rows if row.op == "hspmd.attention"]
    at_last = Coordinate(2, 0)
    assert [value.layout.local_shape(at_last)[2] for value in attention.reads] == [3, TOKENS, TOKENS]
    assert len(gathered(graph)) == 2


@pytest.mark.parametrize("name", ["encoder", "language"])
def test_numbers_stay(name: str) -> None:
    case, strategy = subject(name)
    case.check(strategy)


def test_numbers_stay_beside_split_heads() -> None:
    """A split parameter keeps its pieces, and tokens come together before it."""
    halves = Override("layers.1.linear1", split=0), Override("layers.1.linear2.weight", split=1)
    case, strategy = subject("encoder", *halves)
    case.check(strategy)
    (graph,) = deduced(case, strategy)
    assert all(row.reads[0].static is False for row in moved(graph)), "no parameter is gathered"
