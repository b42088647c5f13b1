"""Switches are proved: every element comes once, no bit changes, and training goes on as on one device."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.cli.main import main
from hspmd_compiler.compiled_bundle import CompiledBundle
from hspmd_compiler.errors import VerifyError
from hspmd_compiler.program.switch_plan import SwitchClass, SwitchPlan, SwitchScope
from hspmd_compiler.runtime.switching import carry
from hspmd_compiler.verify.switching import messages
from hspmd_compiler.verify.switching.coverage import check_coverage
from hspmd_compiler.verify.switching.strategies import ProvenStrategies, tour
from tests.bundles.samples import STRATEGIES

Expect = Callable[[str, str], None]
Form = dict[str, Any]


class Counted(nn.Module):
    """Has buffers of several kinds, one that a step changes, and a parameter of several names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.layers[3].weight = self.layers[0].weight
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scale", torch.linspace(1, 2, 6), persistent=False)
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.count.add_(1)
        x = x * self.scale * self.frozen / (1 + self.count)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(x, y)


def counted() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Counted(), {"x": torch.zeros(2, 6), "y": torch.zeros(2, 6)}


def with_zero(*levels: int) -> dict[str, Form]:
    return {
        name: {**form, "zero": level} for (name, form), level in zip(STRATEGIES.items(), levels, strict=True)
    }


@pytest.fixture(scope="module")
def bundle() -> CompiledBundle:
    return hspmd.compile_bundle("mlp", strategies=STRATEGIES, home="wide")


def test_every_switch_is_proved(bundle: CompiledBundle) -> None:
    report = bundle.verify(values=True)
    assert set(report.strategies) == set(STRATEGIES)
    assert [report.bits[plan.source, plan.target, plan.scope].tensors > 0 for plan in bundle.plans] == [
        True
    ] * 10
    told: Any = report.to_json()
    assert report.curve is not None
    assert {step.strategy for step in report.curve.steps} == set(STRATEGIES)
    assert sum(step.by_plan for step in report.curve.steps) == 6
    for plan, row in zip(bundle.plans, told["switches"], strict=True):
        moved = sum((move.high - move.low) * of.element_bytes for of in plan.classes for move in of.moves)
        assert (row["source"], row["target"], row["moved_bytes"]) == (plan.source, plan.target, moved)
        assert row["peak_bytes"] >= row["before_bytes"]


