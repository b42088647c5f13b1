"""What a compile costs, phase by phase: CPU seconds and peak memory, medians of fresh processes. Or a search.

    python benchmarks/compile_overhead.py --model llama-32b --layers 4,60 --ranks 64,1024 --json OUT
    python benchmarks/compile_overhead.py --model llama-32b --strategy FILE --id case5 --json OUT
    python benchmarks/compile_overhead.py --model vit --layers 8,24 --devices 8 --space hap --json OUT
    python benchmarks/compile_overhead.py --runs PEER_RUNS.json --json OUT

--ranks N is homogeneous: TP 8, min(4, N/8) stages, the rest data parallel, 64 samples. A strategy
of another number of layers is scaled. What a first compile imports is imported beforehand, and shown.

--space: a strategy is searched, for each number of --devices, and the search timed: search_overhead.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from os import cpu_count
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from hspmd_compiler.strategy.formats.expanded import Choices
from hspmd_compiler.strategy.formats.read import pick, read_entries
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.strategy.write import write_strategy

ONE = Path(__file__).with_name("compile_once.py")
TP, MOST_STAGES, SAMPLES = 8, 4, 64
REPEATS = 3
TRACING = ("build", "trace")
PER_RANK = "write the ranks"


@dataclass(frozen=True, slots=True)
class Phase:
    """depth: 0 for a phase of its own, 1 for a part of the one before. peak: bytes held at most in it."""

    name: str
    depth: int
    seconds: float
    peak: int


@dataclass(frozen=True, slots=True)
class Cost:
    """A compile. imports: seconds, in no phase. classes: distinct programs. size: bytes on disk."""

    model: str
    layers: int
    strategy: str
    ranks: int
    classes: int
    size: int
    imports: float
    phases: tuple[Phase, ...]

    @property
    def per_rank(self) -> float:
        """Seconds of writing per-rank tables."""
        return sum(phase.seconds for phase in self.phases if phase.name == PER_RANK)

    @property
    def total(self) -> float:
        """From the model to a written artifact, without imports and per-rank tables."""
        return sum(phase.seconds for phase in self.phases if phase.depth == 0) - self.per_rank

    @property
    def after_tracing(self) -> float:
        tracing = sum(p.seconds for p in self.phases if p.depth == 0 and p.name in TRACING)
        return self.total - tracing

    @property
    def peak(self) -> int:
        return max(phase.peak for phase in self.phases)


def main() -> int:
    """Measure every case, print each as it is done, write them all."""
    args = arguments()
    if args.space is not None or args.runs is not None:
        from search_overhead import search_overhead

        return search_overhead(args)
    found: list[Cost] = []
    with tempfile.TemporaryDirectory() as folder:
        for layers, name, strategy in cases(args):
            file = Path(folder) / "strategy.json"
            write_strategy(strategy, file)
            modules = Path(folder) / "modules.json"
            if not modules.exists():
                once(args.model, layers, file, modules)
            runs = [once(args.model, layers, file, modules) for _ in range(args.repeats)]
            found.append(summary(args.model, layers, name, strategy, runs))
            Console().print(page(found[-1]))
    if args.json is not None:
        content = {"cores": cpu_count(), "repeats": args.repeats, "costs": [record(cost) for cost in found]}
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if args.plot is not None:
        from compile_plot import plot

        plot([record(cost) for cost in found], args.plot)
    return 0


def arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", default="llama-32b", help="a built-in name that has layers")
    parser.add_argument("--layers", type=numbers, metavar="L[,L...]")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--strategy", type=Path, metavar="FILE", help="in any form that hspmd reads")
    given.add_argument("--ranks", type=numbers, metavar="N[,N...]")
    given.add_argument("--space", choices=("hap", "full"), help="search a strategy, in HAP's space or ours")
    given.add_argument("--runs", type=Path, metavar="FILE", help="HAP's own runs, each searched anew")
    searched = parser.add_argument_group("searches")
    searched.add_argument("--devices", type=numbers, default=[8], metavar="N[,N...]")
    searched.add_argument("--mix", metavar="TEXT", help="speeds: [3e12]*(n*2/8) + [2e12]*(n*6/8); else equal")
    searched.add_argument("--profile", default="released", help="bandwidths: one that HAP's authors left")
    searched.add_argument("--bandwidth-scale", type=float, default=1.0, metavar="X", help="0.25: true bytes")
    parser.add_argument("--id", metavar="ID[,ID...]", help="which of a file that holds several")
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--plot", type=Path, metavar="OUT", help="a picture, .png or .svg: the extra `plot`")
    args = parser.parse_args()
    if args.layers is None and args.space is None and args.runs is None:
        parser.error("the following arguments are required: --layers")
    return args


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def cases(args: Namespace) -> Iterator[tuple[int, str, Strategy]]:
    """(layers, name, strategy) of everything that is asked for."""
    for layers in args.layers:
        if args.ranks is not None:
            for count in args.ranks:
                yield layers, f"{count} equal ranks", homogeneous(count, layers)
            continue
        _, entries = read_entries(args.strategy, Choices(num_layers=None))
        for wanted in [None] if args.id is None else args.id.split(","):
            entry = pick(entries, wanted, str(args.strategy))
            yield layers, wanted or args.strategy.stem, scaled(entry.expand().strategy, layers)


def homogeneous(ranks: int, layers: int) -> Strategy:
    """Equal pipelines of equal stages; the batch has the same samples for any number of ranks."""
    tp = min(TP, ranks)
    stages = min(MOST_STAGES, ranks // tp)
    pipelines = ranks // tp // stages
    bounds = [layers * stage // stages for stage in range(stages + 1)]
    specs = []
    for pipeline in range(pipelines):
        firsts = [(pipeline * stages + stage) * tp for stage in range(stages)]
        held = tuple(
            StageSpec(tuple(range(first, first + tp)), (bounds[stage], bounds[stage + 1]))
            for stage, first in enumerate(firsts)
        )
        specs.append(PipelineSpec(held, (1,) * max(1, SAMPLES // pipelines)))
    return Strategy(tuple(specs))


def scaled(strategy: Strategy, layers: int) -> Strategy:
    """The same devices and batches over another number of layers; every stage keeps at least one."""
    return replace(strategy, pipelines=tuple(_scaled(item, layers) for item in strategy.pipelines))


def _scaled(pipeline: PipelineSpec, layers: int) -> PipelineSpec:
    count = len(pipeline.stages)
    low, stages = 0, []
    for index, stage in enumerate(pipeline.stages):
        wanted = stage.layers[1] * layers // pipeline.num_layers
        high = min(max(wanted, low + 1), layers - (count - 1 - index))
        stages.append(replace(stage, layers=(low, high)))
        low = high
    return replace(pipeline, stages=tuple(stages))


def once(model: str, layers: int, strategy: Path, modules: Path) -> dict[str, object]:
    """One compile in a process of its own."""
    command = [sys.executable, str(ONE), model, str(layers), str(strategy), str(modules)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, object] = json.loads(done.stdout)
    return result


def summary(model: str, layers: int, name: str, strategy: Strategy, runs: list[dict[str, object]]) -> Cost:
    """Medians, phase by phase."""
    first = runs[0]
    by_phase = zip(*([Phase(**item) for item in run["phases"]] for run in runs), strict=True)  # type: ignore
    phases = tuple(
        replace(
            same[0],
            seconds=median(phase.seconds for phase in same),
            peak=int(median(phase.peak for phase in same)),
        )
        for same in by_phase
    )
    imports = median(float(str(run["imports"])) for run in runs)
    classes, size = int(str(first["classes"])), int(str(first["size"]))
    return Cost(model, layers, name, strategy.world_size, classes, size, imports, phases)


def record(cost: Cost) -> dict[str, object]:
    sums = ("total", "after_tracing", "per_rank", "peak")
    return asdict(cost) | {name: getattr(cost, name) for name in sums}


def page(cost: Cost) -> Table:
    title = f"{cost.model}, {cost.layers} layers, {cost.strategy}: {cost.ranks} ranks, {cost.classes} classes"
    table = Table("phase", title=title, title_justify="left")
    for name in ("CPU s", "peak MB"):
        table.add_column(name, justify="right")
    for phase in cost.phases:
        row = f"{phase.seconds:.2f}", f"{phase.peak / 1e6:.0f}"
        table.add_row("  " * phase.depth + phase.name, *row)
    table.add_section()
    table.add_row("trace to artifact, without per-rank tables", f"{cost.total:.2f}", f"{cost.peak / 1e6:.0f}")
    table.add_row("of it after tracing", f"{cost.after_tracing:.2f}", "")
    table.add_row("imports, apart", f"{cost.imports:.2f}", "")
    return table


if __name__ == "__main__":
    sys.exit(main())
