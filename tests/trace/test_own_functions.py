"""Backward passes of the model's own are what is compiled; where they can't be, they are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hspmd_compiler.errors import TraceError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.trace.blocks.trace_step import trace_step
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.eager import whole_state
from hspmd_compiler.verify.reference import Reference
from hspmd_compiler.verify.training import compare_training
from tests.training.training_cases import program_for

WIDTH = 6
UNEQUAL = Strategy((P((S((0, 1), (0, 1), (2, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (2,))))
SGD = OptimizerConfig(name=OptimizerName.SGD, lr=0.1)


class Straight(torch.autograd.Function):
    """Rounds, with the gradient of what it was given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Reversed(torch.autograd.Function):
    """Leaves a value as it is, and turns its gradient round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, much: float) -> Tensor:
        ctx.much = much
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return -ctx.much * grad * x.cos(), None


class Doubled(torch.autograd.Function):
    """An exponential whose gradient is twice the right one, by its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return 2 * grad * y


class Own(nn.Module):
    """Two layers with a function behind each."""

    def __init__(self, use: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.use = use

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.use(layer(x))
        return functional.mse_loss(x, y)


def straight(x: Tensor) -> Tensor:
    return Straight.apply(3 * x) / 3  # type: ignore[no-any-return, no-untyped-call]


def reversed_(x: Tensor) -> Tensor:
    return Reversed.apply(x, 0.3)  # type: ignore[no-any-return, no-untyped-call]


def doubled(x: Tensor) -> Tensor:
    return Doubled.apply(x.tanh())  # type: ignore[no-any-return, no-untyped-call]


def dropped(x: Tensor) -> Tensor:
    return functional.dropout(straight(x), 0.2)


def hooked(x: Tensor) -> Tensor:
    value = (x + 1).mul_(2)
    value.register_hook(lambda grad: grad * 0.5)  # type: ignore[no-untyped-call]
    return value


def batch() -> dict[str, Tensor]:
    drawn = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))
    return {"x": drawn[0], "y": drawn[1]}


def changed(x: Tensor) -> Tensor:
    return straight(x).add_(1)


@pytest.mark.parametrize("use", [straight, reversed_, doubled, dropped])
def test_their_gradients_are_compiled(use: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = Own(use)
    state = {name: value.detach().clone() for name, value in whole_state(model).items()}
    program = program_for(trace_step(model, batch(), batch=5).graph, UNEQUAL)
    compare_training(program, Reference(lambda: Own(use), state, None), (batch(),), SGD)


@pytest.mark.parametrize(("use", "name"), [(changed, "Straight"), (hooked, "Tensor.register_hook")])
def test_what_an_export_would_lose_is_refused(use: Callable[[Tensor], Tensor], name: str) -> None:
    with pytest.raises(TraceError, match=f"backward pass of {name} can't be traced"):
        trace_step(Own(use), batch(), batch=5)
    with pytest.raises(TraceError, match=f"backward pass of {name} can't be traced"):
        trace(Own(use), batch(), batch=5)


def test_hooks_on_gradients_are_refused() -> None:
    model = Own(torch.tanh)
    model.layers[0].weight.register_hook(lambda grad: grad.clamp(-1, 1))
    model.layers[1].register_full_backward_hook(lambda *_: None)
    with pytest.raises(TraceError) as caught:
        trace_step(model, batch(), batch=5)
    assert "layers.0.weight" in str(caught.value) and "layers.1 " in str(caught.value)


def test_torch_has_its_own_calls_back() -> None:
    before = torch.autograd.Function.__dict__["apply"], torch.Tensor.register_hook
    with pytest.raises(TraceError):
        trace(Own(straight), batch(), batch=5)
    assert (torch.autograd.Function.__dict__["apply"], torch.Tensor.register_hook) == before
