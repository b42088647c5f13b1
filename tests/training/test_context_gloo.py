"""Real processes that share sequences, beside eager: members of unlike lengths and degrees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hspmd_compiler as hspmd

from .context_cases import CASES, FORMS, LLAMA, TOKENS
from .test_end_to_end_gloo import CONFIG, train_like_eager
from .training_cases import SUBJECTS, Subject


@pytest.mark.parametrize(
    "name",
    [
        "two stages",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("ring, balanced", "none for one")),
    ],
)
def test_processes_train_like_eager(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = (CASES | FORMS)[name]

    def batch(step: int) -> dict[str, Tensor]:
        draws = torch.Generator().manual_seed(step)
        ids = torch.randint(0, LLAMA.vocab, (strategy.global_batch, TOKENS), generator=draws)
        return {"input_ids": ids, "labels": torch.where(ids % 5 == 0, -100, ids)}

    monkeypatch.setitem(SUBJECTS, "shared tokens", Subject(lambda: LLAMA.build()[0], batch))
    program = hspmd.compile(lambda: (LLAMA.build()[0], batch(0)), strategy=strategy, optimizer=CONFIG)
    program.save(tmp_path / "artifact")
    train_like_eager("shared tokens", tmp_path / "artifact")


def test_processes_share_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed samples: positions are a member's own, documents those of the whole sample."""
    strategy, packed = CASES["one device beside"], replace(LLAMA, packed=1)

    def batch(step: int) -> dict[str, Tensor]:
        draws = torch.Generator().manual_seed(step)
        ids = torch.randint(0, LLAMA.vocab, (strategy.global_batch, TOKENS), generator=draws)
        positions = torch.arange(TOKENS).repeat(len(ids), 1) % (6 + step)
        return {"input_ids": ids, "labels": ids, "shift_labels": ids.roll(-1, 1), "position_ids": positions}

    monkeypatch.setitem(SUBJECTS, "shared documents", Subject(lambda: packed.build()[0], batch))
    program = hspmd.compile(lambda: (packed.build()[0], batch(0)), strategy=strategy, optimizer=CONFIG)
    program.save(tmp_path / "artifact")
    train_like_eager("shared documents", tmp_path / "artifact")
