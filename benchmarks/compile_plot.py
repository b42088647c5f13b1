"""Draws what compile_overhead.py measured: strategies side by side, and the way from few layers to many.

    python benchmarks/compile_plot.py RESULT.json... -o OUT.svg

Needs matplotlib: the extra `plot`.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = dict[str, object]
"""One measured compile, as compile_overhead.py writes it."""

COMPARED = {2: 9.7, 4: 16.0, 8: 27.0, 16: 52.0}
"""Layers to seconds of a published ILP-on-DTensor compiler: a Llama of hidden size 4096 on 8 ranks."""
COMPARED_MODEL = "llama-7b"
TRACING, AFTER, TABLES, OTHER = "#7a9cc6", "#c6703b", "#d9c9a8", "#888888"


def plot(records: Sequence[Record], out: Path) -> None:
    """Bars of the deepest compiles of each model and strategy, and a curve for each of several depths."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "compile"  # the same file for the same numbers
    import matplotlib.pyplot as plt

    curves = [held for held in by_strategy(records).values() if len(held) > 1]
    width = max(1.0, len(bars(records)) / 3)
    figure, axes = plt.subplots(
        1,
        1 + len(curves),
        squeeze=False,
        figsize=(4.2 * (width + len(curves)) / 1.2, 3.6),
        width_ratios=[width, *(1 for _ in curves)],
        layout="constrained",
    )
    draw_bars(axes[0, 0], bars(records))
    for axis, held in zip(axes[0, 1:], curves, strict=True):
        draw_curve(axis, held)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def by_strategy(records: Sequence[Record]) -> dict[tuple[object, object], list[Record]]:
    """Compiles of one model and strategy, by layers."""
    found: dict[tuple[object, object], list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: number(record, "layers")):
        found[record["model"], record["strategy"]].append(record)
    return found


def bars(records: Sequence[Record]) -> list[Record]:
    """Per model and strategy, the compile of most layers."""
    return [held[-1] for held in by_strategy(records).values()]


def number(record: Record, name: str) -> float:
    return float(str(record[name]))


def draw_bars(axis: Axes, held: Sequence[Record]) -> None:
    places = range(len(held))
    after = [number(one, "after_tracing") for one in held]
    tracing = [number(one, "total") - rest for one, rest in zip(held, after, strict=True)]
    tables = [number(one, "per_rank") for one in held]
    axis.bar(places, tracing, color=TRACING, label="model and trace")
    axis.bar(places, after, bottom=tracing, color=AFTER, label="after tracing")
    tops = [sum(parts) for parts in zip(tracing, after, strict=True)]
    axis.bar(places, tables, bottom=tops, color=TABLES, label="tables of ranks")
    labels = [f"{one['strategy']}\n{one['ranks']} ranks\n{one['model']}, {one['layers']}" for one in held]
    axis.set_xticks(places, labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=7)
    axis.set_ylabel("CPU s")
    axis.legend(fontsize=7)


def draw_curve(axis: Axes, held: Sequence[Record]) -> None:
    layers = [number(one, "layers") for one in held]
    axis.plot(layers, [number(one, "total") for one in held], "o-", color=TRACING, label="all")
    axis.plot(
        layers, [number(one, "after_tracing") for one in held], "o-", color=AFTER, label="after tracing"
    )
    model, strategy = held[0]["model"], held[0]["strategy"]
    if model == COMPARED_MODEL:
        shown = [layer for layer in COMPARED if layer in layers]
        published = [COMPARED[layer] for layer in shown]
        axis.plot(shown, published, "s--", color=OTHER, label="an ILP-on-DTensor compiler, published")
    axis.set_title(f"{model}, {strategy}", fontsize=8)
    axis.set_xlabel("layers")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=7)


def main() -> int:
    """Draw the results of several files in one picture."""
    parser = ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT")
    args = parser.parse_args()
    records = [record for path in args.results for record in json.loads(path.read_text())["costs"]]
    plot(records, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
