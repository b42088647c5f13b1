"""What trains otherwise than it proves is caught: who updates, what is owned, what is saved, the start."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import Artifact
from hspmd_compiler.errors import ArtifactError, VerifyError
from hspmd_compiler.models.models import ModelSource, load_model
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.program import Op, Program, Shard
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.verify.artifact import verify_artifact
from tests.verify.planted import with_rank

SIZES = {"layers": "2", "heads": "2", "hidden": "4", "seq": "4", "vocab": "6"}
STRATEGY = Strategy((P((S((0, 1), (0, 1)), S((2,), (1, 2))), (2, 1)), P((S((3,), (0, 2)),), (2,))))
CLIPPED = OptimizerConfig(weight_decay=0.1, max_grad_norm=0.05, lr=1e-2)
TIED = "transformer.wte.weight"


@cache
def source() -> ModelSource:
    return load_model("gpt2-tiny", SIZES)


@cache
def right(config: OptimizerConfig = CLIPPED) -> Artifact:
    return hspmd.compile(source(), strategy=STRATEGY, optimizer=config).artifact


def with_program(artifact: Artifact, program: Program) -> Artifact:
    assert program != artifact.program
    return replace(artifact, program=program)


def without_update(artifact: Artifact, op: Op = Op.OPTIMIZER) -> Artifact:
    own = artifact.program.ranks[1]
    rest = [item for item in own.instructions if item.op is not op]
    return with_program(artifact, with_rank(artifact.program, own, instructions=rest))


def with_shards(change: Callable[[Shard], Shard]) -> Callable[[Artifact], Artifact]:
    """The same change of a parameter that two ranks split, on every rank."""

    def planted(artifact: Artifact) -> Artifact:
        ranks = [
            replace(own, shards=[change(old) if old.name == TIED else old for old in own.shards])
            for own in artifact.program.ranks
        ]
        return with_program(artifact, replace(artifact.program, ranks=ranks))

    return planted


def first_values(change: Callable[[dict[str, Any]], object]) -> Callable[[Artifact], Artifact]:
    """One call of the recorded initialisation, changed."""

    def planted(artifact: Artifact) -> Artifact:
        init: Any = deepcopy(artifact.init)
        step = next(step for step in reversed(init["steps"]) if step["op"] == "aten.normal_.default")
        change(step)
        return replace(artifact, init=init)

    return planted


def reseeded(artifact: Artifact) -> Artifact:
    init: Any = deepcopy(artifact.init)
    init["steps"].insert(0, {"op": "reseed", "args": [7]})
    return replace(artifact, init=init)


def without_names(artifact: Artifact) -> Artifact:
    return with_program(artifact, replace(artifact.program, aliases={}))


def of_other_inputs(artifact: Artifact) -> Artifact:
    inputs = {name: (shape, "int32") for name, (shape, _) in artifact.program.inputs.items()}
    return with_program(artifact, replace(artifact.program, inputs=inputs))


FAULTS: dict[str, tuple[Callable[[Artifact], Artifact], str]] = {
    "a rank that does not update": (without_update, "deadlock"),
    "a rank without a loss": (lambda right: without_update(right, Op.LOSS), "deadlock"),
    "nothing owned": (with_shards(lambda old: replace(old, owned=())), "own 0 of 24 elements"),
    "owned by all": (with_shards(lambda old: replace(old, owned=old.boxes)), "of 24 elements"),
    "owned twice": (with_shards(lambda old: replace(old, owned=old.owned * 2)), "own 48 of 24 elements"),
    "not saved": (with_shards(lambda old: replace(old, persistent=False)), "persistent False"),
    "not trained": (with_shards(lambda old: replace(old, trainable=False)), "trainable False"),
    "a buffer": (with_shards(lambda old: replace(old, is_buffer=True)), "is_buffer True"),
    "of a narrow type": (with_shards(lambda old: replace(old, dtype="float16")), "type float16"),
    "computed in a narrow type": (with_shards(lambda old: replace(old, compute="float16")), "computed in"),
    "tied names lost": (without_names, "in the graph to transformer.wte.weight"),
    "other inputs": (of_other_inputs, "int32"),
    "another spread": (
        first_values(lambda step: step.update(args=[step["args"][0], 0.0, 0.04])),
        "start with",
    ),
    "a constant": (
        first_values(
            lambda step: step.update(op="aten.fill_.Scalar", args=[step["args"][0], 0.5], kwargs={})
        ),
        "start with",
    ),
    "another seed": (reseeded, "start with"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault: str) -> None:
    plant, told = FAULTS[fault]
    with pytest.raises(VerifyError) as error:
        verify_artifact(plant(right()), values=True, model=source())
    assert told in str(error.value)


def test_what_is_right_passes_and_says_what_was_proved() -> None:
    report = verify_artifact(right(), values=True, model=source())
    assert report.values is not None
    assert "as the model makes them from seed 0" in report.values.start
    options = report.values.to_json()["options"]
    assert isinstance(options, dict) and options["max_grad_norm"] == 0.05


class Scaled(nn.Module):
    """Layers, a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.register_buffer("kept", torch.full((4,), 0.5))
        self.register_buffer("lost", torch.full((4,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * self.kept * self.lost
        return x.square().mean()


@pytest.fixture
def live(tmp_path: Path) -> tuple[hspmd.CompiledProgram, Scaled, Path]:
    model = Scaled()
    program = hspmd.compile(model, {"x": torch.zeros(2, 4)}, strategy=STRATEGY)
    program.save(tmp_path / "live")
    return program, model, tmp_path / "live" / "weights.safetensors"


def test_stored_weights_are_those_of_the_live_model(
    live: tuple[hspmd.CompiledProgram, Scaled, Path],
) -> None:
    program, model, file = live
    report = program.verify(values=True)
    artifact = replace(program.artifact, weights=file)
    assert report.values is not None
    values = verify_artifact(artifact, values=True, model=model).values
    assert values is not None and "as in the given model" in values.start
    held = load_file(file)
    save_file(held | {"layers.0.weight": held["layers.0.weight"] + 1e-3}, file)
    with pytest.raises(VerifyError, match=r"layers\.0\.weight"):
        verify_artifact(artifact, values=True, model=model)


def test_weights_that_were_stored_are_the_start_where_the_model_is_made_again(
    live: tuple[hspmd.CompiledProgram, Scaled, Path],
) -> None:
    program, _, file = live

    def again() -> tuple[nn.Module, dict[str, Tensor]]:
        return Scaled(), {"x": torch.zeros(2, 4)}

    artifact = replace(program.artifact, weights=file)
    report = hspmd.api.verify(artifact, values=True, model=again)
    assert report.values is not None and "stored tensors, not compared" in report.values.start


def test_an_initialisation_that_can_not_be_computed_is_refused_by_its_step() -> None:
    for change in (
        lambda step: step.update(args=[3, *step["args"][1:]]),
        lambda step: step.update(args=[{}]),
        lambda step: step.update(op="aten.randn.default", args=[[1 << 20, 1 << 20]], kwargs={}),
        lambda step: step.update(op="aten.zeros.default", args=[[1 << 40]], kwargs={}),
        lambda step: step.update(op="aten.zeros.default", args=[[4]], kwargs={"device": "meta"}),
    ):
        with pytest.raises(ArtifactError, match=r"init\.json: steps\["):
            verify_artifact(first_values(change)(right()), values=True, model=source())
