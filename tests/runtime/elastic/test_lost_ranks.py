"""Ranks that are killed while the product's engine trains: the others end where an undisturbed run does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hspmd_compiler.program.program import Op
from tests.runtime.elastic import product
from tests.runtime.elastic.product import Training

STEPS = 6


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return product.compiled(product.twice(), tmp_path_factory.mktemp("elastic") / "twice")


def check(training: Training, steps: int = STEPS) -> None:
    """Each step once, in order, and torch's own parameters at the end."""
    assert training.of("step") == list(range(1, steps + 1))
    (end,) = training.of("end")
    for name, value in product.eager(steps).items():
        assert end[name] == pytest.approx(value, rel=1e-10, abs=1e-12), name


def test_nobody_dies(artifact: Path, tmp_path: Path) -> None:
    check(Training(artifact, tmp_path / "scratch", STEPS).run())


@pytest.mark.parametrize(
    ("op", "inside"),
    [(Op.FORWARD, False), (Op.BACKWARD, False), (Op.GRAD_SYNC, True), (Op.LOSS, True), (Op.OPTIMIZER, False)],
)
def test_a_rank_dies_in_a_step(op: Op, inside: bool, artifact: Path, tmp_path: Path) -> None:
    training = Training(artifact, tmp_path / "scratch", STEPS, {1: (3, op, inside, 9)}).run()
    check(training)
    (change,) = training.of("regroup")
    assert change["lost"] == [1] and change["resumed_s"] < 4
