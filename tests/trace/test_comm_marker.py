"""`comm` is an identity in eager, and stays in both halves of a traced graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hspmd_compiler.errors import AnnotationError
from hspmd_compiler.ir.comm_marker import comm
from hspmd_compiler.ir.graph import Phase
from hspmd_compiler.ir.own_names import COMM, COMM_BACKWARD, is_marker
from hspmd_compiler.trace.tracer import trace


class Marked(nn.Module):
    """Two linear layers with a marker between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(comm(self.first(x), "[0,1] <S1x2>")).pow(2).mean()


def test_identity_in_eager() -> None:
    x = torch.ones(3, requires_grad=True)
    assert comm(x, "[0,1] <S0x2>") is x


def test_kept_in_both_halves() -> None:
    graph = trace(Marked(), {"x": torch.ones(2, 4)}, batch=3)
    markers = [row for row in graph.rows if is_marker(row.op)]
    assert [(row.op, row.phase, row.args[1]) for row in markers] == [
        (COMM, Phase.FORWARD, "[0,1] <S1x2>"),
        (COMM_BACKWARD, Phase.BACKWARD, "[0,1] <S1x2>"),
    ]
    assert all(row.shape == (3, 8) for row in markers)


def test_annotation_is_text() -> None:
    with pytest.raises(AnnotationError, match="annotation of type int"):
        comm(torch.ones(3), 3)  # type: ignore[arg-type]
