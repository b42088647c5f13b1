"""`hspmd trace`: captures a model and says what is in it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING

from ..artifact.sections import Cell, Section, Table
from ..errors import OptionError
from .command import Command, add_json, add_model, model_arguments
from .show import progress, show_sections

if TYPE_CHECKING:
    from ..graph.ir import LogicalGraph

KILOBYTE = 1 << 10
MEGABYTE = 1 << 20


def add_flags(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--batch", type=int, metavar="N", help="samples to trace at (default: the example's)")
    add_json(parser)


def run(args: Namespace) -> int:
    """Traces and prints; weights are never made."""
    from ..graph.tracer import trace
    from ..log import task
    from ..models import load_model

    source = load_model(args.model, model_arguments(args.arg))
    start = perf_counter()
    with progress(), task(f"trace {source.name}"):
        graph = trace(source.factory, batch=_batch(args.batch, source.factory))
    show_sections(graph_sections(graph, perf_counter() - start), args.json)
    return 0


COMMAND = Command("trace", "capture a model and print its operators, layers and parameters", add_flags, run)
