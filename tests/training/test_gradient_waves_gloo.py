"""Gradients summed while backward goes on, through real processes over gloo: equal to eager."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import hspmd_compiler as hspmd

from .test_end_to_end_gloo import CONFIG, train_like_eager
from .test_gradient_waves import CASES, SMALL
from .training_cases import SUBJECTS


def test_processes_train_like_eager(tmp_path: Path) -> None:
    """Unequal pipelines of several stages, with clipping."""
    made = SUBJECTS["llama"]
    strategy = replace(CASES["mixed"], bucket_bytes=SMALL)
    program = hspmd.compile(lambda: (made.build(), made.batch(0)), strategy=strategy, optimizer=CONFIG)
    program.save(tmp_path / "artifact")
    train_like_eager("llama", tmp_path / "artifact")
