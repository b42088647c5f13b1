"""One run on a machine with a GPU, of five minutes at most: numbers, paths, times, memory of CUDA programs.

    python benchmarks/gpu_check.py [--only NAME[,NAME]] [--device cpu] [--json FILE]

Without a CUDA device it says so and ends well; `--device cpu` runs the same checks, small, on the CPU. Exit
code 1 where a check fails; the others run all the same. numbers: a Llama in bfloat16, program beside eager
PyTorch; each gradient differs by no more than eager's own does when its weights are moved by half a last bit.
paths: what only CUDA runs, once each. attention: ours and each of PyTorch's backends. times: a step of ours,
of eager and of torch.compile, fused AdamW. memory: the most that steps allocate, beside what `estimate` says
and beside eager. nccl: two ranks on this GPU, where NCCL allows it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from gpu_paths import check_attention, check_bad_index, check_clipped, check_compiled, check_dropout
from gpu_paths import check_optimizers as check_updates
from gpu_sides import Sizes, batch_of, eager_gradients, eager_step, llama, loaded, one_device, perturbed
from rich.console import Console

import hspmd_compiler as hspmd

FACTOR = 3.0
"""Of what rounding moves a gradient by: two runs that round otherwise differ by about twice as much."""
PERTURBED = 3
TURNS, WARM_UP = 15, 4
NCCL_S = 90
MOST_S = 300
HERE = Path(__file__).resolve()

Lines = list[str]


def main() -> int:
    """Run every check; a line for each, and what they found."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--only", default=",".join(CHECKS), metavar="NAME[,NAME]", help=", ".join(CHECKS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument("--rank", type=Path, help="internal: be a rank of the nccl check")
    args = parser.parse_args()
    console = Console(width=140)
    if args.device == "cuda" and not torch.cuda.is_available():
        console.print("skipped: no CUDA device here")
        return 0
    if args.rank is not None:
        return _be_a_rank(args.rank)
    if args.device == "cpu":
        torch.set_num_threads(1)
    start, found, failed = time.monotonic(), {}, []
    for name in args.only.split(","):
        begun = time.monotonic()
        if begun - start > MOST_S:
            found[name] = ["left out: five minutes are over"]
        else:
            try:
                found[name] = CHECKS[name](Sizes.of(args.device))
            except Exception as error:
                failed.append(name)
                found[name] = [f"FAILED: {type(error).__name__}: {error}", traceback.format_exc()]
        console.print(f"[bold]{name}[/] ({time.monotonic() - begun:.1f} s)")
        for line in found[name]:
            console.print("  " + line, markup=False)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return int(bool(failed))


def check_numbers(sizes: Sizes) -> Lines:
    """Gradients of the program beside eager's, in bfloat16."""
    model, batch = llama(sizes, torch.bfloat16), batch_of(sizes)
    loss, wanted = eager_gradients(model, batch, sizes.device)
    moved: dict[str, float] = dict.fromkeys(wanted, 0.0)
    for seed in range(PERTURBED):
        _, other = eager_gradients(perturbed(model, seed), batch, sizes.device)
        for name, grad in other.items():
            moved[name] = max(moved[name], _distance(grad, wanted[name]))
    with loaded(model, batch, one_device(sizes), sizes) as engine:
        ours = engine.step(batch)
        grads = engine.grads()
    ratios = {name: _distance(grads[name], wanted[name]) / max(moved[name], 1e-30) for name in wanted}
    worst = max(ratios, key=lambda name: ratios[name])
    over = [name for name, ratio in ratios.items() if not ratio <= FACTOR]
    assert not over, f"{len(over)} gradients differ by more than {FACTOR} times rounding: {over[:3]}"
    return [
        f"loss {ours:.6f}, eager {loss:.6f}",
        f"{len(ratios)} gradients; the worst, {worst}, by {ratios[worst]:.2f} of what rounding moves it",
    ]


def check_paths(sizes: Sizes) -> Lines:
    """What only a GPU runs."""
    checks = (check_updates, check_dropout, check_bad_index, check_clipped, check_compiled)
    return [line for check in checks for line in check(sizes)]


def check_times(sizes: Sizes) -> Lines:
    """Steps in turns, the optimizer included."""
    model, batch = llama(sizes, torch.bfloat16), batch_of(sizes)
    with loaded(model, batch, one_device(sizes), sizes) as engine:
        sides: dict[str, Callable[[], float]] = {
            "ours": lambda: engine.step(batch),
            "eager": eager_step(model, batch, sizes.device),
            "torch.compile": eager_step(model, batch, sizes.device, compiled=True),
        }
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(WARM_UP + TURNS):
            for name in [*sides][:: 1 if turn % 2 else -1]:
                begun = time.perf_counter()
                sides[name]()  # its loss is read back: all of the step is over
                taken[name].append(time.perf_counter() - begun)
    ms = {name: median(each[WARM_UP:]) * 1e3 for name, each in taken.items()}
    ratios = ", ".join(f"{ms['ours'] / ms[name]:.2f} of {name}" for name in ms if name != "ours")
    return [", ".join(f"{name} {each:.2f} ms" for name, each in ms.items()), f"ours is {ratios}"]


def check_memory(sizes: Sizes) -> Lines:
    """The most that is allocated in three steps."""
    if sizes.device != "cuda":
        return ["left out: a CPU does not tell what is allocated"]
    model, batch = llama(sizes, torch.bfloat16), batch_of(sizes)
    peaks = {}
    program = hspmd.compile(model, batch, strategy=one_device(sizes), device="cuda")
    with loaded(model, batch, one_device(sizes), sizes) as engine:
        peaks["ours"] = _peak(lambda: engine.step(batch))
    torch.cuda.empty_cache()
    peaks["eager"] = _peak(eager_step(model, batch, sizes.device))
    with tempfile.TemporaryDirectory() as folder:
        cluster = Path(folder) / "cluster.yaml"
        command = ["cluster", "new", "--node", "1xH200-SXM-141GB", "-o", str(cluster)]
        subprocess.run([sys.executable, "-m", "hspmd_compiler", *command], check=True, env=_environment())
        told = program.estimate(cluster).ranks[0].memory.peak.total
    text = ", ".join(f"{name} {each / 1e6:.0f} MB" for name, each in peaks.items())
    return [f"{text}; told {told / 1e6:.0f} MB, {told / peaks['ours']:.2f} of what was there"]


def _peak(step: Callable[[], float]) -> int:
    for _ in range(2):
        step()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    return torch.cuda.max_memory_allocated()


def check_nccl(sizes: Sizes) -> Lines:
    """Two ranks that share the GPU: most builds of NCCL refuse it."""
    if sizes.device != "cuda":
        return ["left out: NCCL is for CUDA devices"]
    model, batch = llama(sizes, torch.float32), batch_of(sizes)
    half = sizes.batch // 2
    stages = [
        {"stages": [{"devices": [rank], "layers": sizes.layers}], "micro_batches": [half]} for rank in (0, 1)
    ]
    with tempfile.TemporaryDirectory() as folder:
        program = hspmd.compile(model, batch, strategy={"pipelines": stages}, device="cuda")
        program.save(Path(folder) / "two")
        torch.save(batch, Path(folder) / "batch.pt")
        command = [sys.executable, str(HERE), "--rank", folder]
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "LOCAL_RANK": "0"}
        ranks = [
            subprocess.Popen(
                command,
                env=_environment() | shared | {"RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in (0, 1)
        ]
        try:
            said = [rank.communicate(timeout=NCCL_S)[0] for rank in ranks]
        except subprocess.TimeoutExpired:
            return [f"left out: two ranks on one GPU say nothing for {NCCL_S} s"]
        finally:
            for rank in ranks:
                rank.kill()
    if any("uplicate GPU" in text or "invalid usage" in text for text in said):
        return ["left out: this NCCL takes one rank per GPU"]
    assert not any(rank.returncode for rank in ranks), said[0][-2000:]
    loss, _ = eager_gradients(model, batch, sizes.device)
    first = float(said[0].split("loss ")[1].split()[0])
    assert abs(first - loss) <= 1e-3 * abs(loss), f"loss of two ranks {first}, of eager {loss}"
    return [f"two ranks on one GPU: loss {first:.6f}, eager {loss:.6f}"]


def _be_a_rank(folder: Path) -> int:
    engine = hspmd.load(folder / "two", timeout=NCCL_S / 2, start_timeout=NCCL_S / 2)
    print("loss", engine.step(torch.load(folder / "batch.pt")))
    engine.close()
    return 0


def _distance(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one.double().cpu() - two.double().cpu()).norm())


def _environment() -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    }


CHECKS: dict[str, Callable[[Sizes], Lines]] = {
    "numbers": check_numbers,
    "paths": check_paths,
    "attention": check_attention,
    "times": check_times,
    "memory": check_memory,
    "nccl": check_nccl,
}

if __name__ == "__main__":
    sys.exit(main())
