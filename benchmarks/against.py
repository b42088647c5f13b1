"""What a compile and a step cost in another checkout and in this one, in turns: CPU seconds and their ratio.

    git worktree add ../before REVISION
    python benchmarks/against.py ../before [--repeats N] [--only NAME[,NAME]]

compile: Llama 32B under three unequal pipelines of 39 devices, without imports. command: `hspmd compile`
at 1,024 ranks, with imports. step: of `hspmd run`, two ranks train `llama-tiny`. Each runs in a process of
its own, which imports the package of its checkout by PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median

from compile_overhead import homogeneous
from rich.console import Console
from rich.table import Table

from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.strategy.write import write_strategy

HERE = Path(__file__).resolve().parents[1]
MODEL, LAYERS, RANKS = "llama-32b", 60, 1024
REPEATS = 5
FEW, MANY = 5, 65
"""Steps of the two runs whose difference is what steps cost."""
TRACING = ("build", "trace")
CASE_5 = (
    (29, ((0, 4, 7), (4, 4, 14), (24, 4, 37), (28, 4, 60))),
    (18, ((8, 4, 11), (12, 4, 22), (32, 4, 60))),
    (17, ((16, 4, 12), (20, 4, 23), (36, 2, 47), (38, 1, 60))),
)
"""Per pipeline: micro-batches, and (first device, devices, end of layers) of each stage."""

Costs = dict[str, float]


def main() -> int:
    """Measure in turns, and print medians."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N")
    parser.add_argument("--only", default=",".join(MEASURES), metavar="NAME[,NAME]", help=", ".join(MEASURES))
    args = parser.parse_args()
    table = Table("CPU s", "before", "now", "now / before", title=f"medians of {args.repeats} turns")
    for name in args.only.split(","):
        turns = []
        for turn in range(args.repeats):
            sides = [args.before.resolve(), HERE]
            found = {side: MEASURES[name](side) for side in (sides if turn % 2 == 0 else sides[::-1])}
            turns.append([found[side] for side in sides])
        for key in turns[0][0]:
            before, now = (median(turn[side][key] for turn in turns) for side in (0, 1))
            ratio = median(turn[1][key] / turn[0][key] for turn in turns)
            table.add_row(key, f"{before:.3f}", f"{now:.3f}", f"{ratio:.2f}")
    Console().print(table)
    return 0


def compile_unequal(checkout: Path) -> Costs:
    """Phases as that checkout's own compile_once.py reports them."""
    with tempfile.TemporaryDirectory() as folder:
        strategy, modules = Path(folder) / "strategy.json", Path(folder) / "modules.json"
        write_strategy(unequal(), strategy)
        one = str(checkout / "benchmarks" / "compile_once.py")
        command = [one, MODEL, str(LAYERS), str(strategy), str(modules)]
        cpu_seconds(checkout, command, folder)  # what a first compile imports is written to `modules`
        phases = json.loads(python(checkout, command, folder))["phases"]
    outer = {phase["name"]: phase["seconds"] for phase in phases if phase["depth"] == 0}
    after = sum(seconds for name, seconds in outer.items() if name not in TRACING)
    return {"deduce": outer["deduce"], "compile": sum(outer.values()), "of it after tracing": after}


def compile_command(checkout: Path) -> Costs:
    """The whole command."""
    with tempfile.TemporaryDirectory() as folder:
        write_strategy(homogeneous(RANKS, LAYERS), Path(folder) / "strategy.json")
        command = ["-m", "hspmd_compiler", "compile", MODEL, "--strategy", "strategy.json", "-o", "build"]
        return {f"hspmd compile, {RANKS} ranks": cpu_seconds(checkout, command, folder)}


def train(checkout: Path) -> Costs:
    """Both ranks together, per step."""
    with tempfile.TemporaryDirectory() as folder:
        strategy = Strategy((PipelineSpec((StageSpec((0, 1), (0, 4)),), (2, 2)),))
        write_strategy(strategy, Path(folder) / "strategy.json")
        (Path(folder) / "text.txt").write_text("one two three four five six seven\n" * 2000)
        command = ["compile", "llama-tiny", "--strategy", "strategy.json", "-o", "build"]
        python(checkout, ["-m", "hspmd_compiler", *command], folder)
        run = ["-m", "hspmd_compiler", "run", "build", "--text", "text.txt", "--steps"]
        few, many = (cpu_seconds(checkout, [*run, str(steps)], folder) for steps in (FEW, MANY))
    return {"step of 2 ranks": (many - few) / (MANY - FEW)}


MEASURES: dict[str, Callable[[Path], Costs]] = {
    "compile": compile_unequal,
    "command": compile_command,
    "step": train,
}


def unequal() -> Strategy:
    """HSPMD's published case 5: stages of 4, 2 and 1 devices, pipelines of 4, 3 and 4 stages."""
    pipelines = []
    for micro_batches, stages in CASE_5:
        specs, low = [], 0
        for first, width, high in stages:
            specs.append(StageSpec(tuple(range(first, first + width)), (low, high)))
            low = high
        pipelines.append(PipelineSpec(tuple(specs), (1,) * micro_batches))
    return Strategy(tuple(pipelines))


def python(checkout: Path, command: list[str], folder: str) -> str:
    """The output of Python with the package of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def cpu_seconds(checkout: Path, command: list[str], folder: str) -> float:
    """Of Python, and of all processes that it starts."""
    before = os.times()
    python(checkout, command, folder)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    sys.exit(main())
