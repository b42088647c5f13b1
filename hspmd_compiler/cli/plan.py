"""`hspmd plan`: an unmodified model and a list of machines become a strategy, with its price and why."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ..options import PlanCost, PlanMethod, PlanSpace, Precision
from .command import Command, add_capture, add_json, add_model, model_arguments
from .optimizer_flags import add_optimizer_flags, optimizer_from
from .show import progress, show_sections

if TYPE_CHECKING:
    from ..synthesizer.planner.plan import Plan

MOST_DRAWN = 6
"""Pipelines that are drawn; of more the table says all."""


def add_flags(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--cluster",
        type=Path,
        required=True,
        metavar="FILE",
        help="a cluster: docs/machines.md, hspmd cluster",
    )
    parser.add_argument(
        "--method",
        choices=[method.value for method in PlanMethod],
        default=PlanMethod.PROGRAM.value,
        help="program: layouts and ratios of each tensor by exact search (the default)",
    )
    parser.add_argument(
        "--global-batch", type=int, metavar="N", help="samples of a step (default: the example's, a device)"
    )
    parser.add_argument(
        "--space",
        choices=[space.value for space in PlanSpace],
        default=PlanSpace.FULL.value,
        help="full: all that the rules of operators allow; hap: HAP's instructions (default: full)",
    )
    parser.add_argument(
        "--cost",
        choices=[cost.value for cost in PlanCost],
        default=PlanCost.CLUSTER.value,
        help="what programs are compared by: prices on the cluster, or HAP's formulas (default: cluster)",
    )
    parser.add_argument(
        "--explain",
        action="append",
        default=[],
        metavar="NAME",
        help="a module, a parameter or a glob: the layouts considered there, each with its price; repeatable",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the strategy as JSON or YAML, by the suffix"
    )
    parser.add_argument(
        "--precision",
        choices=[precision.value for precision in Precision],
        default=Precision.MODEL.value,
        help="what the model computes in (default: model, its own types)",
    )
    add_capture(parser)
    add_json(parser)
    add_optimizer_flags(parser)


def run(args: Namespace) -> int:
    """Plans, writes, draws."""
    optimizer, arguments = optimizer_from(args), model_arguments(args)

    from ..cluster.read import read_cluster
    from ..synthesizer.planner.planned_devices import check_machines

    check_machines(read_cluster(args.cluster), at=str(args.cluster))  # before PyTorch is loaded

    from ..api import plan
    from ..models.models import load_model
    from ..pages.plan_page import plan_sections
    from ..runtime.saved.weights_file import check_writable
    from ..strategy.write import write_strategy
    from ..synthesizer.planner.explain import explain_all

    if args.output is not None:
        check_writable(args.output, "--output")
    with progress():
        found = plan(
            load_model(args.model, arguments),
            cluster=args.cluster,
            method=args.method,
            global_batch=args.global_batch,
            space=args.space,
            cost=args.cost,
            optimizer=optimizer,
            capture=args.capture,
            precision=args.precision,
        )
    searched = found.searched
    explained, wrong = explain_all(None if searched is None else searched.candidate.found, args.explain)
    if args.output is not None:
        write_strategy(found.strategy, args.output)
    if not args.json:
        _draw(found)
    show_sections(plan_sections(found, explained, args.json), args.json)
    if wrong is not None:
        raise wrong
    return 0


def _draw(found: Plan) -> None:
    """Pipelines as boxes, where they are few."""
    if len(found.strategy.pipelines) > MOST_DRAWN:
        return
    from ..strategy.formats.expanded import Expanded
    from .strategy_drawing import draw

    draw("", Expanded(found.strategy))
    sys.stdout.write("\n")


COMMAND = Command("plan", "find a strategy for a model and a list of machines", add_flags, run)
