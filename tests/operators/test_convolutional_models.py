"""Convolutions under unequal strategies, and how nets of them are split and cut into stages.

Whole models are rows of `hspmd coverage`, which the tests of README run.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.base.comm_plan import box_volume
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.coverage.convolutional_models import TIME, UNET_SIZE, UNET_WIDTH
from hspmd_compiler.coverage.model import SAMPLES
from hspmd_compiler.coverage.registry import MODELS
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.passes.dims.split_units import find_split_groups
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy

from ..training.equal_to_eager import Case
from ..training.training_cases import program_for

BATCH, SIZE, CLASSES = 5, 16, 5


class Filters(nn.Module):
    """Every kind of convolution in a row: strided, dilated, without bias, in groups, one per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 2, stride=2)
        self.features = nn.Sequential(
            nn.Conv2d(6, 8, 3, padding=1, bias=False),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 6, 3, padding=2, dilation=2),
            nn.SiLU(),
            nn.Conv2d(6, 6, 3, groups=6),
            nn.Conv2d(6, 9, 1, groups=3),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(9, 4, 2, stride=2, output_padding=1),
        )
        self.classifier = nn.Sequential(
            nn.Linear(4 * 13 * 13, 12), nn.ReLU(inplace=True), nn.Linear(12, CLASSES)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.flatten(self.features(self.stem(x)), 1)
        return nn.functional.cross_entropy(self.classifier(x), y)


def images() -> dict[str, Tensor]:
    """Random images and classes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
    return {"x": x, "y": torch.randint(0, CLASSES, (BATCH,), generator=generator)}


@cache
def case_of_filters() -> Case:
    """The model traced once."""
    return Case.of(Filters, images())


def strategies(layers: int) -> dict[str, Strategy]:
    """Split two and three ways, samples 2:1, and two pipelines of unequal depth."""
    every, cut = (0, layers), layers // 2
    return {
        "tp2": Strategy((P((S((0, 1), every),), (BATCH,)),)),
        "tp3": Strategy((P((S((0, 1, 2), every),), (3, 2)),)),
        "dp": Strategy((P((S((0,), every),), (2, 1)), P((S((1,), every),), (2,)))),
        "unequal": Strategy(
            (
                P((S((0, 1), (0, cut)), S((2,), (cut, layers))), (2, 1)),
                P((S((3, 4, 5), every, (2, 0, 1)),), (2,)),
            )
        ),
    }


@pytest.mark.parametrize("strategy", list(strategies(2)))
def test_every_kind_of_convolution_equals_one_device(strategy: str) -> None:
    case = case_of_filters()
    case.check(strategies(len(case.graph.layers))[strategy])


def members(graph: LogicalGraph) -> list[set[tuple[str, int]]]:
    """The parameter dims of every group that is split together."""
    return [{(member.param, member.dim) for member in group.members} for group in find_split_groups(graph)]


def test_channels_are_split_between_two_convolutions() -> None:
    groups = members(case_of_filters().graph)
    assert any({("stem.weight", 0), ("features.0.weight", 1)} <= group for group in groups)
    one_per_channel = {("features.2.weight", 0), ("features.4.weight", 0)}
    assert any(one_per_channel <= group for group in groups)


def graph_of(name: str) -> LogicalGraph:
    """A model of the matrix."""
    model = next(model for model in MODELS if model.name == name)
    return trace_graph(model.build(), model.batch(torch.Generator().manual_seed(0)), SAMPLES).graph


def test_convolutions_of_vgg_are_layers_and_split_in_pairs() -> None:
    graph = graph_of("VGG19")
    assert len(graph.layers) == 19
    convolutions = [name for name in graph.layers if name.startswith("features")]
    assert len(convolutions) == 16
    groups = members(graph)
    for first, second in zip(convolutions[::2], convolutions[1::2], strict=True):
        assert {(f"{first}.weight", 0), (f"{first}.bias", 0), (f"{second}.weight", 1)} in groups


def test_skipped_values_cross_stages_directly() -> None:
    """The last step up reads what the first step down gave: one message, beside the time, three stages on."""
    graph = graph_of("diffusion U-Net")
    layers = len(graph.layers)
    bounds = [0, *(graph.layers.index(name) for name in ("down.1", "up.0", "up.1")), layers]
    stages = tuple(S((device,), pair) for device, pair in enumerate(pairwise(bounds)))
    program = program_for(graph, Strategy((P(stages, (3,)),)))
    sends = [step for step in program.ranks[0].transfers if step.sends]
    sizes = Counter((piece.peer, sum(map(box_volume, piece.boxes))) for step in sends for piece in step.sends)
    time, image, halved = 3 * TIME, 3 * UNET_WIDTH * UNET_SIZE**2, 3 * UNET_WIDTH * (UNET_SIZE // 2) ** 2
    assert sizes == {(1, time): 1, (1, halved): 1, (2, time): 1, (3, time): 1, (3, image): 1}
