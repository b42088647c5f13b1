"""Complex parameters train as in torch, whose AdamW takes their two parts for two real numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import TraceError, VerifyError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.runtime.batches.data import FactoryData
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.saved.training_state import load_state, save_state
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import Timeouts
from hspmd_compiler.runtime.train import train
from hspmd_compiler.verify.equality import check_equal, differences
from hspmd_compiler.verify.training import EagerUpdate

from ..training.test_end_to_end_gloo import PATIENCE

SAMPLES, WIDTH = 6, 8
ADAMW = OptimizerConfig(lr=0.05, weight_decay=0.1, eps=1e-4, max_grad_norm=0.5)
SGD = OptimizerConfig(
    OptimizerName.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, max_grad_norm=0.5
)


class Rotated(nn.Module):
    """Complex parameters as a matrix, conjugate, as one number, as pairs, frozen, and without elements."""

    def __init__(self) -> None:
        super().__init__()
        half = WIDTH // 2
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.turn = nn.Parameter(torch.randn(half, half, dtype=torch.cfloat) * 0.3)
        self.back = nn.Parameter((torch.randn(half, half, dtype=torch.cfloat) * 0.3).t())
        self.scale = nn.Parameter(torch.randn((), dtype=torch.cfloat))
        self.pairs = nn.Parameter(torch.randn(half, 2))
        self.fixed = nn.Parameter(torch.randn(half, dtype=torch.cfloat), requires_grad=False)
        self.empty = nn.Parameter(torch.zeros(0, dtype=torch.cfloat))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            z = torch.view_as_complex(layer(x).view(-1, WIDTH // 2, 2)) @ self.turn
            z = (z @ self.back.conj() * self.scale + torch.view_as_complex(self.pairs)) * self.fixed
            x = torch.view_as_real(z + self.empty.sum()).flatten(1)
        return nn.functional.mse_loss(x, y)


def build() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Rotated(), batch(0)


def batch(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {key: torch.randn(SAMPLES, WIDTH, generator=generator) for key in ("x", "y")}


def strategy(zero: int = 0, pipelines: int = 2) -> dict[str, object]:
    made = [
        {"stages": [{"devices": [0, 1], "layers": 2}], "micro_batches": [2, 1] if pipelines == 2 else [6]},
        {"stages": [{"devices": [2], "layers": 2}], "micro_batches": [3]},
    ]
    return {"pipelines": made[:pipelines], "zero": zero}


@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=["adamw", "sgd"])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_equal_to_torch(zero: int, optimizer: OptimizerConfig) -> None:
    """Losses, gradients and parameters of five steps, and every value inside."""
    model, inputs = build()
    program = hspmd.compile(model, inputs, strategy=strategy(zero), optimizer=optimizer)
    program.verify(values=True, rows=zero == 0)


@pytest.mark.parametrize("part", [1, 1j])
def test_no_part_of_a_number_is_overlooked(part: complex) -> None:
    wanted = torch.randn(3, dtype=torch.complex128)
    found = wanted.clone()
    found[1] += 1e-3 * part
    with pytest.raises(VerifyError, match="1 of 1 tensors differ"):
        check_equal(differences({"w": found}, {"w": wanted}, 0.0), 1e-10, "parameters")


def batches(epoch: int) -> Iterator[dict[str, Tensor]]:
    return (batch(step) for step in range(4))


def test_processes_train_like_torch_and_go_on_elsewhere(tmp_path: Path) -> None:
    """Two steps under ZeRO-3 on three ranks, two more from the file on two tensor-parallel ranks."""
    model, inputs = build()
    for name, plan in (("first", strategy(3)), ("second", strategy(0, pipelines=1))):
        hspmd.compile(model, inputs, strategy=plan, optimizer=ADAMW).save(tmp_path / name)
    update = EagerUpdate(ADAMW, model)
    losses = []
    for step in range(4):
        model.zero_grad()
        loss = model(**batch(step))
        loss.backward()
        update()
        losses.append(loss.item())
    state = tmp_path / "state.safetensors"

    def begin(engine: Engine, emit: Emit) -> None:
        data = FactoryData(batches, engine.shape)
        train(engine, data, steps=2, on_step=lambda record: emit({"loss": record.loss}))
        save_state(engine, data, state)

    def go_on(engine: Engine, emit: Emit) -> None:
        data = FactoryData(batches, engine.shape)
        load_state(engine, data, state)
        train(engine, data, steps=2, on_step=lambda record: emit({"loss": record.loss}))
        trained = engine.state_dict()
        wanted = {name: value.detach() for name, value in model.named_parameters()}
        check_equal(differences(trained, wanted, ADAMW.lr), 1e-4, "parameters")

    found: list[object] = []
    for name, job in (("first", begin), ("second", go_on)):
        options = StartOptions(timeouts=Timeouts(PATIENCE, PATIENCE))
        launch(tmp_path / name, job, options, on_record=lambda record: found.append(record["loss"]))
    assert found == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.complex128, torch.float8_e4m3fn])
def test_types_that_no_file_holds_are_refused(dtype: torch.dtype) -> None:
    """Safetensors has no complex128, and programs no eight-bit fractions."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.scale = nn.Parameter(torch.ones(WIDTH).to(dtype), requires_grad=dtype.is_complex)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.mse_loss(self.layer(x) * self.scale.to(torch.cfloat).real, y)

    with pytest.raises(TraceError, match="of a type that can't be kept") as caught:
        hspmd.compile(Scaled(), batch(0), strategy=strategy(pipelines=1))
    assert ("scale", str(dtype).removeprefix("torch.")) in caught.value.details


def test_a_conjugate_parameter_is_saved_as_such(tmp_path: Path) -> None:
    """PyTorch marks the memory as conjugate; a file has no such mark."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(WIDTH, dtype=torch.cfloat).conj())

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.mse_loss((x * self.scale).real, y)

    model = Scaled()
    plan = {"pipelines": [{"stages": [{"devices": [0], "layers": 1}], "micro_batches": [SAMPLES]}]}
    hspmd.compile(model, batch(0), strategy=plan).save(tmp_path / "one")
    engine = hspmd.load(tmp_path / "one")
    assert torch.equal(engine.state_dict()["scale"], model.scale.detach())
    engine.transport.close()
