"""Predicted against measured: step time and peak memory of `hspmd run` on this machine.

    hspmd profile -o cluster.yaml
    python benchmarks/price_here.py cluster.yaml [--only TEXT] [--steps N] [--json]

Every case is compiled, priced on the calibrated cluster, and run by as many processes. A step's seconds are
the lower quartile of all but the first two. Memory is the most that a rank's resident set had above what the
profile found without tensors, of the rank for which that is worst predicted. The paced cases slow ranks by
4, 4, 16 and 16, as `--pace` of `hspmd run` does: four unequal devices that few processors carry. Exit code 1
where a bar is missed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from here_cases import CASES, MODELS, PACED, HereCase
from rich.console import Console
from rich.table import Table

from hspmd_compiler.api import CompiledProgram, compile
from hspmd_compiler.base.pace import Pace, write_pace
from hspmd_compiler.base.trace_file import read_timeline
from hspmd_compiler.cluster.cluster import ClusterSpec, NodeSpec
from hspmd_compiler.cluster.read import read_cluster
from hspmd_compiler.cost_models.estimate import Estimate, estimate
from hspmd_compiler.options import OptimizerConfig

TIME_BAR, MEMORY_BAR, PACED_BAR = 0.15, 0.15, 0.10
WARM_UP, STEPS, PACED_STEPS = 2, 8, 4
TRACED = 3
MIB = 1 << 20
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Row:
    """One case. Errors are predicted / measured - 1; bytes of the rank with the largest error."""

    model: str
    case: str
    predicted_s: float
    measured_s: float
    predicted_bytes: int
    measured_bytes: int
    time_bar: float

    @property
    def time_error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def memory_error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def holds(self) -> bool:
        """Whether both bars do."""
        return abs(self.time_error) <= self.time_bar and abs(self.memory_error) <= MEMORY_BAR


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run took: seconds of a step, and the most that each rank held in bytes."""

    seconds: float
    peaks: tuple[int, ...]


def main() -> int:
    """Measure every case and print a table, or JSON."""
    args = _arguments()
    torch.set_num_threads(1)
    cluster = read_cluster(args.cluster)
    chosen = [case for case in (*CASES, *PACED) if args.only in case.name]
    rows = []
    for model in MODELS if args.model is None else [args.model]:
        for case in chosen:
            rows.append(_row(model, case, cluster, args.steps))
            if not args.json:
                print(_line(rows[-1]), flush=True)
    if args.json:
        found = [
            {**asdict(row), "time_error": row.time_error, "memory_error": row.memory_error} for row in rows
        ]
        print(json.dumps(found, indent=1))
    else:
        Console().print(_table(rows))
    return int(not all(row.holds for row in rows))


def _arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("cluster", type=Path, help="what `hspmd profile` wrote on this machine")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has it")
    parser.add_argument("--model", choices=list(MODELS))
    parser.add_argument(
        "--steps", type=int, metavar="N", help=f"default: {STEPS}, of paced ones {PACED_STEPS}"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _row(model: str, case: HereCase, cluster: ClusterSpec, steps: int | None) -> Row:
    made = compile(MODELS[model].build, strategy=case.form(), optimizer=OptimizerConfig())
    told = _estimated(made, case, cluster)
    paced = bool(case.paces)
    ran = _run(made, MODELS[model].data, told if paced else None, steps or (PACED_STEPS if paced else STEPS))
    calibration = cluster.calibration
    platform = 0 if calibration is None else calibration.platform_bytes
    predicted_grown = [each.memory.peak.total - platform for each in told.ranks]
    pairs = [(one, peak - platform) for one, peak in zip(predicted_grown, ran.peaks, strict=True)]
    predicted, measured = max(pairs, key=lambda pair: abs(pair[0] / max(pair[1], 1) - 1))
    bar = PACED_BAR if paced else TIME_BAR
    return Row(model, case.name, told.step_s, ran.seconds, predicted, measured, bar)


def _estimated(made: CompiledProgram, case: HereCase, cluster: ClusterSpec) -> Estimate:
    return estimate(made.artifact.program, _with_paces(cluster, case), OptimizerConfig())


def _with_paces(cluster: ClusterSpec, case: HereCase) -> ClusterSpec:
    """The first node with as many devices as the case has ranks, each with its pace."""
    node: NodeSpec = cluster.nodes[0]
    paces = case.paces or (1.0,) * case.ranks
    devices = tuple(replace(node.devices[0], pace=pace) for pace in paces)
    return replace(cluster, nodes=(replace(node, devices=devices),))


def _run(made: CompiledProgram, data: str, told: Estimate | None, steps: int) -> Ran:
    """By the command, in a process that has not compiled. told: keeps ranks to its pace."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made.save(folder / "artifact")
        flags = ["--data", data, "--steps", str(WARM_UP + steps), "--json"]
        flags += ["--trace", str(folder / "trace.json"), "--trace-steps", str(TRACED)]
        if told is not None:
            write_pace(Pace(told.least_s), folder / "pace.json")
            flags += ["--pace", str(folder / "pace.json")]
        command = [sys.executable, "-m", "hspmd_compiler", "run", str(folder / "artifact"), *flags]
        done = subprocess.run(
            command, cwd=HERE, env=_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        seconds = [json.loads(line)["seconds"] for line in done.stdout.splitlines() if '"seconds"' in line]
        timeline = read_timeline(folder / "trace.json", "measured")
    peaks = [max(point.bytes for point in timeline.memory if point.rank == rank) for rank in timeline.ranks]
    return Ran(float(np.quantile(seconds[WARM_UP:], 0.25)), tuple(peaks))


def _environment() -> dict[str, str]:
    paths = [str(HERE), str(HERE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    kept = {name: value for name, value in os.environ.items() if name != "RANK"}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "OMP_NUM_THREADS": "1"}


def _line(row: Row) -> str:
    return (
        f"{row.model:6} {row.case:24} {row.predicted_s:7.3f} s {row.measured_s:7.3f} s {row.time_error:+6.1%}"
        f"  {row.predicted_bytes / MIB:6.0f} MiB {row.measured_bytes / MIB:6.0f} MiB {row.memory_error:+6.1%}"
    )


def _table(rows: list[Row]) -> Table:
    table = Table("model", "strategy", title="predicted and measured on this machine")
    for name in ("predicted s", "measured s", "off", "predicted MiB", "measured MiB", "off", "bars"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.model,
            row.case,
            f"{row.predicted_s:.3f}",
            f"{row.measured_s:.3f}",
            f"{row.time_error:+.1%}",
            f"{row.predicted_bytes / MIB:.0f}",
            f"{row.measured_bytes / MIB:.0f}",
            f"{row.memory_error:+.1%}",
            "hold" if row.holds else f"missed ({row.time_bar:.0%}, {MEMORY_BAR:.0%})",
        )
    return table


if __name__ == "__main__":
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    sys.exit(main())