CASES: dict[str, tuple[dict[str, Form], dict[str, Any]]] = {
    "masters and ZeRO 3": (with_zero(3, 0, 1), {"precision": "bfloat16", "home": "narrow"}),
    "masters and ZeRO 2": (with_zero(2, 0, 3), {"precision": "bfloat16", "home": "wide"}),
    "ZeRO 3, momentum, clipped": (
        with_zero(3, 0, 2),
        {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "max_grad_norm": 0.1}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_all_kinds_of_state(name: str) -> None:
    """Masters, copies, moments; buffers that change and that are not saved; a parameter of two names."""
    strategies, options = CASES[name]
    model = "mlp" if "precision" in options else counted
    report = hspmd.compile_bundle(model, strategies=strategies, **options).verify(values=True)
    assert report.curve is not None and len(report.curve.steps) == 7


def test_lengths_of_their_own(tmp_path: Path) -> None:
    """Models of other arguments but the same parameters: each step beside the strategy's own model."""
    small = {"layers": "4", "hidden": "8", "features": "6", "classes": "4"}
    source, other = (hspmd_source(small), hspmd_source(small))
    entries = {
        "narrow": STRATEGIES["narrow"],
        "deep": hspmd.BundleEntry({**STRATEGIES["deep"], "accumulation": 2}, model=other),
    }
    report = hspmd.compile_bundle(source, strategies=entries).verify(values=True)
    assert report.curve is not None and [each.strategy for each in report.curve.steps] == [
        "narrow",
        "deep",
        "narrow",
    ]


def hspmd_source(args: dict[str, str]) -> Any:
    from hspmd_compiler.models.models import load_model

    return load_model("mlp", args)


def test_from_files(bundle: CompiledBundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle.save(tmp_path / "out")
    assert main(["verify", str(tmp_path / "out"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [len(said["strategies"]), len(said["switches"])] == [3, 10] and "curve" not in said
    assert main(["verify", str(tmp_path / "out"), "--values"]) == 0
    assert "narrow:deep" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "out"), "--strategy-name", "deep", "--json"]) == 0
    assert "strategies" not in json.loads(capsys.readouterr().out)


# Planted faults


def changed(
    plan: SwitchPlan, change: Callable[[SwitchClass], SwitchClass], kind: str = "value"
) -> SwitchPlan:
    """A plan with its first class of a kind that moves something changed."""
    index = next(at for at, each in enumerate(plan.classes) if each.moves and kind in each.kinds)
    classes = list(plan.classes)
    classes[index] = change(classes[index])
    return replace(plan, classes=tuple(classes))


def of_other(each: SwitchClass) -> SwitchClass:
    """Held by the other of two ranks that share the optimizer's state."""
    return replace(each, holders=tuple(3 - rank for rank in each.holders))


def of_another(each: SwitchClass) -> SwitchClass:
    """The elements of another parameter of the same shape."""
    (first, *rest) = each.parts
    odd = {"net.2.weight": "net.4.weight", "net.4.weight": "net.2.weight"}
    return replace(each, parts=(replace(first, name=odd.get(first.name, "net.9.weight")), *rest))


FAULTS: dict[str, Callable[[SwitchPlan], SwitchPlan]] = {
    "a class is left out": lambda plan: replace(plan, classes=plan.classes[1:]),
    "a part is left out": lambda plan: changed(plan, lambda each: replace(each, parts=each.parts[1:])),
    "a kind is left out": lambda plan: changed(plan, lambda each: replace(each, kinds=each.kinds[1:])),
    "a kind too many": lambda plan: changed(plan, lambda each: replace(each, kinds=(*each.kinds, "copy"))),
    "a holder that has it not": lambda plan: changed(plan, of_other, "exp_avg"),
    "a needer that needs it not": lambda plan: changed(plan, lambda each: replace(each, needers=(1, 2))),
    "other elements": lambda plan: changed(plan, of_another),
}


def test_planted_faults_of_plans_are_found(bundle: CompiledBundle, expect: Expect) -> None:
    strategies = ProvenStrategies.of({name: of.program for name, of in bundle.artifacts.items()})
    before, after = strategies.placed("wide"), strategies.placed("deep")
    moments = ("exp_avg", "exp_avg_sq")
    check_coverage(bundle.plan("wide", "deep"), before, after, moments)
    told = []
    for name, fault in FAULTS.items():
        with pytest.raises(VerifyError) as found:
            check_coverage(fault(bundle.plan("wide", "deep")), before, after, moments)
        told.append(f"{name}\n{found.value}\n")
    expect("planted/switch_plans", "\n".join(told))


def test_messages_that_do_not_match_are_found(
    bundle: CompiledBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two ranks make their messages in another order."""
    stages = messages.stages_of

    def other(plan: SwitchPlan, rank: int, *rest: Any) -> Any:
        return stages(replace(plan, classes=plan.classes[::-1]) if rank == 2 else plan, rank, *rest)

    monkeypatch.setattr(messages, "stages_of", other)
    with pytest.raises(VerifyError, match="mean other elements by the same message"):
        bundle.verify()

    def silent(plan: SwitchPlan, rank: int, *rest: Any) -> Any:
        made = stages(plan, rank, *rest)
        for stage in made.stages if rank == 1 else ():
            stage.sends.clear()
        return made

    monkeypatch.setattr(messages, "stages_of", silent)
    with pytest.raises(VerifyError, match="wait for each other"):
        bundle.verify()


def test_a_changed_bit_is_found(bundle: CompiledBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where messages are unpacked in another order than they are packed."""
    leaving = carry.leaving_rows

    def turned(*given: Any) -> list[Tensor]:
        return [row.flip(0) for row in leaving(*given)]

    monkeypatch.setattr(carry, "leaving_rows", turned)
    with pytest.raises(VerifyError, match="other bits than gathering everything and cutting it again"):
        bundle.verify(values=True)


def test_lost_steps_are_found(bundle: CompiledBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam's corrections follow how many steps were made, which an idle rank must be told."""
    from hspmd_compiler.verify.switching import curve

    class Forgetful(curve.ShardOptimizer):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, 5 if name == "steps" and value == 1 else value)

    monkeypatch.setattr(curve, "ShardOptimizer", Forgetful)
    with pytest.raises(VerifyError, match="parameters of step 2"):
        bundle.verify(values=True)


def test_a_tour_takes_every_plan_once() -> None:
    names = "abcd"
    plans = [
        SwitchPlan(one, other, SwitchScope.STATE, ()) for one in names for other in names if one != other
    ]
    taken = list(tour([*plans, SwitchPlan("a", "b", SwitchScope.PARAMS, ())]))
    assert sorted((plan.source, plan.target) for plan, _ in taken) == [(p.source, p.target) for p in plans]
    here = "a"
    for plan, follows in taken:
        assert follows == (plan.source == here)
        here = plan.target
