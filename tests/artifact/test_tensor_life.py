"""The life of a tensor through the passes, as `hspmd inspect --tensor` tells it of an artifact."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import load
from hspmd_compiler.cli.main import main
from hspmd_compiler.pages.tensor_life import tensor_life
from hspmd_compiler.strategy.strategy import (
    Override,
    PipelineSpec,
    Recompute,
    RecomputeKind,
    StageSpec,
    Strategy,
)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(4) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.functional.mse_loss(x * self.scale, y)


STRATEGY = Strategy(
    (
        PipelineSpec(
            (StageSpec((0, 1), (0, 1)), StageSpec((2,), (1, 2))),
            (2, 1),
            (Recompute((0, 1), RecomputeKind.FULL),),
        ),
        PipelineSpec((StageSpec((3, 4), (0, 2)),), (3,)),
    ),
    overrides=(Override("layers.1.down.bias", duplicate=True),),
    zero=2,
)
INPUTS = {"x": torch.ones(2, 4), "y": torch.ones(2, 4)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "artifact"
    hspmd.compile(Model(), INPUTS, strategy=STRATEGY).save(folder)
    return folder


TENSORS = ("layers.0.up.weight", "layers.1.down.bias", "scale", "x", "%17", "%16")


def test_the_life_of_tensors(
    made: Path, expect: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a split, an overridden and a whole parameter, an input, and of two values, one made again."""
    for name in TENSORS:
        assert main(["inspect", str(made), "--tensor", name]) == 0
    expect("inspect/life", capsys.readouterr().out)
    assert main(["inspect", str(made), "--tensor", "x", "--json"]) == 0
    assert [*json.loads(capsys.readouterr().out)] == ["life"]


def test_an_artifact_of_another_version_is_told(made: Path) -> None:
    artifact = load(made)
    (life,) = tensor_life(artifact, "scale")
    program = replace(artifact.program, classes={})
    (told,) = tensor_life(replace(artifact, program=program), "scale")
    assert "another version" in str(told.rows[0]) and told.rows[1:] == life.rows


def test_the_passes_run_for_the_cluster_that_it_was_compiled_for(tmp_path: Path) -> None:
    """And for its kind of device."""
    stages = ({"devices": [0, 1, 2], "layers": 2}, {"devices": [3, 4, 5], "layers": 2})
    strategy = {"pipelines": [{"stages": stages, "micro_batches": [4, 2]}]}
    link = {"bandwidth": 1e9, "latency": 1e-5}
    nodes = [
        {"address": name, "devices": [{"count": count}], "link": link, "nic": link}
        for name, count in (("a", 2), ("b", 4))
    ]
    made = hspmd.compile("llama-tiny", strategy=strategy, cluster={"nodes": nodes}, device="cuda")
    made.save(tmp_path / "made", weights=False)
    artifact = load(tmp_path / "made")
    (life,) = tensor_life(artifact, "lm_head.weight")
    (other,) = tensor_life(replace(artifact, cluster=None), "lm_head.weight")
    assert "another version" not in str(life.rows[0])
    assert "another version" in str(other.rows[0])


def test_a_part_for_one_rank_has_no_life(made: Path, tmp_path: Path) -> None:
    hspmd.compile(Model(), INPUTS, strategy=STRATEGY).save(tmp_path / "part", rank=2)
    assert tensor_life(load(tmp_path / "part"), "scale") == []
    assert main(["inspect", str(tmp_path / "part"), "--tensor", "scale"]) == 0


@pytest.mark.parametrize("name", ["%999", "sale", "12"])
def test_a_tensor_that_is_not_there(made: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(made), "--tensor", name]) == 2
    assert f"no parameter or buffer {name!r}" in capsys.readouterr().err
