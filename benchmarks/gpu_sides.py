"""What `gpu_check.py` runs: a Llama, its batch, the program of one device, and eager steps of the same."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import hspmd_compiler as hspmd
from hspmd_compiler.runtime.engine import Engine

LR = 1e-4
VOCAB = 512
Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the model and its batch."""

    device: str
    hidden: int
    layers: int
    tokens: int
    batch: int

    @classmethod
    def of(cls, device: str) -> Sizes:
        """Some seconds of work for a GPU; for a CPU as little as shows that the checks run."""
        return cls(device, 1024, 8, 512, 8) if device == "cuda" else cls(device, 64, 2, 32, 2)


def llama(sizes: Sizes, dtype: torch.dtype) -> nn.Module:
    """On the CPU, from one seed."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=sizes.hidden,
        intermediate_size=3 * sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.hidden // 32 if sizes.hidden < 512 else sizes.hidden // 64,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=sizes.tokens,
        use_cache=False,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model.to(dtype)


def batch_of(sizes: Sizes, seed: int = 0) -> Batch:
    """On the CPU."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (sizes.batch, sizes.tokens), generator=generator)
    return {"input_ids": ids, "labels": ids}


def one_device(sizes: Sizes) -> dict[str, object]:
    """All of a step on one device, in one micro-batch."""
    stage = {"devices": [0], "layers": sizes.layers}
    return {"pipelines": [{"stages": [stage], "micro_batches": [sizes.batch]}]}


@contextmanager
def loaded(
    model: nn.Module,
    batch: Batch,
    strategy: dict[str, object],
    sizes: Sizes,
    optimizer: dict[str, object] | None = None,
    **arithmetic: bool,
) -> Iterator[Engine]:
    """The engine of a live model's program, with the model's weights."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"name": "adamw", "lr": LR} if optimizer is None else optimizer
        program = hspmd.compile(model, batch, strategy=strategy, optimizer=given, device=sizes.device)
        program.save(Path(folder) / "one")
        engine = hspmd.load(Path(folder) / "one", **arithmetic)
        try:
            yield engine
        finally:
            engine.close()


def eager_gradients(model: nn.Module, batch: Batch, device: str) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients by autograd; the model stays as it is."""
    own = copy.deepcopy(model).to(device)
    loss = own(**{name: value.to(device) for name, value in batch.items()}).loss
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in own.named_parameters() if p.grad is not None}


def eager_step(model: nn.Module, batch: Batch, device: str, compiled: bool = False) -> Callable[[], float]:
    """Steps of a copy, with the fused optimizer."""
    own = copy.deepcopy(model).to(device)
    called = torch.compile(own) if compiled else own
    optimizer = torch.optim.AdamW(own.parameters(), lr=LR, weight_decay=0.0, fused=True)

    def step() -> float:
        optimizer.zero_grad()
        loss = called(**{name: value.to(device) for name, value in batch.items()}).loss
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def perturbed(model: nn.Module, seed: int) -> nn.Module:
    """The model with weights that are moved by half of their last bit, up or down."""
    moved = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in moved.parameters():
            half = torch.finfo(parameter.dtype).eps / 2
            noise = torch.rand(parameter.shape, generator=generator) - 0.5
            parameter.copy_(parameter.double() * (1 + 2 * half * noise))
    return moved
