"""Real processes that share the samples of micro-batches of unequal sizes, with dropout, beside eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd

from .sampled_models import CLASSES, TOKENS, WIDTH, F, Shared, strategy_of, text_of
from .test_end_to_end_gloo import CONFIG, train_like_eager
from .training_cases import SUBJECTS, Subject

PIPELINES = (Shared(2, (3, 2), "S0x2"), Shared(1, (1,), "R"))
SAMPLES = 6


class Marked(nn.Module):
    """An encoder layer of PyTorch, with dropout, behind a marker."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        inner = self.layer(hspmd.comm(x, text_of(PIPELINES)))
        return F.cross_entropy(self.head(inner.mean(1)), y)


def batch(step: int) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(step)
    x = torch.randn((SAMPLES, TOKENS, WIDTH), generator=draws)
    return {"x": x, "y": torch.randint(0, CLASSES, (SAMPLES,), generator=draws)}


def test_processes_train_like_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUBJECTS, "shared", Subject(Marked, batch))
    program = hspmd.compile(
        lambda: (Marked(), batch(0)), strategy=strategy_of("mlp", PIPELINES, zero=2), optimizer=CONFIG
    )
    program.save(tmp_path / "artifact")
    train_like_eager("shared", tmp_path / "artifact")
