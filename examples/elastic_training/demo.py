"""Replays a trace of lost devices on real processes, and puts the losses beside a run that lost none."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "elastic_training"
TEXT = sorted((ROOT / "docs").glob("*.md"))
STEPS = 24
LARGEST = 1e-10
"""Relative difference of losses in float64: sums are made in another order where ranks are lost."""
CLUSTERS = {"homogeneous": ("c1", "c2", "c3"), "heterogeneous": ("c4", "c5", "c6", "c7")}
NOT_EQUAL = 1

Record = dict[str, Any]
console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Training:
    """What a run told. losses: by step. changes: of ranks, each with seconds by phase."""

    losses: dict[int, float]
    changes: tuple[Record, ...]

    @classmethod
    def of(cls, records: Iterator[Record]) -> Training:
        told = list(records)
        losses = {record["step"]: record["loss"] for record in told if "step" in record}
        return cls(losses, tuple(record["regroup"] for record in told if "regroup" in record))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if whoever lost devices trained to the numbers of the run that lost none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cluster", nargs="*", help=f"of {', '.join(CLUSTERS)} (default: both)")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args(argv)
    unknown = [name for name in args.cluster if name not in CLUSTERS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    return max([replayed(name, args.steps) for name in args.cluster or CLUSTERS])


def replayed(cluster: str, steps: int) -> int:
    """One trace; the exit code."""
    names, bundle = CLUSTERS[cluster], BUILD / cluster
    console.rule(f"{cluster}: {' -> '.join(name.upper() for name in names)}")
    strategies = [part for name in names for part in ("--strategy", str(HERE / cluster / f"{name}.yaml"))]
    hspmd("compile", "small_transformer:build", *strategies, "-o", str(bundle), "--lr", "0.001")
    train = ("run", str(bundle), "--text", *map(str, TEXT), "--steps", str(steps), "--json")
    console.print(f"train: {names[0].upper()}, no device is lost")
    whole = Training.of(hspmd(*train, "--start", names[0]))
    console.print("train: the trace, on processes that are killed")
    trace = HERE / cluster / "trace.yaml"
    lost = Training.of(hspmd(*train, "--start", names[0], "--elastic", "--replay", str(trace)))
    console.print(changes(lost), curves(whole, lost))
    return verdict(whole, lost)


def hspmd(*args: str) -> Iterator[Record]:
    """The records of a command; one that fails ends all."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}
    command = [sys.executable, "-m", "hspmd_compiler", *args]
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return iter([json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")])


def changes(training: Training) -> Table:
    """Seconds by phase from a loss to the first step behind it."""
    table = Table(title="devices lost, seconds", title_justify="left")
    for name in ("lost", "then", "halt", "plan", "groups", "move", "next step", "moved"):
        table.add_column(name, justify="left" if name in ("lost", "then") else "right", no_wrap=True)
    for change in training.changes:
        if not change["lost"]:
            continue
        seconds = [
            f"{change[key]:.3f}" for key in ("halted_s", "chosen_s", "groups_s", "state_s", "resumed_s")
        ]
        devices = ", ".join(map(str, change["lost"]))
        table.add_row(devices, change["strategy"].upper(), *seconds, f"{change['bytes_moved'] / 1e6:.2f} MB")
    return table


def curves(whole: Training, lost: Training) -> Table:
    """Losses of both, every fourth step."""
    table = Table(title="loss", title_justify="left")
    for name in ("step", "no device lost", "the trace", "difference"):
        table.add_column(name, justify="right")
    last = max(whole.losses)
    for step, loss in whole.losses.items():
        if step in (1, last) or step % 4 == 0:
            other = lost.losses.get(step, float("nan"))
            table.add_row(str(step), f"{loss:.12f}", f"{other:.12f}", f"{abs(other - loss):.1e}")
    return table


def verdict(whole: Training, lost: Training) -> int:
    """Whether every step was taken once, to the same loss."""
    if whole.losses.keys() != lost.losses.keys():
        console.print(f"other steps: {sorted(whole.losses.keys() ^ lost.losses.keys())}")
        return NOT_EQUAL
    largest = max(abs(lost.losses[step] / loss - 1) for step, loss in whole.losses.items())
    word = "equal" if largest <= LARGEST else "NOT equal"
    console.print(f"{word}: losses of {len(whole.losses)} steps differ by {largest:.1e} at most, relatively")
    return 0 if largest <= LARGEST else NOT_EQUAL


if __name__ == "__main__":
    sys.exit(main())
