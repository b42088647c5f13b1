"""Several strategies compiled together: the programs of each alone, traced once, with plans between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler import compiler
from hspmd_compiler.artifact.bundle import read_bundle
from hspmd_compiler.cli.main import main
from hspmd_compiler.compiled_bundle import CompiledBundle
from hspmd_compiler.errors import HspmdError
from hspmd_compiler.models.models import load_model
from hspmd_compiler.program.switch_plan import SwitchScope
from hspmd_compiler.strategy.formats.read import read_strategy
from tests.bundles.samples import STRATEGIES

Expect = Callable[[str, str], None]
TWO = {name: STRATEGIES[name] for name in ("narrow", "deep")}


class TokenModel(nn.Module):
    """Takes sequences of any length."""

    def __init__(self, width: int = 8, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.table = nn.Embedding(16, width, dtype=dtype)
        self.layers = nn.ModuleList(nn.Linear(width, width, dtype=dtype) for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return hidden.square().mean()


def tokens(length: int = 6) -> tuple[nn.Module, dict[str, Tensor]]:
    return TokenModel(), {"ids": torch.zeros(2, length, dtype=torch.int64)}


def wider() -> tuple[nn.Module, dict[str, Tensor]]:
    return TokenModel(12, torch.float64), {"ids": torch.zeros(2, 6, dtype=torch.int64)}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch of each trace that is made."""
    batches: list[int] = []
    trace = compiler.trace_graph

    def counted(model: nn.Module, inputs: Any, batch: int, *rest: Any, **named: Any) -> Any:
        batches.append(batch)
        return trace(model, inputs, batch, *rest, **named)

    monkeypatch.setattr(compiler, "trace_graph", counted)
    return batches


def test_each_is_what_it_is_alone_and_one_trace_serves_all(tmp_path: Path, traced: list[int]) -> None:
    source = load_model("mlp")
    bundle = hspmd.compile_bundle(source, strategies=STRATEGIES, optimizer="sgd")
    assert traced == [4]
    alone = {name: hspmd.compile(source, strategy=form, optimizer="sgd") for name, form in STRATEGIES.items()}
    assert list(bundle.artifacts) == list(alone)
    for name, program in alone.items():
        assert bundle.artifacts[name] == program.artifact
    bundle.save(tmp_path / "all")
    alone["deep"].save(tmp_path / "deep")
    for path in (tmp_path / "deep").rglob("*.json"):
        assert (
            path.read_bytes()
            == (tmp_path / "all" / "deep" / path.relative_to(tmp_path / "deep")).read_bytes()
        )
    read = read_bundle(tmp_path / "all")
    assert (read.devices, read.home) == ((0, 1, 2, 5), None)
    pairs = [(plan.source, plan.target) for plan in bundle.plans]
    assert len(pairs) == 6 and all(read.plan(*pair) == bundle.plan(*pair) for pair in pairs)


def test_anchors_and_batches_of_their_own_are_traced_of_their_own(traced: list[int]) -> None:
    larger = {**STRATEGIES["deep"], "accumulation": 2}
    bundle = hspmd.compile_bundle("mlp", strategies=[*map(_named, TWO.items()), _named(("larger", larger))])
    assert traced == [4, 8]
    assert [artifact.program.batch for artifact in bundle.artifacts.values()] == [4, 4, 8]


def _named(item: tuple[str, dict[str, object]]) -> hspmd.BundleEntry:
    name, form = item
    return hspmd.BundleEntry(read_strategy({**form, "name": name}))


def test_plans_are_those_that_are_asked_for() -> None:
    bundle = hspmd.compile_bundle("mlp", strategies=STRATEGIES, switch="deep:wide, wide:narrow", home="deep")
    found = [(plan.source, plan.target, plan.scope) for plan in bundle.plans]
    assert found == [
        ("deep", "wide", SwitchScope.STATE),
        ("wide", "narrow", SwitchScope.STATE),
        ("deep", "narrow", SwitchScope.PARAMS),
        ("narrow", "deep", SwitchScope.GRADS),
        ("deep", "wide", SwitchScope.PARAMS),
        ("wide", "deep", SwitchScope.GRADS),
    ]
    kinds = {kind for each in bundle.plan("deep", "wide").classes for kind in each.kinds}
    assert kinds == {"value", "exp_avg", "exp_avg_sq"}


def test_a_strategy_has_inputs_of_its_own(tmp_path: Path, traced: list[int]) -> None:
    """Sequences of other lengths: the same parameters, so that a switch is possible."""
    long = hspmd.BundleEntry(TWO["deep"], example_inputs={"ids": torch.zeros(1, 10, dtype=torch.int64)})
    bundle = hspmd.compile_bundle(tokens, strategies={"short": TWO["narrow"], "long": long})
    shapes = [of.program.inputs["ids"][0] for of in bundle.artifacts.values()]
    assert shapes == [(4, 6), (4, 10)] and traced == [4, 4]
    bundle.save(tmp_path / "out")
    assert read_bundle(tmp_path / "out").artifact("long").program.inputs["ids"][0] == (4, 10)
    assert main(["verify", str(tmp_path / "out"), "--values", "--model", f"{__name__}:tokens"]) == 0


def test_a_live_model_is_saved_with_each(tmp_path: Path) -> None:
    model, inputs = tokens()
    bundle = hspmd.compile_bundle(model, inputs, strategies=TWO)
    bundle.save(tmp_path / "out")
    weights = [(tmp_path / "out" / name / "weights.safetensors").read_bytes() for name in TWO]
    assert weights[0] == weights[1]


MISTAKES: dict[str, Callable[[], CompiledBundle]] = {
    "switches": lambda: hspmd.compile_bundle(
        "mlp", strategies=TWO, switch="narrow:deep,narrow:deep,deep,:deep,deep:deep,wide:narrow", home="low"
    ),
    "names": lambda: hspmd.compile_bundle("mlp", strategies={"a/b": TWO["deep"], "ok": TWO["narrow"]}),
    "the same name twice": lambda: hspmd.compile_bundle("mlp", strategies=["a/s.yaml", "b/s.yaml"]),
    "no name": lambda: hspmd.compile_bundle("mlp", strategies=list(TWO.values())),
    "no strategy": lambda: hspmd.compile_bundle("mlp", strategies={"deep": TWO["deep"], "odd": 3}),  # type: ignore[dict-item]
    "none at all": lambda: hspmd.compile_bundle("mlp", strategies={}),
    "several to compile": lambda: hspmd.compile("mlp", strategy=list(TWO.values())),  # type: ignore[arg-type]
    "other models": lambda: hspmd.compile_bundle(
        tokens, strategies={"deep": TWO["deep"], "odd": hspmd.BundleEntry(TWO["narrow"], model=wider)}
    ),
}


def test_mistakes_are_told(expect: Expect) -> None:
    told = []
    for name, compiled in MISTAKES.items():
        with pytest.raises(HspmdError) as found:
            compiled()
        assert found.value.exit_code == 2
        told.append(f"{name}\n{found.value}\n")
    expect("cli/bundle_mistakes", "\n".join(told))
