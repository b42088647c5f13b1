"""Values and parameters split in several dims, moved and trained by real processes over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.strategy.strategy import Override, PipelineSpec, StageSpec, Strategy

from ..by_bytes import by_bytes
from .test_end_to_end_gloo import CONFIG, train_like_eager
from .training_cases import SUBJECTS, Subject

SAMPLES, TOKENS, WIDTH, INNER = 5, 3, 6, 7


class Marked(nn.Module):
    """Two linear layers on tokens: pieces of two dims, of samples, and addends that are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        inner = hspmd.comm(self.up(x), "[2,0,1,3]  <S2(5,2) S1x2>")
        inner = hspmd.comm(torch.nn.functional.gelu(inner), "[0,1,2,3]  <S0x2 S2(0,7)>")
        inner = hspmd.comm(inner, "[0,1,2,3]  <Dx2 S2(0,7)>")
        out = hspmd.comm(self.down(inner), "[0,1,2,3]  <Dx2 Px2>")
        return nn.functional.mse_loss(hspmd.comm(out, "[3,2,1,0]  <S1(0:2,1:3) Dx2>"), y)


def batch(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(SAMPLES, TOKENS, WIDTH, generator=generator) for _ in range(2))
    return {"x": x, "y": y}


def strategy(zero: int) -> Strategy:
    tiles = "[0,1,2,3]  <S1x2 S0(5,2)>"
    stage = StageSpec((0, 1, 2, 3), (0, 1))
    return Strategy(
        (PipelineSpec((stage,), (3, 2)),), overrides=(Override("up.weight", annotation=tiles),), zero=zero
    )


def compiled(zero: int, to: Path) -> Path:
    program = hspmd.compile(lambda: (Marked(), batch(0)), strategy=strategy(zero), optimizer=CONFIG)
    program.save(to)
    return to


def test_processes_train_like_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUBJECTS, "marked", Subject(Marked, batch))
    train_like_eager("marked", compiled(2, tmp_path / "artifact"))


def test_processes_train_in_several_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUBJECTS, "marked", Subject(Marked, batch))
    with by_bytes():
        directory = compiled(0, tmp_path / "artifact")
    train_like_eager("marked", directory)
