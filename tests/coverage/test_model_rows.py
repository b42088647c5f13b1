"""Every operator of every model of the matrix by brute force, as the model calls it."""

from __future__ import annotations

import random
import zlib

import pytest
import torch

from hspmd_compiler.coverage.model import CoveredModel
from hspmd_compiler.coverage.registry import MODELS
from hspmd_compiler.errors import HspmdError
from hspmd_compiler.graph.rules import RULES
from hspmd_compiler.verify.widen import default_type

from ..sharded_rows import UNDEFINED, check
from ..test_rules_brute_force import BY_OP, WAYS, describe
from .single_rows import GETITEM, PLACEHOLDER, SingleRow, single_rows, split_row
from .traces import traced

THOROUGH = 30


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_operator_has_a_rule_and_a_case(model: CoveredModel) -> None:
    """Of its own: none is merely computed whole. The cases: tests/test_rules_brute_force.py."""
    ops = {row.op for row in traced(model).graph.rows} - {PLACEHOLDER, GETITEM}
    assert len(ops) > 10
    assert ops - set(RULES) == set()
    assert ops - set(BY_OP) == set()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_rows_split_equal_whole(model: CoveredModel) -> None:
    """Every row of the model's graph that differs from the others, by itself, at its own sizes."""
    try_rows(model, len(WAYS))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_rows_split_equal_whole_more_often(model: CoveredModel) -> None:
    try_rows(model, THOROUGH)


def try_rows(model: CoveredModel, tries: int) -> None:
    draws = random.Random(zlib.crc32(f"{model.name} {tries}".encode()))
    for single in single_rows(traced(model)):
        for number in range(tries):
            try_row(single, draws.randrange(2**32), WAYS[number % len(WAYS)])


def try_row(single: SingleRow, seed: int, ways: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    sketch = split_row(single, rng, ways)
    if single.row.op in UNDEFINED:
        return
    try:
        with default_type(torch.float64):
            check(sketch)
    except HspmdError as error:
        raise AssertionError(f"seed {seed}: {error.text()}\n{describe(sketch)}") from error
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{describe(sketch)}") from error
