"""How long resolving a pair of annotations takes: tensors of a 32B model on 48 ranks.

    python benchmarks/resolve_pairs.py [PAIRS]

Milliseconds of one core (time of this process) for one call of `resolve`; making the annotations is not
counted. first: nothing is remembered of any pair, annotation or set of ranks. met: both annotations were
met in other pairs. Of each the best of five such calls, since other processes disturb. steps: apart from
these, `steps()`, which writes out the steps of all ranks once.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import _lru_cache_wrapper

from hspmd_compiler.annotations import DUPLICATE, PARTIAL, Annotation, DeviceGroup, DistributedStates
from hspmd_compiler.annotations.states import StateKey
from hspmd_compiler.passes.resolve_annotations import resolve

REPEATS = 5
HIDDEN, WIDE, VOCABULARY, TOKENS = 6656, 17920, 50304, 4096
SHAPES = {
    "wte": (VOCABULARY, HIDDEN),
    "qkv": (3 * HIDDEN, HIDDEN),
    "dense": (HIDDEN, HIDDEN),
    "gate_up": (2 * WIDE, HIDDEN),
    "down": (HIDDEN, WIDE),
    "norm": (HIDDEN,),
    "activation": (64, TOKENS, HIDDEN),
}
DEGREES = ((4,) * 12, (8,) * 6, (2,) * 24, (8, 8, 4, 4, 4, 4, 4, 4, 4, 2, 1, 1), (16, 16, 8, 4, 4))


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair, and what it occurs as."""

    name: str
    source: Annotation
    target: Annotation
    shape: tuple[int, ...]


def union(degrees: tuple[int, ...], key: StateKey, hetero: StateKey | None, start: int = 0) -> Annotation:
    """Groups of these sizes on consecutive ranks, each laid out by `key`."""
    groups, first = [], start
    for degree in degrees:
        groups.append(DeviceGroup(tuple(range(first, first + degree))))
        first += degree
    states = tuple(DistributedStates.of({key: degree} if degree > 1 else {}) for degree in degrees)
    return Annotation(tuple(groups), states, hetero if len(groups) > 1 else None)


def random_pair(rng: random.Random) -> Pair:
    """A pair as training, ZeRO, pipelines and switching meet it."""
    name = rng.choice([name for name in SHAPES if name != "activation"])
    shape = SHAPES[name]
    degrees, other = rng.choice(DEGREES), rng.choice(DEGREES)
    dim = rng.randrange(len(shape))
    kind = rng.choice(
        ["gradient", "gradient to ZeRO", "ZeRO to parameter", "switch", "switch dims", "stage", "norm"]
    )
    if kind == "gradient":
        return Pair(kind, union(degrees, dim, PARTIAL), union(degrees, dim, DUPLICATE), shape)
    if kind == "gradient to ZeRO":
        last = len(shape) - 1
        return Pair(kind, union(degrees, last, PARTIAL), union(degrees, last, 0), shape)
    if kind == "ZeRO to parameter":
        last = len(shape) - 1
        return Pair(kind, union(degrees, last, 0), union(degrees, last, DUPLICATE), shape)
    if kind == "switch":
        return Pair(kind, union(degrees, dim, DUPLICATE), union(other, dim, DUPLICATE), shape)
    if kind == "switch dims":
        return Pair(
            kind, union(degrees, dim, DUPLICATE), union(other, len(shape) - 1 - dim, DUPLICATE), shape
        )
    if kind == "norm":
        return Pair(
            kind, union(degrees, PARTIAL, PARTIAL), union(degrees, DUPLICATE, DUPLICATE), SHAPES["norm"]
        )
    half = (4,) * 6
    key = rng.choice([DUPLICATE, 1])
    return Pair(kind, union(half, key, 0), union(half, key, 0, 24), SHAPES["activation"])


def milliseconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start)


def forget() -> None:
    """Empty every cache of the package."""
    for module in [module for name, module in sys.modules.items() if name.startswith("hspmd_compiler.")]:
        for cache in [value for value in vars(module).values() if isinstance(value, _lru_cache_wrapper)]:
            cache.cache_clear()


def measured(pair: Pair) -> tuple[float, float, float]:
    """first, met, steps."""
    first, met = [], []
    for _ in range(REPEATS):
        forget()
        first.append(milliseconds(lambda: resolve(pair.source, pair.target, pair.shape)))
        forget()
        for one in (pair.source, pair.target):
            resolve(one, one, pair.shape)
        met.append(milliseconds(lambda: resolve(pair.source, pair.target, pair.shape)))
    found = resolve(pair.source, pair.target, pair.shape)
    return min(first), min(met), milliseconds(found.steps)


def row(name: str, values: list[tuple[float, float, float]]) -> str:
    cells = []
    for column in zip(*values, strict=True):
        ordered = sorted(column)
        cells.append(
            f"{statistics.median(ordered):8.3f} {ordered[int(0.9 * len(ordered))]:8.3f} {ordered[-1]:8.3f}"
        )
    return f"{name:20} {len(values):5}  " + "  ".join(cells)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    rng = random.Random(1)
    by_name: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(count):
        pair = random_pair(rng)
        by_name.setdefault(pair.name, []).append(measured(pair))
    head = f"{'median':>8} {'90 %':>8} {'most':>8}"
    print(f"{'ms':26}  {'first':^26}  {'met':^26}  {'steps':^26}")
    print(f"{'pair':20} {'pairs':>5}  {head}  {head}  {head}")
    for name in sorted(by_name):
        print(row(name, by_name[name]))
    print(row("all", [values for several in by_name.values() for values in several]))


if __name__ == "__main__":
    main()
