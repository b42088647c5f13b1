"""`hspmd estimate`: how long a step would be on a described cluster, what bounds it, and whether it fits."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.devices import DeviceKind
from ..errors import OptionError
from ..options import Precision
from .command import (
    MODEL_HELP,
    Command,
    add_capture,
    add_json,
    add_model_arguments,
    add_size,
    add_strategy_name,
    model_arguments,
)
from .optimizer_flags import add_optimizer_flags, optimizer_from
from .show import progress, show_sections

if TYPE_CHECKING:
    from ..artifact.store import Artifact
    from ..base.timeline import Timeline
    from ..cluster.cluster import ClusterSpec
    from ..cost_models.estimate import Estimate
    from ..pages.sections import Section
    from ..program.sized.step_plan import StepPlan


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", nargs="?", help="an artifact")
    parser.add_argument("--model", metavar="MODEL", help=f"instead of an artifact: {MODEL_HELP}")
    parser.add_argument("--strategy", type=Path, metavar="FILE", help="of --model")
    parser.add_argument(
        "--cluster",
        type=Path,
        required=True,
        metavar="FILE",
        help="a cluster: docs/machines.md, hspmd cluster",
    )
    parser.add_argument(
        "--device",
        choices=[kind.value for kind in DeviceKind],
        help="of --model (default: what the cluster has)",
    )
    parser.add_argument(
        "--precision",
        choices=[precision.value for precision in Precision],
        default=Precision.MODEL.value,
        help="of --model: what it computes in (default: model, its own types)",
    )
    parser.add_argument(
        "--pace-out", type=Path, metavar="FILE", help="write the least seconds of computing instructions"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the timeline as Chrome's trace JSON"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the timeline as a page")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="a measured timeline, of hspmd run --trace"
    )
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="where sizes vary: price the step of this plan"
        " (default: the strategy's numbers of micro-batches, each as long as the range)",
    )
    add_size(parser)
    add_strategy_name(parser)
    add_model_arguments(parser)
    add_capture(parser)
    add_json(parser)
    add_optimizer_flags(parser)


def run(args: Namespace) -> int:
    """Prices, shows, and writes what is asked for."""
    _check(args)

    from ..artifact.bundle import folder_of
    from ..artifact.store import load
    from ..cluster.read import read_cluster
    from ..cost_models.estimate import estimate_artifact
    from ..pages.estimate_page import estimate_sections
    from ..pages.memory_page import kept_table

    cluster = read_cluster(args.cluster)
    with progress():
        artifact = (
            _compiled(args, cluster)
            if args.directory is None
            else load(folder_of(args.directory, args.strategy_name), with_graph=False)
        )
        plan, size = _plan(args, artifact)
        found = estimate_artifact(artifact, cluster, str(args.cluster), plan)
    sizes = artifact.program.sizes
    kept = [] if sizes is None else [kept_table(artifact.program, sizes, size)]
    sections = [*estimate_sections(found, for_scripts=args.json), *kept, *_compared(args.against, found)]
    _write(args, found)
    show_sections(sections, args.json)
    return 0


def _check(args: Namespace) -> None:
    """An artifact, or a model with its strategy."""
    clashes = []
    if args.directory is None and args.strategy_name is not None:
        clashes.append(("--strategy-name", "goes with DIR"))
    if args.directory is None and args.model is None:
        clashes.append(("DIR", "not given, and no --model either"))
    if args.directory is not None:
        given = [("--model", args.model), ("--strategy", args.strategy), ("--device", args.device)]
        given += [("--arg", args.arg), ("--seq-len", args.seq_len), ("--optimizer", args.name)]
        clashes += [(flag, "goes with --model; an artifact has its own") for flag, value in given if value]
    elif args.model is not None and args.strategy is None:
        clashes.append(("--strategy", "not given: --model needs one"))
    if clashes:
        raise OptionError(
            "what is to be priced is not clear",
            details=clashes,
            fix="hspmd estimate DIR --cluster C, or hspmd estimate --model M --strategy S --cluster C",
        )


def _compiled(args: Namespace, cluster: ClusterSpec) -> Artifact:
    from ..api import compile
    from ..models.models import load_model
    from ..strategy.formats.read import read_strategy

    families = {
        device.kind.partition(" ")[0] for node in cluster.nodes for device in node.devices if device.kind
    }
    family = DeviceKind.CUDA if DeviceKind.CUDA.value in families else DeviceKind.CPU
    program = compile(
        load_model(args.model, model_arguments(args)),
        strategy=read_strategy(args.strategy),
        optimizer=optimizer_from(args),
        device=family if args.device is None else DeviceKind(args.device),
        capture=args.capture,
        precision=args.precision,
    )
    return program.artifact


def _plan(args: Namespace, artifact: Artifact) -> tuple[StepPlan | None, int | None]:
    """What the step runs, where it is told, and the size of its micro-batches where all have one."""
    from ..cost_models.estimate import plan_of_size
    from ..pages.memory_page import asked_size
    from ..program.sized.plan_file import read_plan

    size = asked_size(artifact.program, args.tokens, args.samples)
    if args.plan is None:
        return (None if size is None else plan_of_size(artifact, size)), size
    if size is not None or artifact.program.sizes is None:
        raise OptionError(
            "--plan is given " + ("and a size, too" if size is not None else "for a program of one size"),
            rule="a plan says the size of each micro-batch of a step, of a program for any size",
            fix="leave --plan out" if size is None else "give one of the two",
        )
    return read_plan(args.plan), None


def _compared(against: Path | None, found: Estimate) -> list[Section]:
    """Where the estimate and a measured timeline part."""
    if against is None:
        return []
    from ..cost_models.align import align
    from ..pages.alignment_page import alignment_page

    return list(alignment_page(align(found.timeline, _measured(against))))


def _measured(path: Path) -> Timeline:
    from ..base.trace_file import read_timeline

    return read_timeline(path, "measured")


def _write(args: Namespace, found: Estimate) -> None:
    """The files that are asked for."""
    measured = None if args.against is None else _measured(args.against)
    if args.trace is not None:
        from ..base.trace_file import write_trace

        write_trace([found.timeline, *([measured] if measured else [])], args.trace)
    if args.html is not None:
        from ..pages.estimate_page import facts_of
        from ..pages.timeline_page import write_timeline_page

        capacity = {one.rank: one.capacity_bytes for one in found.ranks}
        write_timeline_page(
            args.html,
            found.timeline,
            measured,
            capacity=capacity,
            traffic=found.traffic,
            facts=facts_of(found),
        )
    if args.pace_out is not None:
        from ..base.pace import Pace, write_pace

        write_pace(Pace(found.least_s), args.pace_out)


COMMAND = Command("estimate", "price a step on a described cluster: time, bounds, memory", add_flags, run)
