"""Plans of nine models for unequal machines beside data and tensor parallelism, proved on shrunken sizes.

    python benchmarks/plan_table.py [--cluster FILE] [--only TEXT] [--save DIR] [--json]

Each model is planned for in full size. The baselines are compiled and priced in the same way by the same
command: DP-EV (equal samples), DP-CP (samples by speed) and the quickest of Megatron's tensor parallelism by
even groups. Then the plan's own strategy, as it stands, is compiled for a narrow model of as many layers,
heads and experts, and all ranks are stepped beside one device. Exit code 1 where a plan isn't equal to one
device or is slower than a baseline.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from planned_models import PLANNED_MODELS, PlannedModel
from rich.console import Console
from rich.table import Table

import hspmd_compiler as hspmd
from hspmd_compiler.cluster.cluster import ClusterSpec
from hspmd_compiler.cluster.new import NewCluster, new_cluster
from hspmd_compiler.cluster.read import read_cluster
from hspmd_compiler.errors import HspmdError
from hspmd_compiler.strategy.write import write_strategy
from hspmd_compiler.synthesizer.planner.baselines import DP_CP, DP_EV
from hspmd_compiler.synthesizer.planner.plan import Plan

NODES = ("2*1xV100-16", "6*1xP100")
NETWORK = "10.4Gbit"
"""As HAP's heterogeneous cluster: two of eight devices are fast."""
TP = "TP"
SLACK = 1e-9
"""A plan that equals a baseline is that baseline."""
WIDTH = 150


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """Seconds of a step; None where nothing of that kind compiles and fits. error: why no proof."""

    model: str
    batch: int
    plan: str
    planned_s: float
    predicted_s: float | None
    bound_s: float
    baselines_s: dict[str, float | None]
    tensor_parallel: str
    plan_cpu_s: float
    verify_cpu_s: float
    error: str

    @property
    def over_best(self) -> float:
        """How many times as quick as the quickest baseline."""
        told = [seconds for seconds in self.baselines_s.values() if seconds is not None]
        return min(told, default=float("inf")) / self.planned_s

    @property
    def holds(self) -> bool:
        return not self.error and self.over_best >= 1 - SLACK


def main() -> int:
    """Plans, proves and prints."""
    args = _arguments()
    cluster = (
        read_cluster(args.cluster)
        if args.cluster
        else new_cluster(NewCluster(NODES, network=NETWORK)).cluster
    )
    rows = []
    for model in PLANNED_MODELS:
        if args.only.lower() in model.name.lower():
            rows.append(_row(model, cluster, args.save))
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps([{**asdict(row), "over_best": row.over_best} for row in rows], indent=1))
    else:
        Console(width=WIDTH).print(_table(rows))
    return int(not all(row.holds for row in rows))


def _arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--cluster", type=Path, help="(default: two nodes of a V100, six of a P100)")
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose name has it")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write each plan's strategy")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _row(model: PlannedModel, cluster: ClusterSpec, folder: Path | None) -> PlannedRow:
    start = time.process_time()
    found = hspmd.plan(model.full, cluster=cluster, global_batch=model.batch)
    planned = time.process_time()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_strategy(found.strategy, folder / f"{model.file_name}.yaml")
    error = _unequal(model, found)
    seconds, degree = _baselines(found)
    return PlannedRow(
        model.name,
        model.batch,
        found.chosen.name,
        found.estimate.step_s,
        found.planned_s,
        found.bound_s,
        seconds,
        degree,
        planned - start,
        time.process_time() - planned,
        error,
    )


def _unequal(model: PlannedModel, found: Plan) -> str:
    """Why the strategy isn't one device's step on the shrunken model; nothing where it is."""
    try:
        hspmd.compile(model.small, strategy=found.strategy).verify(values=True)
    except HspmdError as error:
        return str(error)
    return ""


def _baselines(found: Plan) -> tuple[dict[str, float | None], str]:
    """Seconds of each kind, and which tensor parallelism is the quickest."""
    told = [one for one in (found.chosen, *found.runner_ups) if one.fits and one.candidate.found is None]
    kinds: dict[str, float | None] = {}
    quickest = {}
    for kind in (DP_EV, DP_CP, TP):
        ours = [one for one in told if one.name.split(",")[0] == kind or one.name.startswith(f"{kind} ")]
        best = min(ours, key=lambda one: one.step_s, default=None)
        kinds[kind], quickest[kind] = (None, "") if best is None else (best.step_s, best.name)
    return kinds, quickest[TP]


def _line(row: PlannedRow) -> str:
    proof = "equal to one device" if not row.error else row.error
    return f"{row.model}: {row.plan}, {row.planned_s:.4g} s, {row.over_best:.3f} x the best baseline; {proof}"


def _table(rows: Iterable[PlannedRow]) -> Table:
    table = Table(title="seconds of a step by the same prices")
    for name in ("model", "plan"):
        table.add_column(name)
    for name in ("batch", "planned", "predicted", "bound", DP_EV, DP_CP, TP, "x best", "plan CPU s"):
        table.add_column(name, justify="right")
    table.add_column("one device")
    for row in rows:
        seconds = (row.planned_s, row.predicted_s, row.bound_s, *row.baselines_s.values())
        table.add_row(
            *(row.model, row.plan, str(row.batch)),
            *("-" if one is None else f"{one:.3g}" for one in seconds),
            *(f"{row.over_best:.2f}", f"{row.plan_cpu_s:.1f}", "differs" if row.error else "equal"),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
