"""Documents of published lengths, one a row and padded, beside whole ones packed into rows: work and time.

    python benchmarks/packed_sequences.py LENGTHS.json [--documents N] [--tokens T] [--json OUT]

LENGTHS.json: histograms of lengths (`bin_edges`, and counts per distribution). A document longer than a row
is cut off at its end, in both. One rank trains a small Llama on all documents once, two rows a micro-batch.
`scores` are pairs of query and key in one head of one layer.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor

import hspmd_compiler as hspmd
from hspmd_compiler.models.models import load_model
from hspmd_compiler.runtime.batches.packed_text import first_fit, packed_row

ROWS = 8
"""Of a step."""
ARGS = {"layers": "2", "hidden": "128", "heads": "4", "kv_heads": "2", "ffn": "344"}
STRATEGY = {"pipelines": [{"stages": [{"devices": [0], "layers": 2}], "micro_batches": [2] * (ROWS // 2)}]}


def lengths_of(edges: Sequence[int], counts: Sequence[int], number: int, most: int) -> list[int]:
    """Lengths drawn by a histogram, evenly within a bin."""
    drawn = torch.Generator().manual_seed(0)
    bins = torch.multinomial(torch.tensor(counts, dtype=torch.float64), number, True, generator=drawn)
    parts = torch.rand(number, generator=drawn).tolist()
    found = (
        edges[at] + part * (edges[at + 1] - edges[at]) for at, part in zip(bins.tolist(), parts, strict=True)
    )
    return [max(2, min(int(each), most)) for each in found]


def rows_of(lengths: Sequence[int], most: int, packed: bool) -> list[list[int]]:
    """Documents by row; as many rows as steps take."""
    order = range(len(lengths))
    rows = [list(row) for row in first_fit(order, lengths, most)] if packed else [[each] for each in order]
    return rows + [[] for _ in range(-len(rows) % ROWS)]


def batches_of(lengths: Sequence[int], most: int, packed: bool) -> list[dict[str, Tensor]]:
    """All documents, in batches."""
    made = [
        packed_row([torch.arange(lengths[each]) * 7 % 256 for each in row], most)
        for row in rows_of(lengths, most, packed)
    ]
    keys = made[0] if packed else ("input_ids", "labels")
    return [
        {key: torch.stack([row[key] for row in made[low : low + ROWS]]) for key in keys}
        for low in range(0, len(made), ROWS)
    ]


def trained_s(engine: Any, batches: Sequence[dict[str, Tensor]]) -> float:
    """CPU seconds of one pass over all batches, behind a step that warms up: others may load the machine."""
    engine.step(batches[0])
    begun = process_time()
    for batch in batches:
        engine.step(batch)
    return process_time() - begun


def scores_of(lengths: Sequence[int], most: int, packed: bool) -> int:
    """Pairs that kernels of whole documents, or of whole rows, compute."""
    return sum(each * (each + 1) // 2 for each in (lengths if packed else [most] * len(lengths)))


def engine_of(packed: bool, most: int, folder: str) -> Any:
    """One rank of a program compiled for it."""
    args = {**ARGS, "seq": str(most), **({"packed": "1"} if packed else {})}
    target = Path(folder) / f"packed-{packed}"
    hspmd.compile(load_model("llama-tiny", args), strategy=STRATEGY).save(target)
    return hspmd.load(target)


def compared(file: Path, number: int, most: int) -> list[dict[str, Any]]:
    """A row of figures for each distribution."""
    held = json.loads(file.read_text())
    found = {}
    for name, each in held["distributions"].items():
        lengths = lengths_of(held["bin_edges"], each["counts"], number, most)
        found[name] = {"lengths": name, "documents": lengths, "tokens": sum(lengths)}
    with tempfile.TemporaryDirectory() as folder:
        for packed in (False, True):
            add_figures(found.values(), engine_of(packed, most, folder), packed, most)
            dist.destroy_process_group()
    return [*found.values()]


def add_figures(found: Iterable[dict[str, Any]], engine: Any, packed: bool, most: int) -> None:
    """What one of the two programs takes for the documents of each distribution."""
    word = "packed" if packed else "padded"
    for figures in found:
        batches = batches_of(figures["documents"], most, packed)
        figures[f"{word}_tokens"] = len(batches) * ROWS * most
        figures[f"{word}_scores"] = scores_of(figures["documents"], most, packed)
        figures[f"{word}_s"] = trained_s(engine, batches)


def main() -> int:
    parser = ArgumentParser()
    parser.add_argument("lengths", type=Path)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    alone = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29577",
    }
    os.environ.update({key: os.environ.get(key, value) for key, value in alone.items()})
    found = compared(options.lengths, options.documents, options.tokens)
    table = Table(
        "lengths",
        "tokens",
        "padded",
        "packed",
        "scores saved",
        "CPU s padded",
        "CPU s packed",
        "times as quick",
    )
    for each in found:
        saved = 1 - each["packed_scores"] / each["padded_scores"]
        quick = each["padded_s"] / each["packed_s"]
        counts = (f"{each[key]:,}" for key in ("tokens", "padded_tokens", "packed_tokens"))
        seconds = (f"{each[key]:.2f}" for key in ("padded_s", "packed_s"))
        table.add_row(each["lengths"], *counts, f"{saved:.1%}", *seconds, f"{quick:.2f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
