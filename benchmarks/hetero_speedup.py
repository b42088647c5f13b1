"""What a plan gains on unequal ranks: four local ranks at paces 4, 4, 16 and 16, measured step by step.

    hspmd profile -o cluster.yaml
    python benchmarks/hetero_speedup.py cluster.yaml [--steps N] [--only TEXT] [--json]

In one run: torch's DistributedDataParallel with as many samples each, DP-EV and DP-CP by our runtime, and the
plan of `hspmd plan` for these machines. Ranks keep to a pace as `hspmd run --pace` says it: what they compute
takes 4 or 16 times as long as the profile found, and they sleep for the rest, so that few processors carry
them. By speeds the ideal over equal samples is 2.5 times. Exit code 1 where a bar is missed: the plan at
least 2.2 times as quick as DP-EV, no slower than DP-CP and DDP beyond noise, its prediction within 10 %.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from hetero_model import SAMPLES, build
from rich.console import Console
from rich.table import Table

from hspmd_compiler.api import CompiledProgram, compile, plan
from hspmd_compiler.base.pace import Pace, Stretches, write_pace
from hspmd_compiler.cluster.cluster import ClusterSpec
from hspmd_compiler.cluster.read import read_cluster
from hspmd_compiler.cost_models.estimate import Estimate
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.program.program import Op
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.synthesizer.planner.plan import Plan

PACES = (4.0, 4.0, 16.0, 16.0)
OPTIMIZER = OptimizerConfig(OptimizerName.SGD, lr=1e-2)
WARM_UP, STEPS = 2, 50
SPEEDUP_BAR, PREDICTION_BAR, NOISE = 2.2, 0.10, 0.05
DDP, EVEN, FAIR, OURS = "torch DDP", "DP-EV", "DP-CP", "plan"
WIDTH = 140  # columns where there is no terminal
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One way of training. Seconds of a step: the median, and the quarters below and above. predicted_s:
    None of what isn't ours. samples: of each rank."""

    name: str
    strategy: str
    samples: str
    steps: int
    low_s: float
    median_s: float
    high_s: float
    predicted_s: float | None
    first_loss: float
    last_loss: float

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return None if self.predicted_s is None else self.predicted_s / self.median_s - 1


def main() -> int:
    """Measures all and prints a table, or JSON."""
    args = _arguments()
    torch.set_num_threads(1)
    cluster = _paced(read_cluster(args.cluster))
    found = plan(build, cluster=cluster, global_batch=SAMPLES, optimizer=OPTIMIZER)
    rows = {}
    for name in (DDP, EVEN, FAIR, OURS):
        if args.only in name:
            rows[name] = _row(name, found, cluster, args.steps)
            if not args.json:
                print(_line(rows[name]), flush=True)
    bars = _bars(rows)
    if args.json:
        told = [{**asdict(row), "error": row.error} for row in rows.values()]
        print(
            json.dumps({"rows": told, "bars": {name: value for name, (value, _) in bars.items()}}, indent=1)
        )
    else:
        _show(rows, bars)
    return int(not all(holds for _, holds in bars.values()))


def _arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("cluster", type=Path, help="what `hspmd profile` wrote on this machine")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"of each (default: {STEPS})")
    parser.add_argument("--only", default="", metavar="TEXT", help="ways whose name has it")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _paced(cluster: ClusterSpec) -> ClusterSpec:
    """The machine of the profile as four devices of two kinds."""
    node = cluster.nodes[0]
    devices = tuple(replace(node.devices[0], pace=pace) for pace in PACES)
    return replace(cluster, nodes=(replace(node, devices=devices),))


def _row(name: str, found: Plan, cluster: ClusterSpec, steps: int) -> SpeedRow:
    priced = {one.name: one for one in (found.chosen, *found.runner_ups)}
    strategy = {OURS: found.strategy, FAIR: priced[FAIR].strategy}.get(name, priced[EVEN].strategy)
    made = compile(build, strategy=strategy, optimizer=OPTIMIZER, cluster=cluster)
    told = made.estimate(cluster)
    if name == DDP:
        seconds, losses = _run_ddp(made, told, strategy, steps)
    else:
        seconds, losses = _run_ours(made, told, steps)
    low, median, high = np.quantile(seconds[WARM_UP:], (0.25, 0.5, 0.75))
    chosen = strategy.name or name
    return SpeedRow(
        name,
        "even, buckets beside backward" if name == DDP else chosen,
        " ".join(str(pipeline.batch_size) for pipeline in strategy.pipelines),
        len(seconds) - WARM_UP,
        float(low),
        float(median),
        float(high),
        None if name == DDP else told.step_s,
        losses[0],
        losses[-1],
    )


