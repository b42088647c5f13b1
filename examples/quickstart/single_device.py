"""The reference: plain PyTorch on one device, the whole global batch in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from rich.progress import Progress
from torch import Tensor, nn
from trained import EARLY, Trained

from hspmd_compiler.program.program import Program
from hspmd_compiler.runtime.batches.data import Batch, BatchShape
from hspmd_compiler.runtime.batches.text_data import TextData, open_text

Factory = Callable[[], tuple[nn.Module, object]]


def train_eager(
    build: Factory, program: Program, text: Sequence[Path], steps: int, seed: int, lr: float, bar: Progress
) -> Trained:
    """The training loop that everyone knows."""
    torch.manual_seed(seed)
    model, _ = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    early: dict[str, Tensor] = {}
    with bar:
        for batch in bar.track(
            islice(global_batches(program, text, seed), steps), steps, description="steps"
        ):
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            gradients = gradients or {name: p.grad.clone() for name, p in model.named_parameters()}
            optimizer.step()
            losses.append(loss.item())
            early = copy_of(model) if len(losses) == EARLY else early
            bar.refresh()
    return Trained(losses, gradients, early, copy_of(model))


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters as they are now."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def global_batches(program: Program, text: Sequence[Path], seed: int) -> Iterator[Batch]:
    """The batches that the ranks share out among them, whole."""
    shape = BatchShape.of(program)
    everything = [(0, shape.batch)]
    return iter(TextData(open_text(text, None), shape, everything, frozenset(shape.inputs), seed))
