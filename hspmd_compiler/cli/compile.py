"""`hspmd compile`: a model and a strategy become an artifact, several strategies a bundle."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..base.devices import DeviceKind
from ..options import Precision
from ..strategy.formats.read import read_strategy
from .command import Command, add_capture, add_json, add_model, add_symbolic, model_arguments
from .compile_several import add_bundle_flags, is_of_several, run_several
from .optimizer_flags import add_optimizer_flags, optimizer_from
from .show import progress, show_sections


def add_flags(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--strategy",
        type=Path,
        required=True,
        action="append",
        metavar="FILE",
        help="JSON, YAML or KEY=VALUE lines; several make a bundle, with the plans of switches between them",
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="where the artifact goes"
    )
    parser.add_argument("--rank", type=int, metavar="R", help="write only what rank R needs")
    parser.add_argument(
        "--device",
        choices=[kind.value for kind in DeviceKind],
        default=DeviceKind.CPU.value,
        help="default: cpu",
    )
    parser.add_argument(
        "--dump", type=Path, metavar="DIR", help="write the graph after every pass, as NN-name.txt"
    )
    add_capture(parser)
    parser.add_argument(
        "--precision",
        choices=[precision.value for precision in Precision],
        default=Precision.MODEL.value,
        help="what the model computes in; masters keep the model's types (default: model, its own types)",
    )
    parser.add_argument(
        "--cluster",
        type=Path,
        metavar="FILE",
        help="machines whose links decide between ways of converting a layout: docs/machines.md",
    )
    parser.add_argument("--force", action="store_true", help="replace DIR even if it is not an artifact")
    add_symbolic(parser)
    add_json(parser)
    add_bundle_flags(parser)
    add_optimizer_flags(parser)


def run(args: Namespace) -> int:
    """Compiles, writes, and shows what was written."""
    if is_of_several(args):
        return run_several(args)
    optimizer = optimizer_from(args)
    arguments = model_arguments(args)

    from ..artifact.store import no_rank
    from ..artifact.write import check_target
    from ..models.models import load_model
    from ..pages.inspect import overview
    from ..pages.sections import Listing

    strategy = read_strategy(args.strategy[0])
    if args.rank is not None and not 0 <= args.rank < strategy.world_size:
        raise no_rank(args.rank, range(strategy.world_size))
    check_target(args.output.resolve(), args.force)
    source = load_model(args.model, arguments)

    from ..api import compile

    with progress():
        program = compile(
            source,
            strategy=strategy,
            optimizer=optimizer,
            device=DeviceKind(args.device),
            dump=args.dump,
            capture=args.capture,
            precision=args.precision,
            cluster=args.cluster,
            symbolic=args.symbolic,
        )
        program.save(args.output, weights=False, rank=args.rank, force=args.force)
    artifact = program.artifact.of_rank(args.rank)
    show_sections([*overview(artifact), Listing("traced", "traced", (program.traced,))], args.json)
    return 0


COMMAND = Command("compile", "compile a model and strategies into one program per rank", add_flags, run)
