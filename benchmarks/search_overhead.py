"""What a search costs and finds: CPU seconds and the price of the program, tracing excluded and shown.

Called by compile_overhead.py: --model vit|bert|bert-moe|vgg19 --layers L --devices N --space hap|full, or
--runs FILE for every run of a file of the original's runs.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from hspmd_compiler.errors import HspmdError, OptionError
from hspmd_compiler.synthesizer.hap.profiles import EQUAL, EVERY, PROFILES, speeds_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "program_search"))
from published import Run, read_runs
from searched import BENCHMARKS, TABLE_WIDTH, Searched, Setting, check_models, searched

WITHOUT_LAYERS = ("vgg19",)
CLOSE = 1e-12
"""Prices that differ by less, relatively, are equal: sums in another order."""


def search_overhead(args: Namespace) -> int:
    """Search every case, print it, write all. 1: a run costs more than the original found."""
    try:
        return of_runs(args) if args.runs is not None else of_cases(args)
    except HspmdError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def of_cases(args: Namespace) -> int:
    if args.space == "full":
        return of_full_space(args)
    names = args.model.split(",")
    check_models(names)
    found = [repeated(setting, args.repeats) for setting in settings(names, args)]
    table = new_table(
        "HAP's space and cost", "search CPU s", "trace CPU s", "cost s", "a vector per tensor s"
    )
    for one in found:
        numbers = one.search_s, one.trace_s, one.cost, one.tensor_cost
        table.add_row(title(one.setting), *(f"{number:.4g}" for number in numbers))
    show(table, found)
    write(args.json, {"space": "hap", "rows": [row(one) for one in found]})
    return 0


def of_full_space(args: Namespace) -> int:
    """The product's own space, on the catalogue's devices."""
    from full_space import full_numbers, full_row, full_searches, full_table

    found = list(full_searches(args))
    table = full_table()
    for one in found:
        table.add_row(*full_numbers(one))
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(table)
    write(args.json, {"space": "full", "rows": [full_row(one) for one in found]})
    return 0


def settings(names: Sequence[str], args: Namespace) -> Iterator[Setting]:
    """Every model with every number of layers and devices."""
    if args.profile not in PROFILES:
        raise OptionError(f"no profile {args.profile!r}", details=[("known", ", ".join(PROFILES))])
    bandwidths = PROFILES[args.profile].scaled(args.bandwidth_scale)
    for name in names:
        for layers in [None] if name in WITHOUT_LAYERS else args.layers or [8]:
            for devices in args.devices:
                speeds = speeds_of(args.mix or f"{EVERY}{EQUAL:.0f}", devices)
                yield Setting(name, tuple(speeds), bandwidths, layers)


def repeated(setting: Setting, repeats: int) -> Searched:
    """The medians of the times; prices are the same each time."""
    found = [searched(setting) for _ in range(repeats)]
    times = {name: median(getattr(one, name) for one in found) for name in ("search_s", "tensor_search_s")}
    return replace(found[0], **times)


def of_runs(args: Namespace) -> int:
    """Every run of a file beside what the original found."""
    runs = read_runs(args.runs)
    found = [(run, searched(run.setting())) for run in runs]
    table = new_table(
        str(args.runs.name), "original s", "cost s", "ratio", "per tensor", "original CPU s", "CPU s", "trace"
    )
    for run, one in found:
        table.add_row(run.title, *run_numbers(run, one))
    rows = [run_row(run, one) for run, one in found]
    show(table, [one for _, one in found])
    dearer = [run.title for run, one in found if is_dearer(run, one)]
    compared = sum(run.final_cost_s is not None for run in runs)
    Console().print(f"{compared - len(dearer)} of {compared} runs cost at most what the original found")
    write(args.json, {"space": "hap", "runs": rows, "compared": compared, "dearer": dearer})
    return 1 if dearer else 0


def is_dearer(run: Run, found: Searched) -> bool:
    """Whether a program costs more than the original's, or more with a vector per tensor than with one."""
    limit = 1 + CLOSE
    above = run.final_cost_s is not None and found.cost > run.final_cost_s * limit
    return above or found.tensor_cost > found.cost * limit


def run_numbers(run: Run, found: Searched) -> list[str]:
    final, cpu_s = run.final_cost_s, run.cpu_s
    return [
        "" if final is None else f"{final:.6f}",
        f"{found.cost:.6f}",
        "" if final is None else f"{found.cost / final:.9f}",
        f"{found.tensor_cost / found.cost:.6f}",
        "" if cpu_s is None else f"{cpu_s:.2f}",
        f"{found.search_s:.4f}",
        f"{found.trace_s:.2f}",
    ]


def run_row(run: Run, found: Searched) -> dict[str, object]:
    """What was found, with the run that it is compared with."""
    final = run.final_cost_s
    given = {
        "title": run.title,
        "final_cost_s": final,
        "ratio": None if final is None else found.cost / final,
        "original_cpu_s": run.cpu_s,
        "flops_as_original": None if run.hap_flops_fwd_bwd is None else found.flops == run.hap_flops_fwd_bwd,
    }
    return given | row(found)


def row(found: Searched) -> dict[str, object]:
    """As JSON: the setting's fields beside those of the result."""
    content = asdict(found)
    setting = content.pop("setting")
    named = {"name": found.name, "devices": len(found.setting.speeds), "layers": found.setting.layers}
    return named | content | {"setting": setting}


def title(setting: Setting) -> str:
    layers = "" if setting.layers is None else f" {setting.layers} layers,"
    return f"{BENCHMARKS[setting.model].title}{layers} {len(setting.speeds)} devices"


def new_table(name: str, *columns: str) -> Table:
    table = Table("case", title=name, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def show(table: Table, found: Sequence[Searched]) -> None:
    """The table, and below it once what HAP's count leaves out of the last of each model."""
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(table)
    for one in {one.setting.model: one for one in found}.values():
        for note in one.notes:
            Console().print(f"{one.name}: {note}", soft_wrap=True, highlight=False)


def write(path: Path | None, content: dict[str, object]) -> None:
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
