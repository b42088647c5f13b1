"""`hspmd coverage`: models x strategies, each compiled, stepped and compared with one device."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from ..errors import OUR_FAILURE, OptionError
from .command import Command, add_json
from .show import progress, show_json, show_sections

if TYPE_CHECKING:
    from ..coverage.model import CoveredModel


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="NAME",
        action="append",
        default=[],
        help="only models whose name has NAME in it, in any case; repeatable",
    )
    parser.add_argument("--markdown", action="store_true", help="print the matrix as README shows it")
    add_json(parser)


def run(args: Namespace) -> int:
    """Prints the matrix; 1 if a cell that was run is not exact."""
    from ..coverage.matrix import Outcome, run_matrix
    from ..coverage.strategies import COLUMNS
    from ..coverage.table import markdown, sections

    chosen = choose(args.model)
    with progress():
        cells = list(run_matrix(chosen, COLUMNS))
    if args.json:
        show_json({"cells": [cell.to_json() for cell in cells]})
    elif args.markdown:
        sys.stdout.write(markdown(cells) + "\n")
    else:
        show_sections(sections(cells, COLUMNS), False)
    return OUR_FAILURE if any(cell.outcome is Outcome.FAILED for cell in cells) else 0


def choose(wanted: list[str]) -> list[CoveredModel]:
    """The models that any of the names is part of; all without names."""
    from ..coverage.registry import MODELS

    found = [model for model in MODELS if not wanted or any(_is_in(name, model.name) for name in wanted)]
    unknown = [name for name in wanted if not any(_is_in(name, model.name) for model in MODELS)]
    if unknown:
        raise OptionError(
            f"no model of the matrix has {', '.join(map(repr, unknown))} in its name",
            details=[("models", ", ".join(model.name for model in MODELS))],
            fix="give a part of one of these names",
        )
    return found


def _is_in(part: str, name: str) -> bool:
    return part.casefold() in name.casefold()


COMMAND = Command("coverage", "run the matrix of models and strategies, and print it", add_flags, run)
