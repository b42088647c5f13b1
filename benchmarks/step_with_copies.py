"""What `hspmd run --elastic --survive 1` costs a step, 4 local ranks: CPU seconds of all of them, and bytes.

    python benchmarks/step_with_copies.py [--blocks N] [--json OUT]

One run for each ZeRO level: blocks of steps with and without the update of copies take turns in the same
processes. `added`: median of blocks with copies less that of blocks without, by step.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from switch_losses import Stack, batch, batches, pipelines

import hspmd_compiler as hspmd
from hspmd_compiler.cli.training.elastic import body_of
from hspmd_compiler.cli.training.successors import Successors
from hspmd_compiler.runtime.batches.data import FactoryData
from hspmd_compiler.runtime.elastic.launcher import ElasticLauncher
from hspmd_compiler.runtime.elastic.training import ElasticRun
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.train import StepRecord, train

STEPS, UNCOUNTED = 10, 2
"""Of a block; blocks of each kind that are not counted."""
Record = Mapping[str, Any]


class TurnsWithCopies:
    """Trains, one block with copies, one without."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks

    def __call__(self, engine: Engine, data: Any, begun: int, emit: Any, on_step: Callable[[], None]) -> None:
        copies, found = engine.transaction.beside, ([], [])
        cpu_s, wall_s = process_time(), perf_counter()

        def each(record: StepRecord) -> None:
            nonlocal cpu_s, wall_s
            on_step()
            if record.step % STEPS:
                return
            found[engine.transaction.beside is None].append((process_time() - cpu_s, perf_counter() - wall_s))
            engine.transaction.beside = None if engine.transaction.beside else copies
            cpu_s, wall_s = process_time(), perf_counter()

        train(engine, data, 2 * STEPS * (self._blocks + UNCOUNTED), on_step=each)
        own = [[median(row[at] for row in rows[UNCOUNTED:]) / STEPS for at in (0, 1)] for rows in found]
        total = engine.transport.sum_over_ranks(torch.tensor(own, dtype=torch.float64)).tolist()
        ranks = engine.transport.world_size
        emit({"with": [total[0][0], total[0][1] / ranks], "without": [total[1][0], total[1][1] / ranks]})


def measured(folder: Path, zero: int, blocks: int) -> dict[str, Any]:
    """One run."""
    strategy = replace(pipelines((0, 1), (2, 3)), zero=zero)
    directory = folder / f"zero{zero}"
    hspmd.compile(lambda: (Stack(), batch(0)), strategy=strategy, optimizer="adamw").save(directory)
    scratch = folder / f"scratch{zero}"
    scratch.mkdir()
    successors = Successors(directory, scratch, survive=1)
    successors.read()
    records: list[Record] = []
    run = ElasticRun(
        StartOptions(),
        lambda engine, alone: FactoryData(batches, engine.shape, 0, engine.rows, engine.keys),
        lambda engine, data, emit: None,
        lambda engine, data, path: None,
        TurnsWithCopies(blocks),
        {device: index for index, device in enumerate(successors.devices)},
    )
    ElasticLauncher(body_of(run, 1, "cpu"), successors.choose, successors.devices, records.append).run()
    found = {key: value for record in records for key, value in record.items()}
    return {key: found[key] for key in ("with", "without", "copies")}


def main() -> int:
    parser = ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    table = Table(
        "ZeRO", "CPU s a step", "added", "share", "s a step", "added", "bytes a step", "most bytes a rank"
    )
    with tempfile.TemporaryDirectory() as folder:
        found = {zero: measured(Path(folder), zero, args.blocks) for zero in (1, 2, 3)}
    for zero, each in found.items():
        (cpu_s, wall_s), (more_s, longer_s) = each["without"], each["with"]
        table.add_row(
            str(zero),
            f"{cpu_s:.4f}",
            f"{more_s - cpu_s:+.4f}",
            f"{more_s / cpu_s - 1:+.1%}",
            f"{wall_s:.4f}",
            f"{longer_s - wall_s:+.4f}",
            f"{each['copies']['step_bytes']:,}",
            f"{each['copies']['memory_bytes']:,}",
        )
    Console(width=130).print(table)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
