"""`hspmd inspect`: shows an artifact to a person, or to a script."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from .command import Command, add_json
from .show import progress, show_sections

if TYPE_CHECKING:
    from ..artifact.store import Artifact
    from ..pages.sections import Section


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="an artifact")
    page = parser.add_mutually_exclusive_group()
    page.add_argument("--rank", type=int, metavar="R", help="the program of one rank")
    page.add_argument(
        "--tensor",
        metavar="NAME",
        help="the life of a parameter, buffer, input, or row (%%7) of the graph",
    )
    page.add_argument("--comm", action="store_true", help="communication by kind and by rank")
    page.add_argument("--schedule", action="store_true", help="the schedule of each pipeline over time")
    add_json(parser)


def run(args: Namespace) -> int:
    """Shows one page; without a choice, the overview."""
    from ..artifact.store import load

    with progress():
        artifact = load(args.directory, args.rank)
    show_sections(_page(artifact, args), args.json)
    return 0


def _page(artifact: Artifact, args: Namespace) -> list[Section]:
    from ..pages.inspect import comm_page, overview, rank_page
    from ..pages.schedule_page import schedule_page

    if args.rank is not None:
        return rank_page(artifact, args.rank)
    if args.tensor is not None:
        from ..pages.tensor_life import tensor_sections

        return tensor_sections(artifact, args.tensor)
    if args.comm:
        return comm_page(artifact)
    return schedule_page(artifact) if args.schedule else overview(artifact)


COMMAND = Command(
    "inspect", "show an artifact: ranks, programs, tensors, communication, schedule", add_flags, run
)
