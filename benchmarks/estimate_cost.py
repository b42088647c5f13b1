"""CPU seconds of `hspmd estimate`: the whole command, imports included, and reading and pricing alone.

python benchmarks/estimate_cost.py DIR CLUSTER [--repeats 3]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from time import process_time

from hspmd_compiler.artifact.store import load
from hspmd_compiler.cluster.read import read_cluster
from hspmd_compiler.cost_models.estimate import estimate_artifact


def command_s(*words: str) -> float:
    """CPU seconds of a Python of its own."""
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("cluster", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    words = ("-m", "hspmd_compiler", "estimate", str(args.directory), "--cluster", str(args.cluster))
    whole = median(command_s(*words) for _ in range(args.repeats))
    alone = median(command_s("-c", "import torch") for _ in range(args.repeats))
    cluster = read_cluster(args.cluster)
    reading, pricing = [], []
    for _ in range(args.repeats):
        start = process_time()
        artifact = load(args.directory, with_graph=False)
        read = process_time()
        found = estimate_artifact(artifact, cluster, str(args.cluster))
        reading.append(read - start)
        pricing.append(process_time() - read)
    print(
        f"{len(found.ranks)} ranks: {whole:.2f} s the whole command, of which importing torch {alone:.2f} s;"
    )
    print(f"{median(reading):.2f} s to read, {median(pricing):.2f} s to price")


if __name__ == "__main__":
    main()
