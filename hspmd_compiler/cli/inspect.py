"""`hspmd inspect`: shows an artifact to a person, or to a script."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import OptionError
from ..program.switch_plan import SwitchScope
from .command import Command, add_json, add_size, add_strategy_name
from .show import progress, show_sections

if TYPE_CHECKING:
    from ..artifact.store import Artifact
    from ..pages.sections import Section


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="an artifact, or a bundle of several")
    page = parser.add_mutually_exclusive_group()
    page.add_argument("--rank", type=int, metavar="R", help="the program of one rank")
    page.add_argument(
        "--tensor",
        metavar="NAME",
        help="the life of a parameter, buffer, input, or row (%%7) of the graph",
    )
    page.add_argument("--comm", action="store_true", help="communication by kind and by rank")
    page.add_argument("--schedule", action="store_true", help="the schedule of each pipeline over time")
    page.add_argument(
        "--switch", metavar="A:B", help="the switch from A to B, of a bundle of several strategies"
    )
    add_strategy_name(parser)
    add_size(parser)
    parser.add_argument(
        "--scope",
        choices=[scope.value for scope in SwitchScope],
        help="of --switch: all state, or what goes to and fro in steps of two layouts (default: state)",
    )
    parser.add_argument(
        "--cluster", type=Path, metavar="FILE", help="of --switch: machines that it is priced on"
    )
    add_json(parser)


def run(args: Namespace) -> int:
    """Shows one page; without a choice, the overview."""
    from ..artifact.bundle import folder_of
    from ..artifact.bundle_paths import is_bundle
    from ..artifact.store import load

    if args.switch is not None or (args.scope, args.cluster) != (None, None) or _is_of_all(args, is_bundle):
        show_sections(_bundle_page(args), args.json)
        return 0
    with progress():
        artifact = load(folder_of(args.directory, args.strategy_name), args.rank)
    show_sections(_page(artifact, args), args.json)
    return 0


def _is_of_all(args: Namespace, is_bundle: Callable[[Path], bool]) -> bool:
    """Whether all strategies of a bundle are meant, and no page of one."""
    one = (args.strategy_name, args.rank, args.tensor)
    return one == (None, None, None) and not (args.comm or args.schedule) and is_bundle(args.directory)


def _bundle_page(args: Namespace) -> list[Section]:
    from ..artifact.bundle import read_bundle
    from ..cluster.read import read_cluster
    from ..pages.bundle_page import overview, switch_page, view_of_bundle

    if args.switch is None and (args.scope, args.cluster) != (None, None):
        raise OptionError("--scope and --cluster go with --switch", fix="name the switch: --switch A:B")
    if args.strategy_name is not None:
        raise OptionError(
            "--switch and --strategy-name are both given",
            rule="a switch is of two strategies",
            fix="leave --strategy-name out",
        )
    with progress():
        bundle = read_bundle(args.directory)
        cluster = None if args.cluster is None else read_cluster(args.cluster)
        if args.switch is None:
            return overview(view_of_bundle(bundle, cluster))
        source, sign, target = args.switch.partition(":")
        if not sign:
            raise OptionError(
                f"--switch {args.switch} is no switch", rule="a switch is SOURCE:TARGET", fix="--switch A:B"
            )
        plan = bundle.plan(source, target, SwitchScope(args.scope or SwitchScope.STATE.value))
        before = bundle.artifact(source, with_graph=False).program.ranks
        view = view_of_bundle(bundle, cluster, [plan])
    return switch_page(plan, before, view, for_scripts=args.json)


def _page(artifact: Artifact, args: Namespace) -> list[Section]:
    from ..pages.inspect import comm_page, overview, rank_page
    from ..pages.memory_page import asked_size
    from ..pages.schedule_page import schedule_page

    if args.rank is not None:
        return rank_page(artifact, args.rank)
    if args.tensor is not None:
        from ..pages.tensor_life import tensor_sections

        return tensor_sections(artifact, args.tensor)
    if args.comm:
        return comm_page(artifact)
    if args.schedule:
        return schedule_page(artifact)
    return overview(artifact, asked_size(artifact.program, args.tokens, args.samples))


COMMAND = Command(
    "inspect", "show an artifact: ranks, programs, tensors, communication, schedule", add_flags, run
)
