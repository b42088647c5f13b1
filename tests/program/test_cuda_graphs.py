"""Runs that are recorded and replayed, by a recorder that works on the CPU as CUDA graphs do on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from hspmd_compiler.program.compiled import cuda_graphs
from hspmd_compiler.program.compiled.cuda_graphs import WATCHED, GraphedRun
from hspmd_compiler.program.compiled.making import segment_maker
from hspmd_compiler.program.compiled.torch_compiled import RowsFunction


@dataclass
class Replay:
    """It reads its operands where they lay when it was recorded, and writes into the same results."""

    rows: RowsFunction
    operands: list[Tensor]
    results: tuple[Tensor, ...]
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        for result, value in zip(self.results, self.rows(*self.operands), strict=True):
            result.copy_(value)


class CpuRecorder:
    def __init__(self) -> None:
        self.made: list[Replay] = []

    def takes(self, operand: Tensor) -> bool:
        return True

    def record(self, rows: RowsFunction, operands: Sequence[Tensor]) -> Replay:
        # what lies at those addresses, as a graph sees it
        self.made.append(Replay(rows, [*operands], tuple(each.clone() for each in rows(*operands))))
        return self.made[-1]

    @property
    def replays(self) -> int:
        return sum(each.replays for each in self.made)


def affine(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ weight
    return y, y.tanh()


def kept(count: int, size: int) -> list[Tensor]:
    """Operands that live at once, so that none lies where another does."""
    return [torch.randn(size, 4) for _ in range(count)]


def test_replays_keep_the_results_of_every_micro_batch() -> None:
    recorder = CpuRecorder()
    run, weight, inputs = GraphedRun(affine, recorder), torch.randn(4, 4), kept(8, 3)
    for step in range(2):
        results = [run(weight, x) for x in inputs]
        for x, found in zip(inputs, results, strict=True):
            assert all(torch.equal(one, two) for one, two in zip(found, affine(weight, x), strict=True))
        weight.mul_(0.5)  # in place, as an update does
        assert recorder.replays == (step + 1) * len(inputs) - WATCHED - 1
    assert len(recorder.made) == 1


def test_a_parameter_that_has_moved_is_read_where_it_is() -> None:
    recorder = CpuRecorder()
    run, inputs, weights = GraphedRun(affine, recorder), kept(6, 3), kept(3, 4)
    for weight in weights:
        for x in inputs:
            found = run(weight, x)
            assert all(torch.equal(one, two) for one, two in zip(found, affine(weight, x), strict=True))
    assert len(recorder.made) > 1 and recorder.replays


def test_micro_batches_of_two_sizes_have_a_graph_each() -> None:
    recorder = CpuRecorder()
    run, weight, inputs = GraphedRun(affine, recorder), torch.randn(4, 4), [*kept(6, 3), *kept(6, 2)]
    for x in inputs:
        assert torch.equal(run(weight, x)[0], x @ weight)
    assert len(recorder.made) == 2


def test_large_operands_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST_COPIED_BYTES", 3 * 4 * 4 * 3 - 1)
    recorder = CpuRecorder()
    run, weight = GraphedRun(affine, recorder), torch.randn(4, 4)
    for x in kept(8, 3):
        assert torch.equal(run(weight, x)[0], x @ weight)
    assert not recorder.made


def test_on_a_cpu_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hspmd_compiler"):
        assert segment_maker(False, True, "cpu") is None
    assert "CUDA graphs are of CUDA devices" in caplog.text
    assert segment_maker(False, True, "cuda:0") is not None
