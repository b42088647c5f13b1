"""`hspmd launch`: the commands that start an artifact on several machines, printed or written."""

from __future__ import annotations

import os
import socket
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..cluster import slurm
from ..cluster.cluster import ClusterSpec
from ..cluster.launch_plan import Launcher, MeetingPoint, NodeCommand, bind, commands
from ..cluster.read import read_cluster
from ..errors import ClusterError, OptionError
from . import run as run_command
from .command import Command

PORT = 29500
PORTS = range(1, 1 << 16)
NO_RUN = (
    "note: add what to train on behind each command, such as --text FILE --steps N, or give it after --run"
)


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="an artifact, at this path on every node")
    parser.add_argument(
        "--hosts",
        type=Path,
        metavar="FILE",
        help="lines `address slots=N`, or a cluster in JSON or YAML (default: the SLURM job's nodes)",
    )
    parser.add_argument(
        "--launcher",
        choices=[launcher.value for launcher in Launcher],
        default=Launcher.TORCHRUN.value,
        help="torchrun; ranks: `hspmd run --ranks` on each node; or elastic: the same, and the run goes on"
        " without nodes that are lost (default: torchrun)",
    )
    parser.add_argument("--master-addr", metavar="HOST", help="where rank 0 is reached (default: its node)")
    parser.add_argument(
        "--master-port", type=int, default=PORT, metavar="N", help=f"a free port there (default: {PORT})"
    )
    parser.add_argument("--print", action="store_true", help="print the commands (default without -o)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write a script for each node, named by its number"
    )
    parser.add_argument("--this-node", action="store_true", help="print only the command of this node")
    parser.add_argument(
        "--run", nargs=REMAINDER, metavar="FLAG", help="all that follows goes to `hspmd run` on every node"
    )


def run(args: Namespace) -> int:
    """Binds ranks to machines, then prints or writes."""
    _check(args)

    devices, kinds = _devices(args.directory)
    cluster = _machines(args.hosts, os.environ)
    shares = bind(devices, kinds, cluster, str(args.hosts or slurm.NODES))
    meeting = MeetingPoint(args.master_addr or shares[0].address, args.master_port)
    arguments = [str(args.directory.resolve()), *(args.run or ())]
    made = commands(shares, Launcher(args.launcher), meeting, arguments)
    if args.this_node:
        _print_own(made, cluster)
    elif args.output is None or args.print:
        print("\n".join(line for command in made for line in (command.title, command.text)))
    if args.output is not None:
        _write(args.output, made, takes_flags=args.run is None)
    elif args.run is None:
        print(NO_RUN, file=sys.stderr)
    return 0


def _devices(directory: Path) -> tuple[Sequence[int], Sequence[str]]:
    """The device of each process, and its kind; a bundle has a process for each device of any strategy."""
    from ..artifact import paths
    from ..artifact.bundle import read_bundle
    from ..artifact.bundle_paths import is_bundle
    from ..artifact.store import Files
    from ..strategy.form import strategy_from

    if not is_bundle(directory):
        files = Files(directory)
        return strategy_from(files.json(paths.STRATEGY)).devices, files.manifest.device_kinds
    bundle = read_bundle(directory)
    kinds: dict[int, str] = {}
    for name in bundle.strategies:
        kinds |= zip(bundle.devices_of(name), bundle.head(name).manifest.device_kinds, strict=True)
    return bundle.devices, [kinds[device] for device in bundle.devices]


def _check(args: Namespace) -> None:
    bad = []
    if args.master_port not in PORTS:
        bad.append(("--master-port", f"{args.master_port}: a port is {PORTS[0]} to {PORTS[-1]}"))
    if args.this_node and args.output is not None:
        bad.append(("--this-node", "prints one command, and goes without --output"))
    if any(flag.split("=")[0] == "--ranks" for flag in args.run or ()):
        bad.append(("--run --ranks", "the machines decide on the ranks"))
    if args.launcher == Launcher.ELASTIC and args.master_addr is not None:
        bad.append(("--master-addr", "goes with --launcher torchrun or ranks: here each node has a launcher"))
    if bad:
        raise OptionError("the commands can't be made as asked", details=bad)
    if args.run is not None:
        own = ArgumentParser(prog="hspmd launch ... --run", allow_abbrev=False)
        run_command.add_flags(own)
        own.parse_args([str(args.directory), *args.run])


def _machines(hosts: Path | None, environment: Mapping[str, str]) -> ClusterSpec:
    if hosts is not None:
        return read_cluster(hosts)
    if slurm.is_in_job(environment):
        return slurm.job_nodes(environment)
    raise ClusterError(
        "no machines are given",
        details=[("--hosts", "not given"), (slurm.NODES, "not set")],
        rule="machines come from a file, or from the SLURM job that this runs in",
        fix="name a hostfile, or a cluster in JSON or YAML, with --hosts FILE",
    )


def _print_own(made: list[NodeCommand], cluster: ClusterSpec) -> None:
    """The command of the node that this runs on; a comment where it has no rank."""
    known = [node.address for node in cluster.nodes]
    own = slurm.own_address(os.environ) if slurm.is_in_job(os.environ) else socket.gethostname()
    names = {own, own.partition(".")[0]}
    if not names & set(known):
        raise ClusterError(
            f"this node, {own}, is none of the machines",
            details=[("machines", ", ".join(known))],
            rule="--this-node finds its node by SLURM's name for it, else by the host's",
            fix="give this node by that name, or leave --this-node out",
        )
    texts = [command.text for command in made if command.share.address in names]
    print("\n".join(texts) or f"# {own} has no rank")


def _write(folder: Path, made: list[NodeCommand], takes_flags: bool) -> None:
    """One executable script per node."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, command in enumerate(made):
            path = folder / f"node-{number}.sh"
            path.write_text(command.script(takes_flags), encoding="utf-8")
            path.chmod(0o755)
            print(f"{path}  {command.title}")
    except OSError as error:
        raise OptionError(f"can't write to {folder}: {error.strerror}") from error


COMMAND = Command(
    "launch", "print or write the commands that start an artifact on every node", add_flags, run
)
