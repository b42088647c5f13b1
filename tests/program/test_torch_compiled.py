"""Segments whose runs are compiled: the numbers of plain ones, in memory that is kept apart."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hspmd_compiler as hspmd
from hspmd_compiler.options import Arithmetic, OptimizerConfig
from hspmd_compiler.program.codegen import SegmentCache
from hspmd_compiler.program.compiled import making, torch_compiled
from hspmd_compiler.program.compiled.torch_compiled import Compiler, RowsFunction, by_torch, compile_pieces
from hspmd_compiler.program.program import (
    InputKind,
    LocalRow,
    OutputKind,
    Program,
    Segment,
    SegmentInput,
    SegmentOutput,
    Value,
)
from hspmd_compiler.program.segments import CompiledSegments
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import Timeouts
from hspmd_compiler.verify.values import lockstep_step, start_ranks, whole_grads
from tests.runtime import hand_made

ONE = {"pipelines": [{"stages": [{"devices": [0], "layers": 2}], "micro_batches": [3]}]}
STRATEGY = {
    "pipelines": [
        {"stages": [{"devices": [0, 1], "layers": 1}, {"devices": [2], "layers": 1}], "micro_batches": [2, 1]}
    ]
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(torch.nn.functional.gelu(self.up(y)) * 0.5)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x), y)


@pytest.fixture(scope="module")
def compiled() -> tuple[Program, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model, batch = Classifier(), {"x": torch.randn(3, 8), "y": torch.tensor([0, 5, 2])}
    made = hspmd.compile(model, batch, strategy=STRATEGY)
    return made.artifact.program, {**model.state_dict()}, batch


def stepped(
    given: tuple[Program, dict[str, torch.Tensor], dict[str, torch.Tensor]], compiler: Compiler | None
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of a step; without a compiler as every program is run."""
    program, state, batch = given
    ranks = start_ranks(program, {name: value.clone() for name, value in state.items()})
    if compiler is not None:
        cache = SegmentCache(make=partial(compile_pieces, compiler=compiler))
        for rank in ranks:
            rank.segments = CompiledSegments(rank.plan, cache)
    loss, _ = lockstep_step(ranks, batch, None)
    return loss, whole_grads(ranks)


def check_same_bits(given: Any, compiler: Compiler) -> None:
    (loss, grads), (wanted, plain) = stepped(given, compiler), stepped(given, None)
    assert loss == wanted and grads.keys() == plain.keys()
    assert all(torch.equal(grads[name], plain[name]) for name in plain)


def test_runs_are_cut_where_ranks_meet(compiled: Any) -> None:
    called: list[str] = []

    def counting(piece: RowsFunction) -> RowsFunction:
        def count(*given: Any) -> tuple[Any, ...]:
            called.append("")
            return piece(*given)

        return count

    check_same_bits(compiled, counting)
    assert len(called) > 10


def test_tracing_changes_no_bit(compiled: Any) -> None:
    check_same_bits(compiled, lambda piece: torch.compile(piece, fullgraph=True, backend="eager"))


def test_what_cannot_be_compiled_runs_as_it_stands(
    compiled: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_compiled, "_told", set())

    def failing(piece: RowsFunction) -> RowsFunction:
        def fail(*given: Any) -> tuple[Any, ...]:
            raise RuntimeError("no compiler here\nat all")

        return fail

    with caplog.at_level(logging.WARNING, "hspmd_compiler"):
        check_same_bits(compiled, failing)
    assert [record.getMessage() for record in caplog.records] == [
        "a part of the program can't be compiled, and runs as it stands: no compiler here"
    ]


def test_equal_results_stay_apart() -> None:
    """A compiler may see that two sums are one; each may be added to in place later."""
    a, b, c, d = (Value(number) for number in range(4))
    segment = Segment(
        "sums",
        [SegmentInput(InputKind.MICRO, a), SegmentInput(InputKind.MICRO, b)],
        [LocalRow(c, "aten.add.Tensor", (a, b), {}), LocalRow(d, "aten.add.Tensor", (a, b), {})],
        [SegmentOutput(OutputKind.GRAD, c, "c"), SegmentOutput(OutputKind.GRAD, d, "d")],
    )
    merging: Callable[[RowsFunction], RowsFunction] = lambda piece: lambda *given: (piece(*given)[0],) * 2  # noqa: E731
    run = compile_pieces(segment, [], compiler=merging)(torch.ones(2), torch.ones(2))
    with pytest.raises(StopIteration) as end:
        next(run)
    first, second = end.value.value
    first += 1
    assert torch.equal(second, torch.full((2,), 2.0))


@pytest.mark.slow
def test_compiled_by_torch_within_rounding() -> None:
    torch.manual_seed(0)
    model, batch = Classifier(), {"x": torch.randn(3, 8), "y": torch.tensor([0, 5, 2])}
    made = hspmd.compile(model, batch, strategy=ONE)
    given = made.artifact.program, {**model.state_dict()}, batch
    (loss, grads), (wanted, plain) = stepped(given, by_torch), stepped(given, None)
    assert loss == pytest.approx(wanted, rel=1e-6)
    for name, value in plain.items():
        torch.testing.assert_close(grads[name], value, rtol=1e-5, atol=1e-6)


def test_a_run_is_compiled_where_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ranks; each run of operators is called as its compiler has made it."""
    called: list[str] = []

    def counting(piece: RowsFunction) -> RowsFunction:
        return lambda *given: (called.append(""), piece(*given))[1]

    def job(engine: Engine, emit: Emit) -> None:
        loss = engine.step(hand_made.batch(0))
        emit({"loss": loss, "calls": len(called)})

    monkeypatch.setattr(making, "by_torch", counting)
    artifact = hand_made.save(tmp_path / "artifact", OptimizerConfig())
    found = []
    for arithmetic in (Arithmetic(), Arithmetic(torch_compile=True)):
        records: list[dict[str, object]] = []
        wait = Timeouts(timedelta(seconds=60), timedelta(seconds=60))
        options = StartOptions(timeouts=wait, arithmetic=arithmetic)
        launch(artifact, job, options, on_record=lambda record, of=records: of.append(dict(record)))
        found += records
    plain, compiled = found
    assert plain["loss"] == compiled["loss"] and plain["calls"] == 0
    assert compiled["calls"]
