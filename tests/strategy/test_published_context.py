"""Every published strategy of context parallelism compiles, and trains like one device in float64.

A small Llama has its stages; micro-batches are cut to one more than stages. Skipped without reference data.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import hspmd_compiler as hspmd
from hspmd_compiler.models.builtin_models import LlamaSize
from hspmd_compiler.strategy.formats.read import read_strategy
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.strategy.write import strategy_text
from tests.strategy.published import published, shortened

TOKENS = 18
QUICK = ("hspmd_hetero_cluster/case0", "hetu_hetero_padding/case2")
CONTEXT_PARALLEL = (
    *QUICK,
    "hetu_ampelos/case2",
    "hetu_ampelos/case4",
    "hetu_hetero_packing/case0",
    "hetu_hetero_packing/case1",
    "hetu_hetero_packing/case2",
    "hetu_hetero_padding/case0",
)


@cache
def shared(reference: Path) -> dict[str, Strategy]:
    held = {one.name.partition("/")[2]: one.expanded.strategy for one in published(reference)}
    return {name: strategy for name, strategy in held.items() if strategy.context}


def test_which_they_are(reference: Path) -> None:
    """And what is written of them reads back."""
    assert set(shared(reference)) == set(CONTEXT_PARALLEL)
    for strategy in shared(reference).values():
        assert read_strategy(strategy_text(strategy)) == strategy


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CONTEXT_PARALLEL],
)
def test_it_trains_like_one_device(reference: Path, name: str) -> None:
    strategy = shortened(shared(reference)[name])
    tokens = max(
        (sum(spec.lengths) + spec.padding for spec in strategy.context if spec.lengths), default=TOKENS
    )
    size = LlamaSize(strategy.num_layers, 16, 4, 20, kv_heads=2, vocab=32, seq=tokens)
    hspmd.compile(size.build, strategy=replace(strategy, name=name)).verify(values=True)
