"""An artifact is proved against the eager model, rebuilt or given; another model is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import Artifact
from hspmd_compiler.errors import ArtifactError, VerifyError
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.models.models import load_model
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.program.program import LocalRow, Segment
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.artifact import STEPS, verify_artifact
from hspmd_compiler.verify.random_batch import choices, draw_batch, ignore_some
from hspmd_compiler.verify.training import TOLERANCE

FIVE_RANKS = Strategy(
    (
        PipelineSpec((StageSpec((0, 1), (0, 1)), StageSpec((2,), (1, 2))), (2, 1)),
        PipelineSpec((StageSpec((3, 4), (0, 2)),), (3,)),
    )
)
TWO_RANKS = Strategy((PipelineSpec((StageSpec((0, 1), (0, 2)),), (2, 1)),))
ADAMW = OptimizerConfig(weight_decay=0.1, no_decay=("*.0.*",), max_grad_norm=0.05)
SGD = OptimizerConfig(OptimizerName.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)


class Frozen(nn.Module):
    """Two layers, a frozen one among them, and a parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.layers[0].bias.requires_grad_(False)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return (x.square().sum(1) * weight).mean()


def frozen_inputs() -> dict[str, Tensor]:
    return {"x": torch.zeros(2, 4), "weight": torch.ones(2)}


def artifact_of(name: str, config: OptimizerConfig = ADAMW, strategy: Strategy = FIVE_RANKS) -> Artifact:
    sizes = {"layers": "2", "heads": "4", "hidden": "32", "seq": "8", "vocab": "50"}
    args = {"layers": "2"} if name == "mlp" else sizes
    return hspmd.compile(load_model(name, args), strategy=strategy, optimizer=config).artifact


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("llama-tiny", ADAMW),
        pytest.param("gpt2-tiny", SGD, marks=pytest.mark.slow),
        pytest.param("gpt2-tiny", ADAMW, marks=pytest.mark.slow),
        ("mlp", SGD),
    ],
)
def test_five_unequal_ranks_train_like_the_model_rebuilt_from_the_manifest(
    name: str, config: OptimizerConfig
) -> None:
    report = verify_artifact(artifact_of(name, config), values=True)
    assert report.values is not None and len(report.values.steps) == STEPS
    for step in report.values.steps:
        assert step.loss.error < TOLERANCE / 1000
        assert {item.name for item in step.grads} <= {item.name for item in step.params}
        assert max(item.error for item in (*step.grads, *step.params)) < TOLERANCE


def test_a_live_model_is_given_and_its_frozen_parameter_stays() -> None:
    model = Frozen()
    program = hspmd.compile(model, frozen_inputs(), strategy=TWO_RANKS)
    report = program.verify(values=True, rows=True)
    assert report.values is not None and report.rows is not None
    names = {item.name for item in report.values.steps[0].grads}
    assert names == {"layers.0.weight", "layers.1.weight", "layers.1.bias"}
    assert len(report.values.steps[0].params) == 4
    with pytest.raises(ArtifactError, match=r"live model.*Frozen") as error:
        verify_artifact(program.artifact, values=True)
    assert "--model" in str(error.value)


def test_a_model_that_can_not_be_imported_is_told() -> None:
    def local() -> tuple[nn.Module, dict[str, Tensor]]:
        return Frozen(), frozen_inputs()

    artifact = hspmd.compile(local, strategy=TWO_RANKS).artifact
    with pytest.raises(ArtifactError, match="without an importable name") as error:
        verify_artifact(artifact, values=True, trust_model=True)
    assert "--model" in str(error.value) and error.value.exit_code == 2


def test_another_model_is_refused_with_every_difference() -> None:
    artifact = artifact_of("mlp", strategy=TWO_RANKS)
    other = load_model("mlp", {"layers": "3", "classes": "5"})
    with pytest.raises(ArtifactError, match="another model: 4 tensors differ") as error:
        verify_artifact(artifact, values=True, model=other)
    text = str(error.value)
    assert "float32[16, 64] in the artifact, float32[64, 64] in the model" in text
    assert "net.4.weight" in text and "only in the model" in text and error.value.exit_code == 2


