"""E3: what a search costs by the number of layers, beside the original's synthesizer.

    python examples/program_search/overhead.py --plot overhead.svg

CPU seconds of one core, tracing excluded and shown; the original's are of another machine, of 2.1 GHz.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from plots import draw_curves
from published import ORIGINAL_RUNS, Run, matching, read_runs
from rich.console import Console
from rich.table import Table
from searched import BENCHMARKS, TABLE_WIDTH, Searched, Setting, check_models, searched

from hspmd_compiler.errors import HspmdError
from hspmd_compiler.synthesizer.hap.profiles import EQUAL, EVERY, PROFILES, speeds_of

TITLE = "E3: a search by the number of layers"
Row = tuple[Searched, Run | None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, print, draw."""
    args = _arguments(arguments)
    try:
        check_models([args.model])
        found = _rows(args)
    except HspmdError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(_table(args, found))
    if args.json is not None:
        rows = [asdict(one) | {"original_cpu_s": run.cpu_s if run else None} for one, run in found]
        args.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    if args.plot is not None:
        _draw(args, found)
    return 0


def _arguments(arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(description=TITLE, allow_abbrev=False)
    parser.add_argument("--model", default="vit", choices=[name for name in BENCHMARKS if name != "vgg19"])
    parser.add_argument("--layers", default="4,8,12,16,20,24", metavar="L[,L...]")
    parser.add_argument("--devices", type=int, default=8, metavar="N")
    parser.add_argument("--mix", default=f"{EVERY}{EQUAL:.0f}", metavar="TEXT", help="speeds of n devices")
    parser.add_argument("--profile", default="released", choices=list(PROFILES))
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--plot", type=Path, metavar="OUT.svg")
    return parser.parse_args(arguments)


def _rows(args: Namespace) -> list[Row]:
    """A first search, which loads what a process loads once, is not counted."""
    runs = read_runs(ORIGINAL_RUNS)
    speeds = tuple(speeds_of(args.mix, args.devices))
    settings = [
        Setting(args.model, speeds, PROFILES[args.profile], layers)
        for layers in map(int, args.layers.split(","))
    ]
    searched(settings[0])
    return [(searched(setting), matching(runs, setting)) for setting in settings]


def _table(args: Namespace, found: Sequence[Row]) -> Table:
    title = f"{TITLE}: {BENCHMARKS[args.model].title}, {args.devices} devices"
    table = Table("layers", title=title, title_justify="left")
    for column in (
        "HAP CPU s",
        "ours CPU s",
        "times faster",
        "ms a layer",
        "trace CPU s",
        "HAP cost s",
        "cost s",
    ):
        table.add_column(column, justify="right")
    for one, run in found:
        cpu_s, cost = (None, None) if run is None else (run.cpu_s, run.final_cost_s)
        layers = one.setting.layers or 1
        table.add_row(
            str(layers),
            "" if cpu_s is None else f"{cpu_s:.2f}",
            f"{one.search_s:.4f}",
            "" if cpu_s is None else f"{cpu_s / one.search_s:.0f}",
            f"{1e3 * one.search_s / layers:.2f}",
            f"{one.trace_s:.2f}",
            "" if cost is None else f"{cost:.6f}",
            f"{one.cost:.6f}",
        )
    return table


def _draw(args: Namespace, found: Sequence[Row]) -> None:
    ours = [(float(one.setting.layers or 1), one.search_s) for one, _ in found]
    original = [
        (float(one.setting.layers or 1), run.cpu_s) for one, run in found if run is not None and run.cpu_s
    ]
    curves = {"HAP": original} if original else {}
    title = f"{TITLE}: {BENCHMARKS[args.model].title}, {args.devices} devices"
    draw_curves(args.plot, title, {**curves, "ours": ours}, "layers", "CPU s")


if __name__ == "__main__":
    sys.exit(main())
