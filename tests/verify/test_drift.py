"""Rounding of a gradient that is zero may reach its parameter through AdamW; nothing else may."""

from __future__ import annotations

import pytest

from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.verify.equality import Difference
from hspmd_compiler.verify.training import TOLERANCE, Drift

LR = 1e-3
ROUNDING = 1e-17  # of a gradient; AdamW makes up to 2 * LR / 1e-8 times as much of it


@pytest.mark.parametrize(
    ("optimizer", "largest", "equal"),
    [
        (OptimizerName.ADAMW, 1e-12, True),
        (OptimizerName.ADAMW, 1e-11, False),
        (OptimizerName.SGD, 1e-12, False),
    ],
)
def test_what_adamw_carries(optimizer: OptimizerName, largest: float, equal: bool) -> None:
    drift = Drift(OptimizerConfig(optimizer, lr=LR))
    drift.add([Difference("k.bias", ROUNDING, 1e-4), Difference("w", 0.0, 1.0)])
    bias, weight = drift.allowed_for([Difference("k.bias", largest, LR), Difference("w", 0.0, 1.0)])
    assert bias.within(TOLERANCE) is equal
    assert weight.scale == 1.0


def test_steps_add_up() -> None:
    drift = Drift(OptimizerConfig(OptimizerName.ADAMW, lr=LR))
    for rounding in (ROUNDING, 0.0):
        drift.add([Difference("k.bias", rounding, 1e-4)])
    assert drift.carried["k.bias"] == pytest.approx(2 * 2 * LR / 1e-8 * ROUNDING)
