"""What a compile for micro-batches of any size costs beside one for a single size, in CPU seconds.

    python benchmarks/compile_sizes.py
    python benchmarks/compile_sizes.py --layers 16 --repeat 5

A Llama in two unlike pipelines under sequence parallelism, all in one process after a compile that is not
counted, with and without `sizes` in turns; medians. Exit code 1 where it costs more than the bound.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

import hspmd_compiler as hspmd

BOUND = 3.0
"""Times what the compile without `sizes` costs."""
SIZES: tuple[dict[str, list[int]], ...] = (
    {"tokens": [1, 2048]},
    {"tokens": [1, 32768]},
    {"samples": [1, 64]},
)
TOKENS = 64


def model_of(layers: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A Llama, and a batch of two packed rows with labels that are shifted already."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
        max_position_embeddings=40000,
    )
    ids = torch.randint(0, 32, (2, TOKENS))
    places = torch.arange(TOKENS).expand(2, TOKENS).contiguous()
    batch = {"input_ids": ids, "position_ids": places, "labels": ids, "shift_labels": ids}
    return AutoModelForCausalLM.from_config(config), batch


def strategy_of(layers: int) -> dict[str, object]:
    """One stage of two ranks, beside two stages of one rank each."""
    half = layers // 2
    return {
        "pipelines": [
            {"stages": [{"devices": [0, 1], "layers": layers}], "micro_batches": [1]},
            {
                "stages": [{"devices": [2], "layers": half}, {"devices": [3], "layers": layers - half}],
                "micro_batches": [1],
            },
        ],
        "sequence_parallel": True,
    }


def measured(layers: int, repeat: int) -> Mapping[str, float]:
    """Median seconds of each compile."""
    model, batch = model_of(layers)
    plain = strategy_of(layers)
    forms = {"one size": plain, **{str(each): {**plain, "sizes": each} for each in SIZES}}
    hspmd.compile(model, batch, strategy=plain)
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(repeat):
        for name, form in forms.items():
            start = time.process_time()
            hspmd.compile(model, batch, strategy=form)
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(each) for name, each in taken.items()}


def main() -> int:
    """Measure, and print a table."""
    parser = ArgumentParser()
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title=f"CPU s of a compile, medians of {args.repeat}")
    for name in ("layers", "sizes", "CPU s", "times one size"):
        table.add_column(name, justify="right")
    worst = 0.0
    for layers in args.layers:
        found = measured(layers, args.repeat)
        for name, seconds in found.items():
            ratio = seconds / found["one size"]
            worst = max(worst, ratio)
            table.add_row(str(layers), name, f"{seconds:.2f}", f"{ratio:.2f}")
    Console().print(table)
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