def _run_ours(made: CompiledProgram, told: Estimate, steps: int) -> tuple[list[float], list[float]]:
    """By the command, in a process that has not compiled."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made.save(folder / "artifact")
        write_pace(Pace(told.least_s), folder / "pace.json")
        flags = ["--data", "hetero_model:batches", "--steps", str(WARM_UP + steps), "--json"]
        flags += ["--pace", str(folder / "pace.json")]
        command = [sys.executable, "-m", "hspmd_compiler", "run", str(folder / "artifact"), *flags]
        done = subprocess.run(
            command, cwd=HERE, env=_environment(), capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(done.stderr)
    said = [json.loads(line) for line in done.stdout.splitlines() if '"seconds"' in line]
    return [line["seconds"] for line in said], [line["loss"] for line in said]


def _run_ddp(
    made: CompiledProgram, told: Estimate, strategy: Strategy, steps: int
) -> tuple[list[float], list[float]]:
    """A process for each rank, at the pace of DP-EV's forward, backward and update."""
    port = _free_port()
    runs, low = [], 0
    for rank, pipeline in enumerate(strategy.pipelines):
        given = {
            "meeting": f"tcp://127.0.0.1:{port}",
            "rank": rank,
            "ranks": len(PACES),
            "samples": SAMPLES,
            "rows": [low, low + pipeline.batch_size],
            "steps": WARM_UP + steps,
            "lr": OPTIMIZER.lr,
            **_least(made, told.least_s[rank], rank),
        }
        low += pipeline.batch_size
        command = [sys.executable, str(HERE / "hetero_ddp.py"), json.dumps(given)]
        runs.append(subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, text=True))
    said = [run.communicate()[0] for run in runs]
    if any(run.returncode for run in runs):
        sys.exit("a rank of DDP failed")
    found = json.loads(said[0])
    return found["seconds"], found["losses"]


def _least(made: CompiledProgram, least_s: Mapping[int, Stretches], rank: int) -> dict[str, float]:
    instructions = made.artifact.program.ranks[rank].instructions
    sums = {
        op: sum(sum(stretches) for at, stretches in least_s.items() if instructions[at].op is op)
        for op in (Op.FORWARD, Op.BACKWARD, Op.OPTIMIZER)
    }
    return {
        "forward_s": sums[Op.FORWARD],
        "backward_s": sums[Op.BACKWARD],
        "update_s": sums[Op.OPTIMIZER],
    }


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port


def _environment() -> dict[str, str]:
    paths = [str(HERE), str(HERE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    kept = {name: value for name, value in os.environ.items() if name != "RANK"}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "OMP_NUM_THREADS": "1"}


def _bars(rows: Mapping[str, SpeedRow]) -> dict[str, tuple[float, bool]]:
    """What is to hold, with the figure and whether it does; as far as it was measured."""
    found: dict[str, tuple[float, bool]] = {}
    ours = rows.get(OURS)
    if ours is None:
        return found
    for name, bar in ((EVEN, SPEEDUP_BAR), (FAIR, 1 - NOISE), (DDP, 1 - NOISE)):
        if name in rows:
            gain = rows[name].median_s / ours.median_s
            found[f"{OURS} over {name}, at least {bar:g}"] = (gain, gain >= bar)
    assert ours.error is not None, "ours is predicted"
    error = ours.error
    found[f"{OURS} predicted, within {PREDICTION_BAR:.0%}"] = (error, abs(error) <= PREDICTION_BAR)
    return found


def _line(row: SpeedRow) -> str:
    told = "" if row.error is None else f", predicted {row.predicted_s:.3f} s ({row.error:+.1%})"
    return (
        f"{row.name:10} {row.median_s:.3f} s a step ({row.low_s:.3f} to {row.high_s:.3f}, {row.steps} steps)"
        f"{told}"
    )


def _show(rows: Mapping[str, SpeedRow], bars: Mapping[str, tuple[float, bool]]) -> None:
    table = Table("training", "strategy", "samples", title="ranks at paces 4, 4, 16, 16 on this machine")
    for name in ("steps", "median s", "quarters s", "predicted s", "off", f"over {EVEN}", "loss"):
        table.add_column(name, justify="right")
    even = rows.get(EVEN)
    for row in rows.values():
        table.add_row(
            row.name,
            row.strategy,
            row.samples,
            str(row.steps),
            f"{row.median_s:.3f}",
            f"{row.low_s:.3f} to {row.high_s:.3f}",
            "" if row.predicted_s is None else f"{row.predicted_s:.3f}",
            "" if row.error is None else f"{row.error:+.1%}",
            "" if even is None else f"{even.median_s / row.median_s:.2f}",
            f"{row.first_loss:.4f} to {row.last_loss:.4f}",
        )
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
    for name, (value, holds) in bars.items():
        print(f"{name}: {value:.3f} {'holds' if holds else 'missed'}")


if __name__ == "__main__":
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    sys.exit(main())
