"""Prices against published measurements: how far ours are from what others' clusters took.

    python benchmarks/price_truth.py
    python benchmarks/price_truth.py --points DIR --planners DIR --json OUT
    python benchmarks/price_truth.py --points DIR --each --cost sailor

--points: a folder of Sailor's validation points, any tree of JSON files; --trials: AMP's trials. --planners:
a folder with what both need beside them (Sailor's layer profiles, sizes and network fits, AMP's cost vectors,
data sheets); without it, the shared one where there is one. Nothing is fitted to a measured step. Prints for
each data set every reading of sends and links, Sailor's own formula beside, points that are left out and why,
and the bars. Exit code 1: a bar is missed; 2: nothing can be read.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console
from truth.amp_set import TrialSet, price_trials
from truth.amp_trials import read_trials
from truth.bars import bars
from truth.point_file import read_points
from truth.sailor_set import PointSet, price_points, sets_of
from truth.sailor_tables import FOLDER, TMP, SailorTables, read_tables
from truth.show import as_json, show_bars, show_points, show_set, show_trials

from hspmd_compiler.errors import EstimateError

SHARED = Path(__file__).resolve().parents[2] / "shared" / "reference" / "planners"


def main() -> int:
    """Read, price, print."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 150)
    planners = options.planners or SHARED
    try:
        if not planners.is_dir():
            raise EstimateError(f"{planners}: no such folder; --planners names one with the published tables")
        tables = read_tables(planners, {"tmp": TMP, "folder": FOLDER}[options.profiles])
        points = options.points or planners / "sailor" / "validation"
        sets, unread = _sets(tables, points)
        trials, unread_trials = _trials(planners, options.trials or planners / "amp" / "trials.json")
    except EstimateError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    _show(console, tables, sets, trials, options)
    for line in (*unread, *unread_trials):
        console.print(f"not read: {line}", highlight=False)
    found = bars(sets, trials)
    show_bars(console, found)
    if options.json is not None:
        content = as_json(sets, trials, found) | {"not_read": [*unread, *unread_trials]}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return int(any(bar.passed is False for bar in found))


def _options() -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=Path, help="a folder of Sailor's validation points")
    parser.add_argument("--trials", type=Path, help="a file of AMP's trials")
    parser.add_argument("--planners", type=Path, help="the folder of published tables")
    parser.add_argument(
        "--profiles", choices=("tmp", "folder"), default="tmp", help="profiles_tmp.json, or profiles/, first"
    )
    parser.add_argument(
        "--cost", choices=("ours", "sailor"), default="ours", help="whose prices --each shows"
    )
    parser.add_argument("--each", action="store_true", help="show every point")
    parser.add_argument("--forms", action="store_true", help="show the closed form against the simulation")
    parser.add_argument("--json", type=Path, help="write everything here, a row a point")
    return parser.parse_args()


def _sets(tables: SailorTables, folder: Path) -> tuple[list[PointSet], list[str]]:
    points, unread = read_points(folder, tables.layers_of)
    rows, unpriced = price_points(tables, points)
    return sets_of(rows), [*unread, *unpriced]


def _trials(planners: Path, path: Path) -> tuple[list[TrialSet], list[str]]:
    if not path.is_file():
        return [], [f"{path}: no such file of trials"]
    trials, unread = read_trials(path)
    sets, unpriced = price_trials(planners, trials)
    return sets, [*unread, *unpriced]


def _show(
    console: Console,
    tables: SailorTables,
    sets: list[PointSet],
    trials: list[TrialSet],
    options: Namespace,
) -> None:
    for note in tables.notes:
        console.print(note, highlight=False)
    for data in sets:
        kinds = {
            (row.point.model, place.kind)
            for row in data.rows
            for plan in row.point.pipelines
            for replica in plan.replicas
            for place in replica
        }
        sources = sorted({f"{kind} {tables.source[model, kind]}" for model, kind in kinds})
        console.print(f"{data.name}: profiles of {', '.join(sources)}", highlight=False)
        if options.each or options.cost == "sailor":
            show_points(console, data, options.cost)
        show_set(console, data, options.forms)
    for one in trials:
        show_trials(console, one)


if __name__ == "__main__":
    sys.exit(main())
