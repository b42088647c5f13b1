"""Options of the optimizer: JSON both ways, errors all at once, schedules equal to transformers'."""

from __future__ import annotations

import math
import re

import pytest
import torch
from transformers import get_scheduler

from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.errors import OptionError
from hspmd_compiler.options import (
    Capture,
    LearningRateSchedule,
    OptimizerConfig,
    OptimizerName,
    Precision,
    ScheduleName,
    check_choices,
)


def test_json_both_ways() -> None:
    config = OptimizerConfig(
        name=OptimizerName.SGD,
        lr=0.5,
        momentum=0.9,
        nesterov=True,
        no_decay=("*bias", "*.norm.*"),
        max_grad_norm=math.inf,
        schedule=LearningRateSchedule(ScheduleName.COSINE, 3, 10),
    )
    assert OptimizerConfig.from_json(config.to_json()) == config
    assert OptimizerConfig.from_json({}) == OptimizerConfig()


def test_all_bad_values_at_once() -> None:
    bad = {
        "name": "lion",
        "lr": -1,
        "betas": [0.9, 1.5],
        "speed": 3,
        "schedule": {"name": "linear", "warmup_steps": -1},
    }
    with pytest.raises(OptionError) as caught:
        OptimizerConfig.from_json(bad)
    names = {name for name, _ in caught.value.details}
    assert names == {"name", "lr", "betas", "speed", "schedule.warmup_steps", "schedule.total_steps"}
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("data", [None, [], "adamw", {"schedule": 3}, {"betas": 0.9}, {"nesterov": 1}])
def test_wrong_types(data: object) -> None:
    with pytest.raises(OptionError):
        OptimizerConfig.from_json(data)


@pytest.mark.parametrize("option", ["betas", "eps"])
def test_options_of_the_other_optimizer_have_no_effect(option: str) -> None:
    value = {"betas": (0.5, 0.9), "eps": 1e-4}[option]
    with pytest.raises(OptionError, match=rf"{option} +sgd has a momentum, neither betas nor eps"):
        OptimizerConfig.of({"name": "sgd", option: value})


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(OptionError, match="nesterov"):
        OptimizerConfig(name=OptimizerName.SGD, nesterov=True)


def test_decay_by_glob() -> None:
    config = OptimizerConfig(weight_decay=0.1, no_decay=("bias", "norm"))
    assert config.decay_of("layers.0.fc.weight") == 0.1
    assert config.decay_of("layers.0.fc.bias") == 0.0
    assert config.decay_of("layers.0.norm.weight") == 0.0


@pytest.mark.parametrize(
    ("name", "theirs"), [("constant", "constant_with_warmup"), ("linear", "linear"), ("cosine", "cosine")]
)
@pytest.mark.parametrize("warmup", [0, 4])
def test_schedules_are_those_of_transformers(name: str, theirs: str, warmup: int) -> None:
    ours = LearningRateSchedule(ScheduleName(name), warmup, 11)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.25)
    reference = get_scheduler(theirs, optimizer, warmup, 11)
    config = OptimizerConfig(lr=0.25, schedule=ours)
    for step in range(12):
        assert config.lr_at(step) == pytest.approx(reference.get_last_lr()[0], rel=1e-15)
        optimizer.step()
        reference.step()


def test_choices_that_do_not_exist_are_told_together() -> None:
    choices = {"device": (DeviceKind, "gpu"), "capture": (Capture, "full"), "precision": (Precision, "fp8")}
    with pytest.raises(OptionError) as caught:
        check_choices("compile", choices)
    assert str(caught.value) == (
        "OptionError: bad compile options: device, precision\n"
        "  device    'gpu': one of cpu, cuda\n"
        "  precision 'fp8': one of model, bfloat16"
    )


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, OptimizerConfig()),
        ("sgd", OptimizerConfig(OptimizerName.SGD)),
        (OptimizerName.SGD, OptimizerConfig(OptimizerName.SGD)),
        ({"name": "sgd", "lr": 0.5}, OptimizerConfig(OptimizerName.SGD, lr=0.5)),
        (OptimizerConfig(lr=0.5), OptimizerConfig(lr=0.5)),
    ],
)
def test_what_a_user_gives_as_an_optimizer(given: object, wanted: OptimizerConfig) -> None:
    assert OptimizerConfig.of(given) == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("adam", "one of adamw, sgd"),
        ({"learning_rate": 0.1}, "learning_rate unknown key, known are name, lr"),
        (torch.optim.AdamW, "the optimizer is a AdamW"),
        (
            torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1),
            "the optimizer is a torch.optim.sgd.SGD",
        ),
    ],
)
def test_what_is_no_optimizer(given: object, words: str) -> None:
    with pytest.raises(OptionError, match=re.escape(words)):
        OptimizerConfig.of(given)


def test_texts_stand_for_members_and_one_glob_for_a_tuple() -> None:
    """A text was taken for another optimizer than the member that it names, and a glob for its letters."""
    schedule = LearningRateSchedule("cosine", 1, 9)  # type: ignore[arg-type]
    config = OptimizerConfig("adamw", no_decay="*.bias", weight_decay=0.1, schedule=schedule)  # type: ignore[arg-type]
    assert config.name is OptimizerName.ADAMW and config.schedule.name is ScheduleName.COSINE
    assert (config.decay_of("fc.bias"), config.decay_of("fc.weight")) == (0.0, 0.1)
    with pytest.raises(OptionError, match="'adam': one of adamw, sgd") as caught:
        OptimizerConfig("adam", schedule="cosine", no_decay=(3,))  # type: ignore[arg-type]
    assert {name for name, _ in caught.value.details} == {"name", "schedule", "no_decay"}
