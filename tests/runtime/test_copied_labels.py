"""A model that text would train to copy is refused: inputs and labels of text are the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, pad

import hspmd_compiler as hspmd
from hspmd_compiler.errors import RunError
from hspmd_compiler.runtime.batches.copied_labels import check_labels
from hspmd_compiler.runtime.batches.sources import text_source
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.transport import Transport
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.single_device import single_device_program

VOCABULARY, BATCH, LENGTH = 256, 2, 8
MASKED = 1

Loss = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Tensor]


def compared(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def in_place(model: Callable[[Tensor], Tensor], ids: Tensor, labels: Tensor) -> Tensor:
    return compared(model(ids), labels)


def picked(model: Callable[[Tensor], Tensor], ids: Tensor, labels: Tensor) -> Tensor:
    return -log_softmax(model(ids), -1).gather(-1, labels[..., None]).mean()


def tokens_first(model: Callable[[Tensor], Tensor], ids: Tensor, labels: Tensor) -> Tensor:
    return compared(model(ids.t()), labels.t())


def without_padding(model: Callable[[Tensor], Tensor], ids: Tensor, labels: Tensor) -> Tensor:
    return compared(model(ids), labels.masked_fill(labels == 0, -100))


def decoder(model: Callable[[Tensor], Tensor], ids: Tensor, labels: Tensor) -> Tensor:
    """What it decodes is shifted, what it encodes is the answer."""
    return compared(model(ids) + model(pad(labels[:, :-1], (1, 0))), labels)


def shifts_labels(model: Callable[[Tensor], Tensor], ids: Tensor, labels: Tensor) -> Tensor:
    return compared(model(ids), pad(labels, (0, 1), value=-100)[:, 1:])


def drops_ends(model: Callable[[Tensor], Tensor], ids: Tensor, labels: Tensor) -> Tensor:
    return compared(model(ids)[:, :-1], labels[:, 1:])


def shifts_inputs(model: Callable[[Tensor], Tensor], ids: Tensor, labels: Tensor) -> Tensor:
    return compared(model(pad(ids[:, :-1], (1, 0))), labels)


def hides_inputs(model: Callable[[Tensor], Tensor], ids: Tensor, labels: Tensor) -> Tensor:
    return compared(model(ids.masked_fill(ids % 3 == 0, MASKED)), labels)


class Language(nn.Module):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, VOCABULARY)
        self.loss = loss

    def logits(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return cast(Tensor, self.head(x))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.logits, input_ids, labels)


def batch() -> dict[str, Tensor]:
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids.clone()}


class Alone:
    """A transport of one rank, as far as it is asked here."""

    def call(self, name: str, meets: bool = True) -> nullcontext[None]:
        return nullcontext()

    def gather_objects(self, value: object) -> list[object]:
        return [value]


def check(loss: Loss) -> None:
    program = single_device_program(trace(Language(loss), batch(), batch=BATCH))
    (shared,) = program.classes.values()
    check_labels(shared, cast(Transport, cast(Any, Alone())), "input_ids", "labels")


@pytest.mark.parametrize("loss", [in_place, picked, tokens_first, without_padding, decoder])
def test_a_model_that_would_copy_is_refused(loss: Loss) -> None:
    with pytest.raises(RunError, match="copy its input") as caught:
        check(loss)
    assert "CausalLM" in caught.value.fix


@pytest.mark.parametrize("loss", [shifts_labels, drops_ends, shifts_inputs, hides_inputs])
def test_a_model_that_shifts_or_hides_is_taken(loss: Loss) -> None:
    check(loss)


def test_no_stage_sees_both(tmp_path: Path) -> None:
    """The first looks the tokens up, the last compares them."""
    stages = (StageSpec((0,), (0, 1)), StageSpec((1,), (1, 2)))
    program = hspmd.compile(
        lambda: (Language(in_place), batch()), strategy=Strategy((PipelineSpec(stages, (1, 1)),))
    )
    program.save(tmp_path / "artifact")
    text = tmp_path / "text"
    text.write_text("so much text that it fills a batch")

    def job(engine: Engine, emit: Emit) -> None:
        text_source(engine, [text])

    with pytest.raises(RunError, match="copy its input"):
        launch(tmp_path / "artifact", job)
