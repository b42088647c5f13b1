"""Flags of `hspmd run`: what becomes of a run that loses ranks."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

REGROUP = "regroup"
"""Record: ranks were lost or came, and how long that took."""
SILENT_S = 10.0
COPIES = "copies"
"""Record: copies of pieces of the state are kept."""
MOST_RESPAWNS = 1 << 20
LEAST_SILENT_S = 1.0
"""A rank beats twice a second."""
NOT_WITH = ("--ranks", "--trace", "--pace", "--switch-at")
"""Flags that are about one program on processes that stay."""
UNDER_TORCHRUN = (
    "torchrun restarts all ranks of a host when one fails: under it a run ends with the first loss, and"
    " goes on from a checkpoint (--checkpoint, --resume); start hspmd run --elastic by itself"
)


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--elastic", action="store_true", help="go on with what is left where ranks are lost (one host)"
    )
    parser.add_argument(
        "--elastic-respawn",
        type=int,
        metavar="N",
        help="start a new process in place of one that died, so often at most (default: 0)",
    )
    parser.add_argument(
        "--elastic-silence",
        type=float,
        metavar="SECONDS",
        help=f"kill a rank that gives no sign of life for so long (default: {SILENT_S:g})",
    )
    parser.add_argument(
        "--survive",
        type=int,
        metavar="F",
        help="keep copies of what is on few ranks, so that any F lost ones need no checkpoint (default: 0)",
    )


def check(args: Namespace) -> list[tuple[str, str]]:
    """What is wrong with them, as (flag, text)."""
    own = (
        ("--elastic-respawn", args.elastic_respawn),
        ("--elastic-silence", args.elastic_silence),
        ("--survive", args.survive),
    )
    if not args.elastic:
        return [(flag, "goes with --elastic only") for flag, value in own if value is not None]
    bad = []
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        bad.append(("--elastic", UNDER_TORCHRUN))
    bad += [
        (flag, "does not go with --elastic")
        for flag in NOT_WITH
        if getattr(args, flag[2:].replace("-", "_")) not in (None, {})
    ]
    if args.elastic_respawn is not None and not 0 <= args.elastic_respawn <= MOST_RESPAWNS:
        bad.append(("--elastic-respawn", f"{args.elastic_respawn}: a whole number of 0 or more"))
    if args.elastic_silence is not None and not LEAST_SILENT_S <= args.elastic_silence < float("inf"):
        bad.append(("--elastic-silence", f"{args.elastic_silence:g}: seconds, at least {LEAST_SILENT_S:g}"))
    if args.survive is not None and args.survive < 0:
        bad.append(("--survive", f"{args.survive}: a whole number of 0 or more"))
    return bad
