"""What a program would save has the names of the model's own state dict."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.trace.tracer import trace

from ..training.training_cases import program_for


class Model(nn.Module):
    """A tied weight, a saved buffer, and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("kept", torch.ones(4))
        self.register_buffer("made", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.second(self.first(x) * self.kept) + self.made).pow(2).mean()


def test_saved_names() -> None:
    graph = trace(Model(), {"x": torch.ones(2, 4)}, batch=2)
    program = program_for(graph, Strategy((PipelineSpec((StageSpec((0, 1), (0, 1)),), (2,)),)))
    for own in program.ranks:
        saved = {shard.name for shard in own.shards if shard.persistent}
        names = {alias for alias, name in program.aliases.items() if name in saved}
        assert names == Model().state_dict().keys()
