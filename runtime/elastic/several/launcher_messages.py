"""What launchers of one run tell each other: JSON lines as those of ranks, which travel inside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..messages import Arrived, Beat, Halt, NextGeneration, WorldMember, packed, unpacked

LONGEST_LINE = 1 << 28
"""Bytes; whoever sends more is not heard any longer."""


@dataclass(frozen=True, slots=True)
class LauncherHello:
    """The first word of a launcher. devices: of its host. same: what all must have alike, by name."""

    launcher: int
    devices: tuple[int, ...]
    same: dict[str, str]
    nonce: str


@dataclass(frozen=True, slots=True)
class LauncherProof:
    """That it knows the secret of the run: a keyed hash of the other's nonce and of its own hello."""

    proof: str


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a process."""

    member: WorldMember


@dataclass(frozen=True, slots=True)
class KillRank:
    """Kill a process."""

    id: int


@dataclass(frozen=True, slots=True)
class ToRank:
    """What a process of the launcher is to be told."""

    id: int
    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FromRank:
    """What a process of the launcher has told."""

    id: int
    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """A process of the launcher has ended. status: as waitpid has it."""

    id: int
    status: int


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file of a program, or a plan, that the decider has made. content: base64. link: a file of the
    artifact that it is a link to, instead."""

    name: str
    sha256: str
    content: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the next decider must know. launchers: that take part. next_id: of a process. shown: last step."""

    launchers: tuple[int, ...]
    next_id: int = 0
    respawns: int = 0
    shown: int = 0


@dataclass(frozen=True, slots=True)
class KnownRank:
    """A process as its launcher knows it."""

    member: WorldMember
    halt: Halt | None = None
    arrived: Arrived | None = None


@dataclass(frozen=True, slots=True)
class Following:
    """To the next decider: the launcher's processes, and the orders that they were given."""

    ranks: tuple[KnownRank, ...]
    orders: tuple[NextGeneration, ...]


@dataclass(frozen=True, slots=True)
class Expelled:
    """The others go on without this launcher."""

    why: str


@dataclass(frozen=True, slots=True)
class RunOver:
    """The run has ended. failure: as `Failure` has it, None where all is done."""

    failure: dict[str, Any] | None = None


LauncherMessage: TypeAlias = (
    Beat
    | LauncherHello
    | LauncherProof
    | Spawn
    | KillRank
    | ToRank
    | FromRank
    | Ended
    | SentFile
    | Standing
    | Following
    | Expelled
    | RunOver
)

LAUNCHER_KINDS: Mapping[str, Any] = {
    kind.__name__.lower(): kind
    for kind in (
        Beat,
        LauncherHello,
        LauncherProof,
        Spawn,
        KillRank,
        ToRank,
        FromRank,
        Ended,
        SentFile,
        Standing,
        Following,
        Expelled,
        RunOver,
    )
}


def to_launcher_line(message: LauncherMessage) -> bytes:
    """One line."""
    return json.dumps(packed(message, LAUNCHER_KINDS)).encode() + b"\n"


class LauncherLines:
    """Whole messages out of what comes in pieces; ValueError where it is none, or too long."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._parts: list[bytes] = []
        self._longest = longest

    def take(self, data: bytes) -> list[LauncherMessage]:
        """The messages that are complete now."""
        *ended, rest = data.split(b"\n")
        lines = []
        for each in ended:
            lines.append(b"".join([*self._parts, each]))
            self._parts = []
        self._parts.append(rest)
        if sum(map(len, self._parts)) > self._longest:
            raise ValueError("a message is too long")
        return [unpacked(json.loads(line), LAUNCHER_KINDS) for line in lines]
