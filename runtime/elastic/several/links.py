"""Connections between the launchers of a run: made once, at its start, each launcher with each."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import monotonic, sleep

from ....errors import RankLost, RunError
from ...start.same_start import unlike
from ..messages import Beat
from .launcher_messages import (
    Expelled,
    LauncherHello,
    LauncherLines,
    LauncherMessage,
    LauncherProof,
    to_launcher_line,
)

READ_SIZE = 1 << 20
LONGEST_HELLO = 1 << 20
STRANGER_S = 5.0
"""What a connection that has just come is given to say who it is."""
RETRY_S = 0.05
Address = tuple[str, int]


class Link:
    """To another launcher. inbox: what it has said and nobody has dealt with."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.inbox: list[LauncherMessage] = []
        self.is_open = True
        self.heard_at = monotonic()
        self._connection = connection
        self._lines = LauncherLines()
        self._leaving = bytearray()
        connection.setblocking(False)

    @property
    def descriptor(self) -> int:
        return self._connection.fileno()

    def send(self, message: LauncherMessage) -> None:
        """Never waits: what the network doesn't take yet goes with `flush`."""
        if self.is_open:
            self._leaving += to_launcher_line(message)
            self.flush()

    def flush(self) -> None:
        """Send what is left."""
        try:
            while self.is_open and self._leaving:
                del self._leaving[: self._connection.send(self._leaving)]
        except BlockingIOError:
            return
        except OSError:
            self.is_open = False

    def receive(self) -> None:
        """Hear what has come; at its end, or where it is no message, the link is closed."""
        try:
            while data := self._connection.recv(READ_SIZE):
                self.heard_at = monotonic()
                self.inbox += [each for each in self._lines.take(data) if not isinstance(each, Beat)]
        except BlockingIOError:
            return
        except (OSError, ValueError):
            pass
        self.is_open = False

    def taken(self) -> list[LauncherMessage]:
        """All of the inbox."""
        inbox, self.inbox = self.inbox, []
        return inbox

    def close(self) -> None:
        """Let go of it."""
        self.is_open = False
        self._connection.close()


@dataclass(frozen=True, slots=True)
class LauncherPlace:
    """Which of the launchers this one is. addresses: of all. same: what all must have alike. secret: of
    the run."""

    number: int
    addresses: Sequence[Address]
    devices: tuple[int, ...]
    same: Mapping[str, str]
    secret: str = ""

    def name(self, number: int) -> str:
        """Of a launcher, for people."""
        return ":".join(map(str, self.addresses[number]))

    def hello(self) -> LauncherHello:
        return LauncherHello(self.number, self.devices, dict(self.same), secrets.token_hex(16))

    def proof(self, own: LauncherHello, nonce: str) -> LauncherProof:
        """That the launcher of a hello knows the secret."""
        said = json.dumps([asdict(own), nonce], sort_keys=True).encode()
        return LauncherProof(hmac.new(self.secret.encode() or b"none", said, hashlib.sha256).hexdigest())


def listen_at(address: Address) -> socket.socket:
    """The socket of a launcher."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise RunError(
            f"this launcher can't listen at {address[0]}:{address[1]}",
            details=[("reason", error.strerror or str(error))],
            rule="each launcher of --elastic-hosts listens at its own address",
            fix="choose a free port, and an address of this host",
        ) from error
    listener.listen(socket.SOMAXCONN)
    return listener


def meet(
    place: LauncherPlace, listener: socket.socket, timeout_s: float
) -> tuple[dict[int, Link], dict[int, LauncherHello]]:
    """Connect to all others: their links and hellos by number. RunError where one doesn't come or fit."""
    deadline = monotonic() + timeout_s
    links: dict[int, Link] = {}
    hellos = {place.number: place.hello()}
    for other in range(place.number):
        connection = _connected(place, other, deadline)
        links[other], hellos[other] = _introduced(place, connection, other, deadline - monotonic())
    while len(hellos) < len(place.addresses):
        listener.settimeout(max(deadline - monotonic(), 0.001))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            raise _absent(place, set(range(len(place.addresses))) - set(hellos), timeout_s) from None
        with suppress(StrangerError):
            link, hello = _introduced(place, connection, None, STRANGER_S)
            if hello.launcher in hellos or hello.launcher not in range(len(place.addresses)):
                link.close()
                continue
            links[link.number], hellos[link.number] = link, hello
    check_alike(place, hellos)
    return links, hellos


