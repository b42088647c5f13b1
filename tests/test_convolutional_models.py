"""Models of convolutions under unequal strategies: loss and gradients are those of one device."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.passes.split_units import find_split_groups
from hspmd_compiler.strategy import PipelineSpec as P
from hspmd_compiler.strategy import StageSpec as S
from hspmd_compiler.strategy import Strategy

from .equal_to_eager import Case

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


MODELS = {"filters": Filters}


@cache
def case_of(model: str) -> Case:
    """The model traced once."""
    return Case.of(MODELS[model], images())


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
@pytest.mark.parametrize("model", list(MODELS))
def test_equals_one_device(model: str, strategy: str) -> None:
    case = case_of(model)
    case.check(strategies(len(case.graph.layers))[strategy])


def test_channels_are_split_between_two_convolutions() -> None:
    groups = find_split_groups(case_of("filters").graph)
    split = {(member.param, member.dim) for group in groups for member in group.members}
    assert ("stem.weight", 0) in split and ("features.0.weight", 1) in split
    chain = ("features.2.weight", 0), ("features.4.weight", 0), ("features.5.weight", 0)
    assert set(chain) <= split
