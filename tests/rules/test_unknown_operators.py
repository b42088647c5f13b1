"""Operators without a rule: pointwise ones split, others computed whole with a warning, or refused."""

from __future__ import annotations

import logging
import random
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.cli.main import main
from hspmd_compiler.compiler import lower_graph
from hspmd_compiler.errors import RuleMissing
from hspmd_compiler.passes.deduction.computed_whole import size
from hspmd_compiler.program.kernels.kernels import kernel
from hspmd_compiler.rules.rule_book import RULES
from hspmd_compiler.rules.unknown_operators import Treatment
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

from ..training.equal_to_eager import Case as TrainingCase
from .rule_cases import pointwise
from .test_rules_brute_force import WAYS, try_one

POINTWISE = (
    "lerp.Tensor",
    "addcmul.default",
    "atan2.default",
    "hypot.default",
    "logaddexp.default",
    "celu.default",
)
WIDTH, SAMPLES = 6, 4
WITHOUT_RULE = "aten.logcumsumexp.default"


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that PyTorch does not decompose, as if no rule knew it."""
    monkeypatch.delitem(RULES, WITHOUT_RULE)


class Model(nn.Module):
    """Layers, with operators between them that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, WIDTH)) for _ in range(2)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).logcumsumexp(1)
        return nn.functional.mse_loss(x, y)


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(SAMPLES, WIDTH, generator=generator) for name in ("x", "y")}


def strategy(*micro_batches: int, sequence_parallel: bool = False) -> Strategy:
    stages = (StageSpec((0, 1), (0, 1)), StageSpec((2, 3, 4), (1, 2)))
    return Strategy((PipelineSpec(stages, micro_batches),), sequence_parallel=sequence_parallel)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the package warned of."""
    return [record.getMessage() for record in caplog.records if record.name == "hspmd_compiler"]


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_operators_split_without_a_rule(name: str) -> None:
    op = f"aten.{name}"
    assert op not in RULES
    assert torch.Tag.pointwise in kernel(op).tags  # type: ignore[attr-defined]
    draws = random.Random(0)
    for case in pointwise(op):
        for _ in range(6):
            try_one(case, draws.randrange(2**32), draws.choice(WAYS))


def test_others_are_computed_whole_and_equal_eager() -> None:
    TrainingCase.of(Model, batch()).check(strategy(SAMPLES))


class Spectral(Model):
    """A filter over frequencies, whose numbers are complex."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.linspace(0, 1, 2 * (WIDTH // 2 + 1)).view(-1, 2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.fft.irfft(torch.fft.rfft(layer(x)) * torch.view_as_complex(self.filter), n=WIDTH)
        return nn.functional.mse_loss(x, y)


def test_complex_numbers_are_widened_in_the_proof() -> None:
    TrainingCase.of(Spectral, batch()).check(strategy(SAMPLES))


def test_one_warning_an_operator_with_its_cost(caplog: pytest.LogCaptureFixture) -> None:
    graph = TrainingCase.of(Model, batch()).graph
    with caplog.at_level(logging.WARNING, "hspmd_compiler"):
        lower_graph(graph, strategy(SAMPLES), DeviceKind.CPU)
    (told,) = [text for text in warnings(caplog) if text.startswith("aten.logcumsumexp.default ")]
    assert told.startswith(
        "aten.logcumsumexp.default has no rule: every rank of its stage computes it whole, "
    )
    assert f"{2 * SAMPLES * WIDTH * 4} bytes gathered by each rank per step" in told
    assert "x = x + layer(x).logcumsumexp(1)" in told


def test_nothing_is_said_where_one_device_computes_it(caplog: pytest.LogCaptureFixture) -> None:
    graph = TrainingCase.of(Model, batch()).graph
    with caplog.at_level(logging.WARNING, "hspmd_compiler"):
        lower_graph(graph, Strategy((PipelineSpec((StageSpec((0,), (0, 2)),), (SAMPLES,)),)), DeviceKind.CPU)
    assert not warnings(caplog)


def test_refused_where_the_batch_is_split() -> None:
    graph = TrainingCase.of(Model, batch()).graph
    with pytest.raises(RuleMissing) as caught:
        lower_graph(graph, strategy(3, 1), DeviceKind.CPU)
    assert "one pipeline with one micro-batch" in caught.value.fix
    assert any("logcumsumexp(1)" in line for line in caught.value.at)


class Strided(Model):
    """Reads memory by strides, across its rows."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.layers[1](self.layers[0](x))
        return nn.functional.mse_loss(x.as_strided((SAMPLES, 5), (5, 1)), y[:, :5])


def test_strides_are_refused() -> None:
    graph = TrainingCase.of(Strided, batch()).graph
    with pytest.raises(RuleMissing, match="as_strided") as caught:
        lower_graph(graph, strategy(SAMPLES), DeviceKind.CPU)
    assert "unfold, slices, expand or diagonal" in caught.value.fix


def test_the_trace_lists_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("unknown_model")
    vars(module)["build"] = lambda: (Model(), batch())
    monkeypatch.setitem(sys.modules, "unknown_model", module)
    assert main(["trace", "unknown_model:build"]) == 0
    shown = capsys.readouterr().out.splitlines()
    line = next(line for line in shown if line.startswith("aten.logcumsumexp.default  c"))
    assert f"{Treatment.WHOLE.value}, at most 576 bytes gathered per step" in line


def test_bytes_for_people() -> None:
    assert [size(count) for count in (0, 999, 1500, 2_000_000, 3 * 10**12)] == [
        "0 bytes",
        "999 bytes",
        "1.5 kB",
        "2 MB",
        "3 TB",
    ]
