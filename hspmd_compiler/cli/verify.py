"""`hspmd verify`: all ranks of an artifact stepped in one process."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import OptionError
from .command import (
    MODEL_HELP,
    Command,
    add_json,
    add_model_arguments,
    add_strategy_name,
    add_symbolic,
    model_arguments,
)
from .show import progress, show_json, show_rendered

if TYPE_CHECKING:
    from ..artifact.store import Artifact
    from ..verify.artifact import VerifyReport
    from ..verify.proof_data import GivenBatches
    from ..verify.twin.twin import TwinReport


OF_ONE = ("--twin", "--data", "--symbolic")
"""What is asked of one strategy alone."""


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="an artifact, or a bundle of several")
    parser.add_argument(
        "--values", action="store_true", help="compare numbers with the eager model, in float64"
    )
    parser.add_argument(
        "--rows", action="store_true", help="compare every value with the single-device graph"
    )
    parser.add_argument(
        "--twin",
        action="store_true",
        help="prove the numbers of a program too large to run on a smaller twin of it",
    )
    parser.add_argument(
        "--data",
        metavar="MODULE:FACTORY",
        help="take batches from this, as `hspmd run` does (default: random ones, like the model's example)",
    )
    add_symbolic(parser)
    parser.add_argument("--model", metavar="MODEL", help=f"the model to compare with: {MODEL_HELP}")
    parser.add_argument(
        "--trust-model",
        action="store_true",
        help="import and call the factory that the artifact names; only for an artifact of your own",
    )
    add_strategy_name(parser)
    add_model_arguments(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    """Reports what was matched and compared; a misfit is an error with exit code 1."""
    arguments = model_arguments(args)
    if arguments and args.model is None:
        given = "--arg" if args.arg else "--seq-len"
        raise OptionError(f"{given} is given without --model", fix="name the model that it belongs to")
    if args.trust_model and args.model is not None:
        raise OptionError(
            "--model and --trust-model are both given", fix="name the model, or trust the artifact's"
        )

    if args.data is not None and not (args.values or args.rows):
        raise OptionError("--data is given without --values or --rows", fix="say what to compare on it")

    from ..artifact.bundle import folder_of
    from ..artifact.bundle_paths import is_bundle
    from ..artifact.store import load
    from ..models.models import load_model

    if args.strategy_name is None and is_bundle(args.directory):
        return _run_bundle(args, arguments)
    with progress():
        artifact = load(folder_of(args.directory, args.strategy_name))
        source = None if args.model is None else load_model(args.model, arguments)

        from ..api import verify

        report = verify(
            artifact,
            values=args.values,
            rows=args.rows,
            model=source,
            trust_model=args.trust_model,
            batch=None if args.data is None else _data(artifact, args.data),
            symbolic=args.symbolic,
        )
        parts: list[VerifyReport | TwinReport] = [report]
        if args.twin:
            from ..verify.twin.twin import verify_twin

            parts.append(verify_twin(artifact))
    if args.json:
        by_twin = {"by_twin": parts[1].to_json()} if len(parts) > 1 else {}
        show_json(report.to_json() | by_twin)
    else:
        show_rendered([part.rendered() for part in parts])
    return 0


def _run_bundle(args: Namespace, arguments: dict[str, str]) -> int:
    """Proves all strategies of a bundle, and the switches between them."""
    of_one = [(flag, "goes with --strategy-name") for flag in OF_ONE if _is_given(args, flag)]
    if of_one:
        raise OptionError(
            "one strategy is to be proved, and a bundle of several is given",
            details=of_one,
            rule="all strategies of a bundle, and its switches, are proved on random batches",
            fix="name the strategy: --strategy-name NAME",
        )

    from ..artifact.bundle import read_bundle
    from ..models.models import load_model
    from ..verify.switching.bundle import ModelChoice, verify_bundle

    with progress():
        bundle = read_bundle(args.directory)
        artifacts = {name: bundle.artifact(name) for name in bundle.strategies}
        plans = [bundle.plan(each.source, each.target, each.scope) for each in bundle.listing.plans]
        source = None if args.model is None else load_model(args.model, arguments)
        choice = ModelChoice(dict.fromkeys(artifacts, source), args.trust_model, from_file=True)
        report = verify_bundle(
            artifacts, plans, values=args.values, rows=args.rows, choice=choice, loss=bundle.loss
        )
    if args.json:
        show_json(report.to_json())
    else:
        show_rendered([report.rendered()])
    return 0


def _is_given(args: Namespace, flag: str) -> bool:
    return bool(getattr(args, flag.removeprefix("--")))


def _data(artifact: Artifact, name: str) -> GivenBatches:
    from ..verify.artifact import STEPS
    from ..verify.proof_data import made_for

    return made_for(artifact.program, name, STEPS)


COMMAND = Command("verify", "prove that the programs of all ranks fit together", add_flags, run)
