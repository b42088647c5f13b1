"""What heterogeneous.py and homogeneous.py share: step times of models on devices, as HAP counts them."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from plots import draw_bars
from published import ORIGINAL_RUNS, Run, matching, read_runs
from rich.console import Console
from rich.table import Table
from searched import BENCHMARKS, TABLE_WIDTH, Searched, Setting, check_models, searched

from hspmd_compiler.errors import HspmdError
from hspmd_compiler.synthesizer.hap.profiles import PROFILES, speeds_of

SERIES = ("DP-EV", "DP-CP", "HAP", "ours", "ours, a vector per tensor", "rounded", "whole slices")


@dataclass(frozen=True, slots=True)
class Experiment:
    """mix: speeds as HAP's authors write them. profile: bandwidths that they measured."""

    title: str
    mix: str
    profile: str


def main(experiment: Experiment, arguments: Sequence[str] | None = None) -> int:
    """Search, print, draw."""
    args = _arguments(experiment, arguments)
    try:
        found = list(_rows(experiment, args))
    except HspmdError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    console.print(_table(experiment, found))
    _say_notes(console, [one for one, _ in found])
    if args.json is not None:
        rows = [asdict(one) | {"original_cost": run.final_cost_s if run else None} for one, run in found]
        args.json.write_text(json.dumps({"experiment": asdict(experiment), "rows": rows}, indent=1) + "\n")
    if args.plot is not None:
        groups = {
            _name(one): [cost / one.dp_even_cost if cost else None for cost in costs(one, run)]
            for one, run in found
        }
        draw_bars(args.plot, f"{experiment.title}: step time beside DP-EV", groups, SERIES, "DP-EV = 1")
    return 0


def costs(found: Searched, run: Run | None) -> list[float | None]:
    """In the order of SERIES."""
    original = None if run is None else run.final_cost_s
    baselines = found.dp_even_cost, found.dp_proportional_cost, original
    return [*baselines, found.cost, found.tensor_cost, found.rounded_tensor_cost, found.whole_cost]


def _rows(experiment: Experiment, args: Namespace) -> Iterator[tuple[Searched, Run | None]]:
    names = args.models.split(",")
    check_models(names)
    runs = read_runs(ORIGINAL_RUNS)
    bandwidths = PROFILES[experiment.profile].scaled(0.25 if args.bytes else 1.0)
    for name in names:
        for devices in map(int, args.devices.split(",")):
            speeds = tuple(speeds_of(experiment.mix, devices))
            layers = None if name == "vgg19" else args.layers
            setting = Setting(name, speeds, bandwidths, layers)
            yield searched(setting), matching(runs, setting)


def _arguments(experiment: Experiment, arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(description=experiment.title, allow_abbrev=False)
    parser.add_argument("--models", default=",".join(BENCHMARKS), metavar="NAME[,NAME...]")
    parser.add_argument("--devices", default="8,16,32,64", metavar="N[,N...]")
    parser.add_argument("--layers", type=int, default=8, metavar="L")
    parser.add_argument("--bytes", action="store_true", help="count bytes, not elements as HAP does")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--plot", type=Path, metavar="OUT.svg")
    return parser.parse_args(arguments)


def _table(experiment: Experiment, found: Sequence[tuple[Searched, Run | None]]) -> Table:
    table = Table("model", "devices", title=experiment.title, title_justify="left")
    for column in (*(f"{name} s" for name in SERIES), "DP-EV / ours", "DP-CP / ours"):
        table.add_column(column, justify="right")
    for one, run in found:
        numbers = ["" if cost is None else f"{cost:.5f}" for cost in costs(one, run)]
        gains = [f"{cost / one.tensor_cost:.2f}" for cost in (one.dp_even_cost, one.dp_proportional_cost)]
        table.add_row(one.name, str(len(one.setting.speeds)), *numbers, *gains)
    return table


def _say_notes(console: Console, found: Sequence[Searched]) -> None:
    console.print(
        "Seconds of a step as HAP prices it; HAP: what its own synthesizer found, where it was run."
    )
    for one in {one.setting.model: one for one in found}.values():
        for note in one.notes:
            console.print(f"{_name(one)}: {note}", soft_wrap=True, highlight=False)


def _name(found: Searched) -> str:
    return f"{found.name} {len(found.setting.speeds)}"
