"""A model whose library brings operators of its own trains where the library is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hspmd_compiler as hspmd
from hspmd_compiler.coverage.transformers_models import CAUSAL, DECODER, FromConfig, tokens
from hspmd_compiler.ir.own_names import EXPERT_MM
from hspmd_compiler.ir.own_operators import LOWERED
from hspmd_compiler.program.kernels.grouped_product import grouped_mm, grouped_mm_backward
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

from ..training.equal_to_eager import Case

ROOT = Path(__file__).resolve().parents[2]
EXPERTS = {"num_key_value_heads": 3, "num_local_experts": 4, "num_experts_per_tok": 2}
MIXTRAL: Callable[[], nn.Module] = FromConfig("mixtral", CAUSAL, {**DECODER, **EXPERTS})
STAGES = (StageSpec((0, 1), (0, 1)), StageSpec((2,), (1, 2)))
STRATEGY = Strategy((PipelineSpec(STAGES, (1, 1)), PipelineSpec((StageSpec((3,), (0, 2)),), (1,))))
ALONE = Strategy((PipelineSpec((StageSpec((0,), (0, 2)),), (3,)),))
BATCHES = """
import torch


def batches(seed=0):
    generator = torch.Generator().manual_seed(seed)
    while True:
        ids = torch.randint(3, 30, (3, 6), generator=generator)
        yield {"input_ids": ids, "labels": ids}
"""


def batch() -> dict[str, torch.Tensor]:
    return tokens(torch.Generator().manual_seed(0))


@pytest.mark.parametrize("ends", [[2, 2, 5, 7], [0, 0, 0, 7], [1, 3, 4, 6]])
def test_the_product_is_that_of_the_library(ends: list[int]) -> None:
    """In whole numbers, whose sums don't depend on their order."""
    import transformers.integrations.moe  # noqa: F401  (registers the operators)

    rows, weights, grad = (torch.randint(-9, 9, shape).double() for shape in ((7, 3), (4, 3, 5), (7, 5)))
    theirs = torch.ops.transformers
    places = torch.tensor(ends)
    assert torch.equal(grouped_mm(rows, weights, places), theirs.grouped_mm_fallback(rows, weights, places))
    found = grouped_mm_backward(rows, weights, places, grad)
    wanted = theirs.grouped_mm_fallback_backward(rows, weights, places, grad)
    assert all(map(torch.equal, found, wanted))


def test_experts_equal_eager() -> None:
    """The library sorts the tokens of all samples; here each stays at its place, so that the batch is cut."""
    case = Case.of(MIXTRAL, batch())
    found = {row.op for row in case.graph.rows}
    assert EXPERT_MM in found
    assert found.isdisjoint({*LOWERED, "aten.sort.default"})
    case.check(STRATEGY)


def test_training_needs_no_library(tmp_path: Path) -> None:
    """The process of the run finds a `transformers` that can't be imported."""
    blocked = tmp_path / "blocked" / "transformers"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text('raise ImportError("transformers is blocked here")\n')
    (tmp_path / "own_batches.py").write_text(BATCHES)
    hspmd.compile(MIXTRAL(), batch(), strategy=ALONE).save(tmp_path / "program")
    path = os.pathsep.join([str(tmp_path / "blocked"), str(ROOT), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [*["-m", "hspmd_compiler", "run", "program", "--data", "own_batches:batches", "--steps", "2"]]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    refused = subprocess.run(
        [sys.executable, "-c", "import transformers"], env=environment, capture_output=True, text=True
    )
    assert "transformers is blocked here" in refused.stderr
