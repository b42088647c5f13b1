"""One rank's program against eager PyTorch doing the same local work: CPU time, one thread, as a ratio.

    python benchmarks/step_time.py

Forward, loss and backward of a Llama; the optimizer is left out. Both sides run in turn in one
process, so that other load on the machine meets both. Exit code 1 where a ratio is above the bound.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from hspmd_compiler.program.arrays import TorchArrays
from hspmd_compiler.program.execute import run_step
from hspmd_compiler.program.requests import LossReduce
from hspmd_compiler.program.sized.micro_batches import micro_batches
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.eager import whole_state
from hspmd_compiler.verify.single_device import single_device_program
from hspmd_compiler.verify.values import Rank, start_ranks

BOUND = 1.02
PAIRS = 15
WARM_UP = 3
VOCAB, BATCH, LENGTH, LAYERS = 256, 4, 64, 4
HIDDEN_SIZES = (64, 512)

Batch = dict[str, Tensor]
Sides = tuple[Callable[[], Tensor], Callable[[], Tensor]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Median seconds of both sides, and the median of the ratios of pairs."""

    hidden: int
    program: float
    eager: float
    ratio: float


def main() -> int:
    """Measure every size and print a table."""
    torch.set_num_threads(1)
    found = [compare(hidden) for hidden in HIDDEN_SIZES]
    table = Table(title=f"CPU time of a step, one thread, median of {PAIRS} pairs")
    for name in ("hidden", "program ms", "eager ms", "program / eager"):
        table.add_column(name, justify="right")
    for item in found:
        times = (f"{item.program * 1e3:.2f}", f"{item.eager * 1e3:.2f}")
        table.add_row(str(item.hidden), *times, f"{item.ratio:.3f}")
    Console().print(table)
    return int(any(item.ratio > BOUND for item in found))


def compare(hidden: int) -> Comparison:
    """Interleaved pairs of one size."""
    torch.manual_seed(0)
    model = llama(hidden)
    ids = torch.randint(0, VOCAB, (BATCH, LENGTH))
    batch = {"input_ids": ids, "labels": ids}
    program = single_device_program(trace(model, batch, batch=BATCH))
    rank = start_ranks(program, whole_state(model))[0]
    arrays = TorchArrays()
    sides: Sides = (lambda: program_step(rank, batch, arrays), lambda: eager_step(model, batch))
    for _ in range(WARM_UP):
        for side in sides:
            side()
    pairs = [timed_pair(sides, program_first=turn % 2 == 0) for turn in range(PAIRS)]
    return Comparison(
        hidden,
        statistics.median(mine for mine, _ in pairs),
        statistics.median(other for _, other in pairs),
        statistics.median(mine / other for mine, other in pairs),
    )


def llama(hidden: int) -> nn.Module:
    """A small Llama with grouped-query attention."""
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=VOCAB,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


def program_step(rank: Rank, batch: Batch, arrays: TorchArrays) -> Tensor:
    """The rank's program; it is alone, so every answer is what it asks with."""
    with torch.no_grad():
        rows = micro_batches(rank.plan, batch)
        steps = run_step(rank.plan, rank.state, rows, rank.segments, arrays)
        answer: Tensor | None = None
        try:
            while True:
                request = steps.send(answer)
                answer = request.share if isinstance(request, LossReduce) else None
        except StopIteration as end:
            loss: Tensor = end.value
            return loss


def eager_step(model: nn.Module, batch: Batch) -> Tensor:
    """Forward and backward by autograd."""
    model.zero_grad(set_to_none=True)
    loss: Tensor = model(**batch).loss
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def timed_pair(sides: Sides, program_first: bool) -> tuple[float, float]:
    """(program, eager), run in either order: what runs second finds warmer caches."""
    if program_first:
        return seconds(sides[0]), seconds(sides[1])
    eager = seconds(sides[1])
    return seconds(sides[0]), eager


def seconds(step: Callable[[], Tensor]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    step()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
