"""Devices in several stages, as processes over gloo: equal to eager."""

from __future__ import annotations

from pathlib import Path

import pytest

import hspmd_compiler as hspmd
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

from .test_end_to_end_gloo import CONFIG, train_like_eager
from .training_cases import SUBJECTS, Mlp, Subject, classes, nn

RING = ((0,), (1, 2), (0,), (1, 2))
V = ((0,), (1, 2), (1, 2), (0,))


@pytest.mark.parametrize("devices", [RING, pytest.param(V, marks=pytest.mark.slow)], ids=["ring", "v"])
def test_processes_train_like_eager(
    devices: tuple[tuple[int, ...], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a pipeline of one stage, with ZeRO-1."""
    made = Subject(lambda: Mlp(nn.functional.cross_entropy, 5), classes)
    monkeypatch.setitem(SUBJECTS, "deep", made)
    layers = ((0, 1), (1, 3), (3, 4), (4, 5))
    stages = tuple(StageSpec(own, held) for own, held in zip(devices, layers, strict=True))
    pipelines = (PipelineSpec(stages, (2, 1, 2)), PipelineSpec((StageSpec((3,), (0, 5)),), (3, 2)))
    strategy = Strategy(pipelines, zero=1)
    program = hspmd.compile(lambda: (made.build(), made.batch(0)), strategy=strategy, optimizer=CONFIG)
    program.save(tmp_path / "artifact")
    train_like_eager("deep", tmp_path / "artifact")
