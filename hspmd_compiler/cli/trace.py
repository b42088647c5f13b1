"""`hspmd trace`: captures a model and says what is in it."""

from __future__ import annotations

import resource
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from ..base.log import task
from ..options import Capture
from ..pages.sections import Cell, Listing, Section, Table
from .command import Command, add_capture, add_json, add_model, model_arguments
from .show import progress, show_sections

if TYPE_CHECKING:
    from ..ir.graph import LogicalGraph

MEGABYTE = 1 << 20
EVERY = ("*",)
STRUCTURE = ("placeholder", "getitem")  # need no rule
RSS_UNIT = 1 if sys.platform == "darwin" else 1 << 10  # bytes in a unit of ru_maxrss


def add_flags(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--batch", type=int, metavar="N", help="samples to trace at (default: as in the example)"
    )
    parser.add_argument("--rows", action="store_true", help="print every value of the graph")
    parser.add_argument(
        "--anchors", action="store_true", help="print the places that a strategy's layouts may name"
    )
    add_capture(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    """Traces and prints; weights are never made."""
    from ..ir.anchor_rows import keep_anchors
    from ..models.models import load_model
    from ..trace.blocks.trace_step import trace_step
    from ..trace.capture import new_fake_mode

    source = load_model(args.model, model_arguments(args))
    start = perf_counter()
    with progress(), task(f"trace {source.name}"):
        with new_fake_mode():
            model, inputs = source.build()
        samples = max((len(tensor) for tensor in inputs.values() if tensor.dim()), default=1)
        batch = samples if args.batch is None else args.batch
        found = trace_step(
            model,
            inputs,
            batch=batch,
            capture=Capture(args.capture),
            anchors=EVERY if args.anchors else None,
        )
    traced = replace(found, graph=keep_anchors(found.graph, lambda _: False))
    sections = graph_sections(traced.graph, traced.how, perf_counter() - start)
    listed = _anchors(found.graph) if args.anchors else []
    show_sections([*sections, *_rows(traced.graph, args.rows), *listed], args.json)
    return 0


def _anchors(graph: LogicalGraph) -> list[Section]:
    from ..ir.anchor_rows import anchors_of

    rows = tuple((it.name, ",".join(map(str, it.shape)), it.where) for it in anchors_of(graph))
    return [Table("anchors", "anchors, for layouts", ("name", "shape", "behind"), rows)]


def graph_sections(graph: LogicalGraph, traced: str, seconds: float) -> list[Section]:
    """What was captured: numbers, operators, layers, parameters."""
    from ..ir.printer import parameter_table, summarize

    summary = summarize(graph)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
    facts: list[tuple[Cell, ...]] = [
        ("batch", summary.batch),
        ("traced", traced),
        ("nodes", summary.rows),
        ("forward operators", summary.forward),
        ("backward operators", summary.backward),
        ("layers", len(summary.layers)),
        ("trainable elements", summary.trainable_elements),
        *((f"input {name}", text) for name, text in summary.inputs),
        ("seconds", round(seconds, 3)),
        ("peak memory MB", round(peak / MEGABYTE, 1)),
    ]
    return [
        Table("graph", "graph", ("fact", "value"), tuple(facts)),
        Table("operators", "operators", ("operator", "forward", "backward"), summary.operators),
        Listing("without rule", "operators without a rule", without_rule(graph)),
        Listing("whole parameters", "parameters that tensor parallelism leaves whole", left_whole(graph)),
        Listing("layers", "layers by number", numbered_layers(summary.layers)),
        Listing("parameters", "parameters", tuple(parameter_table(summary))),
        Listing("without gradient", "without gradient, as in eager", summary.without_gradient or ("none",)),
    ]


def numbered_layers(paths: Sequence[str]) -> tuple[str, ...]:
    """The layers as a strategy numbers them: through all lists, in the order in which a model holds them."""
    lines = tuple(f"{number}  {path}" for number, path in enumerate(paths))
    return lines or ("0  the whole model: it has no list of several layers",)


def left_whole(graph: LogicalGraph) -> tuple[str, ...]:
    """Parameters that no split units go through, and what keeps them whole."""
    from ..passes.dims.infer_dims import infer_dims
    from ..passes.dims.split_units import split_groups
    from ..passes.dims.whole_parameters import whole_lines, whole_parameters

    flow = infer_dims(graph)
    return whole_lines(whole_parameters(graph, flow, split_groups(graph, flow)))


def without_rule(graph: LogicalGraph) -> tuple[str, ...]:
    """Each operator that no rule says how to split: what becomes of it, the cost, where it is first met."""
    from ..passes.deduction.computed_whole import size
    from ..rules.unknown_operators import Treatment, operand_bytes, treatment

    metas = {row.id: (row.shape, row.dtype) for row in graph.rows if row.shape is not None and row.dtype}
    found: dict[str, tuple[Treatment, str]] = {}
    gathered: dict[str, int] = {}
    for row in graph.rows:
        how = None if row.op in STRUCTURE else treatment(row)
        if how is not None:
            found.setdefault(row.op, (how, row.where))
            gathered[row.op] = gathered.get(row.op, 0) + operand_bytes(row, metas)
    lines = []
    for op, (how, where) in found.items():
        cost = f", at most {size(gathered[op])} gathered per step" if how is Treatment.WHOLE else ""
        lines.append(f"{op}  {how.value}{cost}  {where}".rstrip())
    return tuple(lines) or ("none",)


def _rows(graph: LogicalGraph, wanted: bool) -> list[Section]:
    from ..ir.printer import format_graph

    return [Listing("rows", "values", tuple(format_graph(graph).splitlines()))] if wanted else []


COMMAND = Command("trace", "capture a model and print its operators, layers and parameters", add_flags, run)
