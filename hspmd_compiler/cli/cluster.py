"""`hspmd cluster`: writes a cluster from short names of devices, and draws one."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path

from ..base.json_yaml import YAML_SUFFIXES
from ..cluster.figures import uncertain
from ..cluster.new import FORM, NewCluster, new_cluster
from ..cluster.read import cluster_text, read_cluster, write_cluster
from ..errors import OptionError
from .command import Command, add_json
from .show import show_json

LINK_FORM = "BANDWIDTH[@LATENCY]"


def add_flags(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="write a cluster of devices from the catalogue", allow_abbrev=False)
    _add_new_flags(new)
    show = actions.add_parser("show", help="draw nodes, devices, figures and links", allow_abbrev=False)
    show.add_argument("file", type=Path, metavar="FILE", help="a cluster in JSON or YAML, or a hostfile")
    add_json(show)


def _add_new_flags(new: ArgumentParser) -> None:
    new.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NODE",
        help=f"{FORM}, such as 2xA100-80, 3*8xH100 or gpu[1-3]=8xH100,nic=400Gbit,zone=eu; repeatable; "
        "a KEY is nic, link, zone, cores, or price (of the node and hour)",
    )
    new.add_argument("--nic", metavar="LINK", help=f"of nodes without their own: {LINK_FORM}, as in 25Gbit")
    new.add_argument(
        "--link",
        metavar="LINK",
        help=f"inside a node: nvlink, pcie or {LINK_FORM} (default: the catalogue's)",
    )
    new.add_argument("--network", metavar="LINK", help=f"between nodes, where it is slower: {LINK_FORM}")
    new.add_argument("--zone", metavar="NAME", help="of nodes without their own")
    new.add_argument("--cores", metavar="N", help="processors of nodes without their own")
    new.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="[KIND=]PRICE",
        help="of a device and hour; repeatable",
    )
    new.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write it as JSON or YAML, by the suffix"
    )


def run(args: Namespace) -> int:
    """Makes and writes, or reads and draws."""
    if args.action == "show":
        return _show(args)
    named = {"nic": args.nic, "link": args.link, "zone": args.zone, "cores": args.cores}
    settings = {key: value for key, value in named.items() if value is not None}
    empty = [(f"--{key}", "empty") for key, value in settings.items() if not value.strip()]
    if empty:
        raise OptionError("flags say nothing", details=empty, fix="leave them out")
    made = new_cluster(NewCluster(args.node, settings, args.price, args.network or ""))
    if args.output is not None:
        _check_suffix(args.output)
        write_cluster(made.cluster, args.output)
    else:
        print(cluster_text(made.cluster, is_yaml=True), end="")
    _tell([*made.notes, *uncertain(device for node in made.cluster.nodes for device in node.devices)])
    return 0


def _check_suffix(path: Path) -> None:
    """A file of another name would be read as a hostfile, or be JSON to somebody's surprise."""
    known = (".json", *YAML_SUFFIXES)
    if path.suffix not in known:
        raise OptionError(
            "the form of the file is not clear",
            details=[("-o", str(path))],
            rule=f"the suffix says the form: {', '.join(known)}",
            fix=f"-o {path.name or 'cluster'}.yaml",
        )


def _show(args: Namespace) -> int:
    from ..cluster.overview import overview, overview_to_json
    from .cluster_drawing import draw

    cluster = read_cluster(args.file)
    if args.json:
        show_json(overview_to_json(cluster, overview(cluster)))
    else:
        draw(str(args.file), overview(cluster))
    return 0


def _tell(notes: Iterable[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


COMMAND = Command("cluster", "write a cluster of devices from the catalogue, draw one", add_flags, run)
