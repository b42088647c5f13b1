"""The whole way of one program: compiled for five unequal ranks, proven, trained, compared with eager."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from comparison import Comparison
from five_ranks import train_ranks
from rich.console import Console
from rich.progress import Progress
from single_device import train_eager
from tiny_llama import build

import hspmd_compiler as hspmd
from hspmd_compiler.api import CompiledProgram
from hspmd_compiler.cli.show import progress
from hspmd_compiler.options import OptimizerConfig, OptimizerName

HERE = Path(__file__).resolve().parent
ARTIFACT = HERE.parents[1] / "build" / "quickstart"
STEPS = 20
SEED = 0
LEARNING_RATE = 0.1
NOT_EQUAL = 1

console = Console(highlight=False)


def main() -> int:
    """Exit code 0 if five ranks and one device trained to the same numbers."""
    torch.set_num_threads(1)  # as each rank has
    text = standard_library()
    with phase("compile: one program for each of five ranks"):
        program = compile_for_five_ranks()
    with phase("verify: all ranks step by step in this process, in float64 beside eager"):
        proof = program.verify(values=True)
    console.print(proof.fit.rendered(), f"  {numbers_of(proof.to_json())}")
    with phase(f"train: five processes, {STEPS} steps"):
        ranks = train_ranks(ARTIFACT, text, STEPS, SEED, bar())
    with phase(f"train: the same model in eager PyTorch on one device, {STEPS} steps"):
        eager = train_eager(build, program.artifact.program, text, STEPS, SEED, LEARNING_RATE, bar())
    comparison = Comparison.of(ranks, eager, LEARNING_RATE)
    console.print(comparison.losses(), comparison.largest(), comparison.verdict())
    console.print(f"Look into it: hspmd inspect {shown(ARTIFACT)} (--rank 2, --comm, --schedule)")
    return 0 if comparison.equal else NOT_EQUAL


def standard_library() -> list[Path]:
    """Real text that every machine has: Python's own source files."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def compile_for_five_ranks() -> CompiledProgram:
    """SGD: AdamW divides by the gradient's size, which makes rounding as large as the step where it is 0."""
    optimizer = OptimizerConfig(OptimizerName.SGD, lr=LEARNING_RATE)
    program = hspmd.compile(build, strategy=HERE / "strategy.json", optimizer=optimizer)
    program.save(ARTIFACT)
    return program


def numbers_of(proof: dict[str, Any]) -> str:
    """What the float64 comparison found, in a line."""
    values = proof["values"]
    worst = max(step[kind] for step in values["steps"] for kind in ("loss", "gradients", "parameters"))
    return f"loss, gradients and parameters of {len(values['steps'])} steps: within {worst:.0e} of eager"


def bar() -> Progress:
    """A bar that steps move; no thread draws it, so that processes may be forked beside it."""
    return Progress(console=console, transient=True, auto_refresh=False, disable=not console.is_terminal)


@contextmanager
def phase(title: str) -> Iterator[None]:
    """Names what runs, shows its progress, and says how long it took."""
    console.print(f"[bold]{title}[/bold]")
    start = perf_counter()
    with progress():
        yield
    console.print(f"  {perf_counter() - start:.1f} s")


def shown(path: Path) -> Path:
    """A path as short as a person would type it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())