class StrangerError(Exception):
    """Whoever has connected is no launcher of this run."""


def _connected(place: LauncherPlace, other: int, deadline: float) -> socket.socket:
    while monotonic() < deadline:
        with suppress(OSError):
            return socket.create_connection(place.addresses[other], max(deadline - monotonic(), 0.001))
        sleep(RETRY_S)
    raise _absent(place, {other}, 0)


def _absent(place: LauncherPlace, numbers: set[int], waited_s: float) -> RankLost:
    return RankLost(
        "not all launchers have come",
        details=[(place.name(each), "not reached") for each in sorted(numbers)],
        rule="every host of --elastic-hosts starts its launcher, with the same list",
        fix="start them all within --start-timeout; look whether their ports are open",
    )


def _introduced(
    place: LauncherPlace, connection: socket.socket, expected: int | None, timeout_s: float
) -> tuple[Link, LauncherHello]:
    """Both say who they are and prove that they know the secret. expected: whom this one has called."""
    own = place.hello()
    try:
        connection.settimeout(max(timeout_s, 0.001))
        connection.sendall(to_launcher_line(own))
        lines = LauncherLines(LONGEST_HELLO)
        heard = _heard(connection, lines, 1)
        if not isinstance(heard[0], LauncherHello):
            raise ValueError(_refusal(heard[0]))
        hello = heard[0]
        connection.sendall(to_launcher_line(place.proof(own, hello.nonce)))
        if len(heard) < 2:
            heard += _heard(connection, lines, 1)
        wanted = place.proof(hello, own.nonce)
        if not (isinstance(heard[1], LauncherProof) and hmac.compare_digest(heard[1].proof, wanted.proof)):
            raise ValueError("it has another secret")
        if expected is not None and hello.launcher != expected:
            raise ValueError(f"it is launcher {hello.launcher} of its list")
    except (OSError, ValueError) as error:
        connection.close()
        if expected is None:
            raise StrangerError from error
        raise RunError(
            f"what is at {place.name(expected)} is not the launcher of this run",
            details=[("reason", str(error))],
            rule="all launchers have the same --elastic-hosts and the same secret, and start once",
            fix="look at what runs there; a host that comes back is not taken into a run that goes on",
        ) from error
    link = Link(hello.launcher, connection)
    link.inbox += heard[2:]
    link._lines = lines
    return link, hello


def _refusal(message: LauncherMessage) -> str:
    return message.why if isinstance(message, Expelled) else "it doesn't say who it is"


def _heard(connection: socket.socket, lines: LauncherLines, count: int) -> list[LauncherMessage]:
    found: list[LauncherMessage] = []
    while len(found) < count:
        data = connection.recv(READ_SIZE)
        if not data:
            raise ValueError("it has hung up")
        found += lines.take(data)
    return found


def check_alike(place: LauncherPlace, hellos: Mapping[int, LauncherHello]) -> None:
    """All launchers run the same, and each device is at one of them."""
    problems = unlike({number: each.same for number, each in sorted(hellos.items())}, "launcher")
    owners: dict[int, list[int]] = {}
    for number, each in sorted(hellos.items()):
        for device in each.devices:
            owners.setdefault(device, []).append(number)
    problems += [
        (f"device {device}", "at " + ", ".join(place.name(each) for each in numbers))
        for device, numbers in sorted(owners.items())
        if len(numbers) > 1
    ]
    if problems:
        raise RunError(
            "the launchers don't fit together",
            details=problems,
            rule="all have the same artifact and flags, and each device is one host's",
            fix="start all with the same command, but for --ranks and --elastic-here",
        )


def has_ended(address: Address, wait_s: float = 1.0) -> bool:
    """Whether the launcher there is gone in fact: its host says that nobody listens.

    One that can't be reached may live. A process that dies closes one socket after the other: so ask again.
    """
    deadline = monotonic() + wait_s
    while monotonic() < deadline:
        try:
            socket.create_connection(address, wait_s).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        sleep(RETRY_S)
    return False
