"""A real Llama and a tied GPT-2 from text files: initialised, trained and saved as eager torch does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hspmd_compiler.artifact.manifest import describe
from hspmd_compiler.artifact.store import Artifact
from hspmd_compiler.artifact.write import write
from hspmd_compiler.options import LearningRateSchedule, OptimizerConfig, ScheduleName
from hspmd_compiler.runtime.batches.data import BatchShape
from hspmd_compiler.runtime.batches.sources import text_source
from hspmd_compiler.runtime.batches.text_data import TextData, open_text
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.saved.weights_file import save
from hspmd_compiler.runtime.start.launch import StartOptions, launch
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.train import StepRecord, train
from hspmd_compiler.trace.init_record import record_factory
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.single_device import single_device_program

transformers = pytest.importorskip("transformers")

STEPS = 4
BATCH, LENGTH = 3, 16
CONFIG = OptimizerConfig(
    lr=3e-3,
    weight_decay=0.1,
    no_decay=("*norm*", "ln_1", "ln_2", "ln_f", "bias"),
    max_grad_norm=1.0,
    schedule=LearningRateSchedule(ScheduleName.COSINE, 1, 8),
)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=256, n_positions=LENGTH, use_cache=False
    )
    config.attn_pdrop = config.resid_pdrop = config.embd_pdrop = 0.0
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def compiled(build: Callable[[], nn.Module], directory: Path) -> Path:
    """The model as an artifact of one rank."""
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    recorded = record_factory(lambda: (build(), {"input_ids": ids, "labels": ids}))
    program = single_device_program(trace(recorded.model, recorded.example_inputs, batch=BATCH))
    manifest = describe({"name": build.__name__}, {}, CONFIG, program, {})
    write(directory, Artifact(manifest, program, {}, recorded.init.to_json(), {}, {}))
    return directory


def eager(build: Callable[[], nn.Module], data: TextData) -> tuple[list[float], list[float], nn.Module]:
    """Losses, gradient norms and the model after eager training."""
    torch.manual_seed(11)
    model = build()
    groups = [
        {"params": [param], "weight_decay": CONFIG.decay_of(name)} for name, param in model.named_parameters()
    ]
    optimizer = torch.optim.AdamW(groups, lr=CONFIG.lr)
    losses, norms = [], []
    for step, batch in zip(range(STEPS), data, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = CONFIG.lr_at(step)
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, model


@pytest.mark.parametrize("build", [llama, pytest.param(gpt2, marks=pytest.mark.slow)])
def test_trains_on_text_like_eager(tmp_path: Path, build: Callable[[], nn.Module]) -> None:
    directory = compiled(build, tmp_path / "artifact")
    text = Path(__file__)
    out = tmp_path / "model.safetensors"

    def job(engine: Engine, emit: Emit) -> None:
        def on_step(record: StepRecord) -> None:
            emit({"loss": record.loss, "norm": record.grad_norm, "lr": record.lr, "tokens": record.tokens})

        train(engine, text_source(engine, [text], seed=2), steps=STEPS, on_step=on_step)
        save(engine, out)
        state = engine.state_dict()
        emit({"names": sorted(state)})
        again = build()
        again.load_state_dict(state, strict=False)
        assert {*again.state_dict()} <= {*state}

    records: list[dict[str, object]] = []
    launch(directory, job, StartOptions(seed=11), on_record=lambda record: records.append(dict(record)))
    shape = _shape()
    data = TextData(open_text([text], 256), shape, [(0, BATCH)], frozenset(shape.inputs), seed=2)
    losses, norms, model = eager(build, data)
    steps = records[:-1]
    assert [record["loss"] for record in steps] == pytest.approx(losses, rel=1e-6)
    assert [record["norm"] for record in steps] == pytest.approx(norms, rel=1e-5)
    assert [record["lr"] for record in steps] == [CONFIG.lr_at(step) for step in range(STEPS)]
    assert steps[0]["tokens"] == BATCH * LENGTH
    saved = load_file(out)
    expected = dict(model.named_parameters())
    assert set(expected) <= set(saved)
    for name, param in expected.items():
        torch.testing.assert_close(saved[name], param.detach(), rtol=1e-4, atol=2e-5)


def _shape() -> BatchShape:
    whole = ((BATCH, LENGTH), "int64")
    return BatchShape(BATCH, {"input_ids": whole, "labels": whole})
