"""CPU seconds of `hspmd estimate`: reading an artifact, and pricing it. Modules are imported beforehand.

python benchmarks/estimate_cost.py DIR CLUSTER [--repeats 3]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import process_time

import torch

from hspmd_compiler.artifact.store import load
from hspmd_compiler.cluster.read import read_cluster
from hspmd_compiler.cost_models.estimate import estimate_artifact


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("cluster", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.ops.aten.mul.Tensor(torch.empty(1, device="meta"), 2)  # imports what types are found with
    cluster = read_cluster(args.cluster)
    reading, pricing = [], []
    for _ in range(args.repeats):
        start = process_time()
        artifact = load(args.directory, with_graph=False)
        read = process_time()
        found = estimate_artifact(artifact, cluster, str(args.cluster))
        reading.append(read - start)
        pricing.append(process_time() - read)
    print(f"{len(found.ranks)} ranks: {median(reading):.2f} s to read, {median(pricing):.2f} s to price")


if __name__ == "__main__":
    main()
