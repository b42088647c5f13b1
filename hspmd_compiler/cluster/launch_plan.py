"""Which node runs which ranks on which of its devices, and the command that starts them there."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from ..base.devices import DeviceKind, family_of
from ..base.number_ranges import number_ranges
from ..errors import ClusterError
from .cluster import ClusterSpec, NodeSlot

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Launcher(StrEnum):
    """torchrun: one agent per node starts its ranks. ranks: `hspmd run --ranks` on each node does. elastic:
    the same, and the run goes on without hosts that are lost."""

    TORCHRUN = "torchrun"
    RANKS = "ranks"
    ELASTIC = "elastic"


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank, the strategy's device that it is, its kind, and its device's place on the node."""

    rank: int
    device: int
    kind: str
    local: int

    @property
    def is_cuda(self) -> bool:
        return family_of(self.kind) == DeviceKind.CUDA


@dataclass(frozen=True, slots=True)
class NodeShare:
    """A node that has ranks, in ascending order."""

    address: str
    seats: tuple[Seat, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(seat.rank for seat in self.seats)


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Where the ranks meet: an address of the node of rank 0, and a port that is free there."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """What to run on a node, and the variables that it is run with."""

    share: NodeShare
    variables: tuple[tuple[str, str], ...]
    words: tuple[str, ...]

    @property
    def title(self) -> str:
        """The node and its ranks, as a comment."""
        return f"# {self.share.address}: {ranks_text(self.share.ranks)}"

    @property
    def text(self) -> str:
        """One line for a shell."""
        return " ".join((*self._assignments(), shlex.join(self.words)))

    def script(self, takes_flags: bool) -> str:
        """A shell script. takes_flags: those it is started with are added to the command."""
        env = ["env", *self._assignments()] if self.variables else []
        words = ("exec", *env, shlex.join(self.words), *(['"$@"'] if takes_flags else []))
        return f"#!/bin/sh\n{self.title}\n{' '.join(words)}\n"

    def _assignments(self) -> list[str]:
        return [f"{name}={shlex.quote(value)}" for name, value in self.variables]


def bind(devices: Sequence[int], kinds: Sequence[str], cluster: ClusterSpec, at: str = "") -> list[NodeShare]:
    """The nodes that have ranks, by their first rank; rank r is devices[r], of kind kinds[r]."""
    held: dict[int, list[Seat]] = {}
    for rank, slot in enumerate(bind_ranks(devices, kinds, cluster, at)):
        held.setdefault(slot.node, []).append(Seat(rank, devices[rank], kinds[rank], slot.local))
    shares = [NodeShare(cluster.nodes[node].address, tuple(seats)) for node, seats in held.items()]
    return sorted(shares, key=lambda share: share.ranks)


def bind_ranks(
    devices: Sequence[int], kinds: Sequence[str | None], cluster: ClusterSpec, at: str = ""
) -> tuple[NodeSlot, ...]:
    """The slot of each rank; rank r is devices[r], of kind kinds[r], None where any will do.

    Devices go to the slots that have their ids. Where the cluster tells none, ranks fill it in its
    order. ClusterError: with every rank that has no device, or one of another kind.
    """
    owners: dict[int, NodeSlot] = dict(enumerate(cluster.slots))
    keys: Sequence[int] = range(len(devices))
    if cluster.names_devices:
        told = {slot: cluster.device_of(slot).id for slot in cluster.slots}
        owners = {number: slot for slot, number in told.items() if number is not None}
        keys = devices
    problems = []
    for rank, (device, kind, key) in enumerate(zip(devices, kinds, keys, strict=True)):
        if key not in owners:
            problems.append(
                (rank, f"no node has device {device}" if cluster.names_devices else "no slot is left")
            )
        elif kind is not None and not cluster.device_of(owners[key]).serves(kind):
            found, node = cluster.device_of(owners[key]), cluster.node_of(owners[key])
            problems.append((rank, f"compiled for {kind}, but {node.address} has {found.kind} there"))
    if problems:
        raise _misfit(problems, cluster, at)
    return tuple(owners[key] for key in keys)


def _misfit(problems: Sequence[tuple[int, str]], cluster: ClusterSpec, at: str) -> ClusterError:
    details = []
    for text, group in groupby(problems, key=lambda problem: problem[1]):
        details.append((ranks_text(rank for rank, _ in group), text))
    counts = ", ".join(f"{node.address} {len(node.devices)}" for node in cluster.nodes)
    total = sum(len(node.devices) for node in cluster.nodes)
    by_id = "a rank runs on the node that has its device's id"
    in_order = "ranks fill the nodes in their order, device by device"
    return ClusterError(
        "the program's ranks don't fit these machines",
        at=at,
        details=[*details, ("devices", f"{counts}: {total} in all")],
        rule=f"{by_id if cluster.names_devices else in_order}, and each runs on the kind it is compiled for",
        fix="give more machines, put them in another order, or compile a strategy for these",
    )


def commands(
    shares: Sequence[NodeShare], launcher: Launcher, meeting: MeetingPoint, arguments: Sequence[str]
) -> list[NodeCommand]:
    """One command per node. arguments: of `hspmd run`, the artifact first."""
    if launcher is Launcher.ELASTIC:
        places = [f"{share.address}:{meeting.port}" for share in shares]
        return [
            _elastic_command(share, places[number], places, arguments) for number, share in enumerate(shares)
        ]
    if launcher is Launcher.RANKS:
        return [_ranks_command(share, meeting, arguments) for share in shares]
    _check_torchrun(shares)
    agents = [
        _torchrun_words(number, len(shares), len(share.seats), meeting) for number, share in enumerate(shares)
    ]
    return [
        NodeCommand(share, _visible(share.seats), (*agent, "-m", "hspmd_compiler", "run", *arguments))
        for share, agent in zip(shares, agents, strict=True)
    ]


def _torchrun_words(number: int, nodes: int, ranks: int, meeting: MeetingPoint) -> tuple[str, ...]:
    """Under the static rendezvous, the node of a lower number has lower ranks."""
    return (
        "torchrun",
        f"--nnodes={nodes}",
        f"--node-rank={number}",
        f"--nproc-per-node={ranks}",
        "--rdzv-backend=static",
        f"--master-addr={meeting.address}",
        f"--master-port={meeting.port}",
    )


def _ranks_command(share: NodeShare, meeting: MeetingPoint, arguments: Sequence[str]) -> NodeCommand:
    """Ranks in the order of their devices, which is that of their local indices."""
    seats = sorted(share.seats, key=lambda seat: seat.local)
    variables = (("MASTER_ADDR", meeting.address), ("MASTER_PORT", str(meeting.port)), *_visible(seats))
    return NodeCommand(share, variables, _run_words(share, arguments))


def _elastic_command(
    share: NodeShare, own: str, places: Sequence[str], arguments: Sequence[str]
) -> NodeCommand:
    """The launcher of each node listens at its address, all at the same port."""
    flags = ("--elastic", "--elastic-hosts", ",".join(places), "--elastic-here", own)
    seats = sorted(share.seats, key=lambda seat: seat.local)
    return NodeCommand(share, _visible(seats), _run_words(share, [*arguments, *flags]))


def _run_words(share: NodeShare, arguments: Sequence[str]) -> tuple[str, ...]:
    listed = number_ranges(seat.rank for seat in sorted(share.seats, key=lambda seat: seat.local))
    directory, *flags = arguments
    return ("hspmd", "run", directory, "--ranks", listed, *flags)


def _visible(seats: Sequence[Seat]) -> tuple[tuple[str, str], ...]:
    """CUDA's indices of the devices, where they are not 0, 1, 2, ... in the order of the seats."""
    used = [seat.local for seat in seats if seat.is_cuda]
    return () if used == list(range(len(used))) else ((VISIBLE, ",".join(map(str, used))),)


def _check_torchrun(shares: Sequence[NodeShare]) -> None:
    """torchrun gives a node consecutive ranks, and the local index of a rank is its place among them."""
    details = []
    for share in shares:
        if "," in number_ranges(share.ranks):
            details.append((share.address, f"{ranks_text(share.ranks)}: not consecutive"))
        cuda = [seat.is_cuda for seat in share.seats]
        if cuda != sorted(cuda, reverse=True):
            details.append((share.address, f"{ranks_text(share.ranks)}: a cpu before a cuda device"))
    if details:
        raise ClusterError(
            "torchrun can't start these ranks where they belong",
            details=details,
            rule="torchrun gives each node consecutive ranks, which take its devices in their order",
            fix=f"start them with --launcher {Launcher.RANKS}, or number the devices node by node",
        )


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 4`, or `ranks 0-2,5`."""
    listed = sorted(ranks)
    return f"rank{'s' * (len(listed) > 1)} {number_ranges(listed)}"