def test_tied_weights_of_the_artifact_are_tied_in_the_model() -> None:
    artifact = artifact_of("gpt2-tiny", strategy=TWO_RANKS)
    model = load_model(
        "gpt2-tiny", {"layers": "2", "heads": "4", "hidden": "32", "seq": "8", "vocab": "50"}
    ).build()[0]
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
    with pytest.raises(ArtifactError, match=r"tied to transformer\.wte\.weight in the artifact only"):
        verify_artifact(artifact, values=True, model=model)


def test_a_part_of_an_artifact_is_not_verified() -> None:
    artifact = artifact_of("mlp", strategy=TWO_RANKS)
    part = replace(artifact, program=replace(artifact.program, ranks=artifact.program.ranks[:1]), graph=None)
    with pytest.raises(ArtifactError, match="1 of 2 ranks"):
        verify_artifact(part)


def test_a_wrong_gradient_is_named() -> None:
    artifact = artifact_of("mlp", strategy=TWO_RANKS)

    def half_slope(row: LocalRow) -> LocalRow:
        if row.op != "aten.threshold_backward.default":
            return row
        return LocalRow(row.out, "aten.mul.Tensor", (row.args[0], 0.5), {}, row.logical)

    def segment(old: Segment) -> Segment:
        return replace(old, rows=[half_slope(row) for row in old.rows])

    classes = {
        name: replace(shared, segments=[segment(old) for old in shared.segments])
        for name, shared in artifact.program.classes.items()
    }
    broken = replace(artifact, program=replace(artifact.program, classes=classes))
    with pytest.raises(VerifyError, match="gradients of step 1") as error:
        verify_artifact(broken, values=True)
    assert "net.0.weight" in str(error.value) and "net.0.bias" in str(error.value)


def test_the_report_is_for_scripts_and_for_people() -> None:
    artifact = artifact_of("mlp", strategy=TWO_RANKS)
    plain = verify_artifact(artifact)
    assert plain.values is None and plain.rows is None and "values" not in plain.to_json()
    report = verify_artifact(artifact, values=True, rows=True)
    data = json.loads(json.dumps(report.to_json()))
    assert data["values"]["equal"] and data["rows"]["equal"] and data["world_size"] == 2
    assert len(data["values"]["steps"]) == STEPS and data["values"]["optimizer"] == "adamw"
    assert data["rows"]["compared"] + sum(data["rows"]["left_out"].values()) == data["rows"]["rows"]
    page = StringIO()
    Console(file=page, width=120).print(report.rendered())
    assert "equal: loss, 4 gradients and 4 parameters" in page.getvalue()


def drawn(graph: LogicalGraph, examples: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    found = draw_batch(graph, examples, torch.Generator().manual_seed(0))
    return {name: each.values for name, each in found.items()}


def test_a_batch_is_legal_for_its_model() -> None:
    model, examples = load_model(
        "gpt2-tiny", {"layers": "1", "hidden": "32", "seq": "6", "vocab": "9"}
    ).build()
    graph = trace(model, examples, batch=40)
    batch = drawn(graph, examples)
    assert set(batch["input_ids"].unique().tolist()) == set(range(9))
    assert set(batch["labels"].unique().tolist()) == {-100, *range(9)}
    counts = (batch["labels"] == -100).sum(1)
    assert counts[0] == 0 and len(counts.unique()) >= 4


class Masked(nn.Module):
    """A mask that is multiplied, and tokens that are both looked up and targets."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens: Tensor, mask: Tensor, x: Tensor) -> Tensor:
        hidden = self.table(tokens) * mask[:, None] + x
        return nn.functional.cross_entropy(self.head(hidden), tokens)


def test_integers_that_are_no_indexes_come_from_the_examples() -> None:
    examples = {
        "tokens": torch.zeros(3, dtype=torch.int64),
        "mask": torch.tensor([5, 6, 7]),
        "x": torch.zeros(3, 5),
    }
    graph = trace(Masked(), examples, batch=8)
    assert choices(graph, graph.inputs["mask"].row) is None
    batch = drawn(graph, examples)
    assert set(batch["mask"].tolist()) == {5, 6, 7}
    assert batch["tokens"].min() >= 0 and batch["tokens"].max() == 2
    assert batch["x"].std() > 0.5
    assert drawn(graph, None)["mask"].tolist() == [1] * 8


def test_targets_of_whole_samples_are_ignored() -> None:
    found = ignore_some(torch.arange(40), -1, torch.Generator().manual_seed(0))
    assert found[0] == 0 and 2 < int((found == -1).sum()) < 25
