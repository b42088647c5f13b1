"""Flags of `hspmd run`: what becomes of a run that loses ranks."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

REGROUP = "regroup"
"""Record: ranks were lost or came, and how long that took."""
SILENT_S = 10.0
COPIES = "copies"
"""Record: copies of pieces of the state are kept."""
LOCAL_HOST = "127.0.0.1"
MOST_RESPAWNS = 1 << 20
LEAST_SILENT_S = 1.0
"""A rank beats twice a second."""
NOT_WITH = ("--trace", "--pace", "--switch-at")
PORTS = range(1, 1 << 16)
SECRET = "HSPMD_ELASTIC_SECRET"
"""Environment variable: launchers that know the same secret let each other in."""
"""Flags that are about one program on processes that stay."""
UNDER_TORCHRUN = (
    "torchrun restarts all ranks of a host when one fails: under it a run ends with the first loss, and"
    " goes on from a checkpoint (--checkpoint, --resume); start hspmd run --elastic by itself"
)


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("--elastic", action="store_true", help="go on with what is left where ranks are lost")
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
        help=f"kill a rank that gives no more sign of life for so long (default: {SILENT_S:g})",
    )
    parser.add_argument(
        "--survive",
        type=int,
        metavar="F",
        help="keep copies of what is on few ranks, so that any F lost ones need no checkpoint (default: 0)",
    )
    parser.add_argument(
        "--elastic-hosts",
        metavar="HOST:PORT,...",
        help="on several hosts: where the launcher of each listens, the same list on all",
    )
    parser.add_argument(
        "--elastic-here", metavar="HOST:PORT", help="which of --elastic-hosts this is; it starts --ranks"
    )


def check(args: Namespace) -> list[tuple[str, str]]:
    """What is wrong with them, as (flag, text)."""
    own = ("elastic_respawn", "elastic_silence", "survive", "elastic_hosts", "elastic_here")
    if not args.elastic:
        given = [name for name in own if getattr(args, name) is not None]
        return [("--" + name.replace("_", "-"), "goes with --elastic only") for name in given]
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
    return bad + _check_hosts(args)


def addresses_of(text: str) -> list[tuple[str, int]] | None:
    """Of launchers; None where the text is no list of them."""
    found = [each.rpartition(":") for each in text.split(",")]
    if any(not host or not port.isdecimal() or int(port) not in PORTS for host, _, port in found):
        return None
    return [(host, int(port)) for host, _, port in found]


def _check_hosts(args: Namespace) -> list[tuple[str, str]]:
    if args.elastic_hosts is None:
        return [
            (flag, "goes with --elastic on several hosts: --elastic-hosts")
            for flag, value in (("--ranks", args.ranks), ("--elastic-here", args.elastic_here))
            if value is not None
        ]
    addresses = addresses_of(args.elastic_hosts)
    if addresses is None or len(set(addresses)) < len(addresses):
        return [("--elastic-hosts", f"{args.elastic_hosts}: HOST:PORT,HOST:PORT,... each once")]
    bad = []
    if args.elastic_here not in args.elastic_hosts.split(","):
        bad.append(("--elastic-here", f"{args.elastic_here}: is to be one of {args.elastic_hosts}"))
    if args.ranks is None:
        bad.append(("--ranks", "is to say which ranks this host has"))
    if args.replay is not None:
        bad.append(("--replay", "replays on one host only"))
    if SECRET not in os.environ and not all(host == LOCAL_HOST for host, _ in addresses):
        bad.append((SECRET, "is not set: the same long random text on all hosts keeps strangers out"))
    return bad
