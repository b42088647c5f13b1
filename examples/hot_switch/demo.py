"""HotSPa's runs: each length of sequences under the strategy that suits it, all in one step, equal to one.

python examples/hot_switch/demo.py  # 8 local ranks, a small Llama, beside each strategy alone
python examples/hot_switch/demo.py c1_32b_32gpus_32768 --compile-only
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import small_llama
import torch
from bytes_moved import Flow, flows_of
from published_runs import BucketStrategy, HotRun, longest, named, read_runs
from rich.console import Console
from tables import flow_table, run_table, spent_table, verdict
from trained_runs import Task, TrainedRun, train_hot, train_whole

import hspmd_compiler as hspmd
from hspmd_compiler.errors import HspmdError
from hspmd_compiler.options import OptimizerConfig, OptimizerName

BUILD = Path(__file__).resolve().parents[2] / "build" / "hot_switch"
DEFAULT = "c1_7b_8gpus_32768"
SHRINK = 128
"""What lengths are divided by for the small model: 32,768 tokens become 256."""
MOST_LOCAL = 8
OPTIMIZER = OptimizerConfig(OptimizerName.SGD, lr=0.1, momentum=0.9, max_grad_norm=1.0)
"""No AdamW, which makes rounding as large as the step where a gradient is zero."""
NOT_EQUAL = 1

console = Console(highlight=False)


def main(given: Sequence[str] | None = None) -> int:
    """Exit code 0 if all trainings have the same losses, up to rounding in float32."""
    args = parsed(given)
    runs = read_runs()
    if args.list:
        for run in runs.values():
            degrees = ", ".join(f"{dp}x{tp}x{pp}" for dp, tp, pp in run.degrees)
            console.print(f"{run.name}: {run.gpus} ranks, lengths {run.bounds}, dp x tp x pp: {degrees}")
        return 0
    run = named(runs, args.run)
    torch.set_num_threads(1)  # as each rank has
    return full_size(run, args) if args.compile_only else trained(run, args)


def parsed(given: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = ArgumentParser(description="One step, several strategies: HotSPa's published runs.")
    parser.add_argument("run", nargs="?", default=DEFAULT, help=f"a published run (default: {DEFAULT})")
    parser.add_argument("--list", action="store_true", help="show the runs")
    parser.add_argument("--steps", type=int, default=5, metavar="N")
    parser.add_argument("--sequences", type=int, default=32, metavar="N", help="of a step (default: 32)")
    parser.add_argument("--compile-only", action="store_true", help="the model at full size, by shape")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the numbers")
    return parser.parse_args(given)


def trained(run: HotRun, args: Namespace) -> int:
    """The run with a small model, in real processes on this machine."""
    if run.gpus > MOST_LOCAL:
        console.print(f"{run.name} has {run.gpus} ranks, more than {MOST_LOCAL} here: --compile-only")
        return 2
    strategies = run.strategies(small_llama.LAYERS, SHRINK)
    task = Task(args.steps, args.sequences, longest(strategies))
    console.print(f"[bold]{run.name}[/bold]: a small Llama on {run.gpus} ranks, lengths divided by {SHRINK}")
    directory, flows = compiled_bundle(run, strategies)
    hot = train_hot(directory, strategies, task)
    alone = [
        train_whole(name, compiled_alone(run, name, strategy, task), task)
        for name, strategy in run.whole(small_llama.LAYERS, args.sequences)
    ]
    everything = [hot, *alone]
    console.print(flow_table(flows, strategies), run_table(everything), spent_table(hot), verdict(everything))
    written(args.json, run, everything, flows)
    return 0 if verdict(everything).is_equal else NOT_EQUAL


def compiled_bundle(run: HotRun, strategies: Sequence[BucketStrategy]) -> tuple[Path, list[Flow]]:
    """All strategies with plans from home to each and back; what these move."""
    start, directory = perf_counter(), BUILD / run.name
    bundle = hspmd.compile_bundle(
        lambda: small_llama.build(longest(strategies)),
        strategies={
            each.name: hspmd.BundleEntry(each.strategy, small_llama.tokens(each.longest))
            for each in strategies
        },
        home=strategies[0].name,
        switch=(),
        optimizer=OPTIMIZER,
    )
    bundle.save(directory, force=True)
    console.print(f"  compiled {len(strategies)} strategies in {perf_counter() - start:.1f} s")
    return directory, flows_of(bundle)


def compiled_alone(run: HotRun, name: str, strategy: object, task: Task) -> Path:
    """One strategy on the whole padded batch."""
    start, directory = perf_counter(), BUILD / f"{run.name}-{name}"
    program = hspmd.compile(lambda: small_llama.build(task.longest), strategy=strategy, optimizer=OPTIMIZER)
    program.save(directory, force=True)
    console.print(f"  compiled {name} alone in {perf_counter() - start:.1f} s")
    return directory


def full_size(run: HotRun, args: Namespace) -> int:
    """The published model, compiled and proven by shape; nothing is trained."""
    strategies = run.strategies(run.layers)
    start = perf_counter()
    bundle = hspmd.compile_bundle(
        f"llama-{run.size}",
        strategies={
            each.name: hspmd.BundleEntry(each.strategy, small_llama.tokens(each.longest))
            for each in strategies
        },
        home=strategies[0].name,
        switch=(),
        precision="bfloat16",
    )
    console.print(f"[bold]{run.name}[/bold]: llama-{run.size}, {run.gpus} ranks")
    console.print(f"  compiled {len(strategies)} strategies in {perf_counter() - start:.1f} s")
    flows = flows_of(bundle)
    console.print(flow_table(flows, strategies))
    written(args.json, run, [], flows)
    return 0


def written(path: Path | None, run: HotRun, done: Sequence[TrainedRun], flows: Sequence[Flow]) -> None:
    """The numbers, for scripts."""
    if path is not None:
        content = {
            "run": run.name,
            "flows": [flow.to_json() for flow in flows],
            "trained": [each.to_json() for each in done],
        }
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HspmdError as error:
        console.print(str(error), style="red")
        sys.exit(2)
