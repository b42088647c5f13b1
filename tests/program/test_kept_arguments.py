"""What PyTorch leaves out of calls that a mode sees is in the graph, and in what proofs compare it with."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.eager import eager_model, eager_step


class Weighted(nn.Module):
    """A loss with a weight for each element."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return functional.l1_loss(self.out(x), x, weight=w)


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.rand(3, 4, generator=generator) for name in ("x", "w")}


def test_the_weight_of_an_l1_loss_is_traced() -> None:
    graph = trace(Weighted(), batch(), batch=3)
    assert any(
        graph.inputs["w"].row in [ref.id for ref in row.args if hasattr(ref, "id")] for row in graph.rows
    )


def test_the_weight_of_an_l1_loss_is_in_the_reference() -> None:
    model, given = Weighted(), batch()
    wide = {name: value.double() for name, value in given.items()}
    reference = eager_step(eager_model(Weighted, model.state_dict(), True), given, True)
    assert reference.loss == float(model.double()(**wide).detach())
