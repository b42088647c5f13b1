"""What a launcher and its ranks tell each other by pipes: JSON lines, by the name of a kind of message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, cast

from ...base.typed import read

NOTHING_HELD = -1
"""The generation of a rank that holds no state of the training."""


@dataclass(frozen=True, slots=True)
class HeldReport:
    """The state that a rank has. generation: in which it came to its program, NOTHING_HELD without one.

    ready: its gradients of the next step are synchronised, so that it can take that step alone. whole: its
    local copies are those of this step, too, not only the elements that it owns. gathers: its program copies
    them from rank to rank behind each update. beside: a generation to whose program it has carried all of its
    state, which is not in force yet; beside_steps: those of that state, fewer where it is of a checkpoint.
    """

    generation: int = NOTHING_HELD
    steps: int = 0
    ready: bool = False
    whole: bool = True
    gathers: bool = False
    beside: int = NOTHING_HELD
    beside_steps: int = 0


@dataclass(frozen=True, slots=True)
class RunPosition:
    """Where a run stands behind the last completed step. epoch, batches, left_out: of its data, see `Epochs`.

    data_seed: of their order. seed: of random numbers. lr: the base rate. begun: steps that had been taken
    when the run began.
    """

    epoch: int = 0
    batches: int = 0
    left_out: int = 0
    seed: int = 0
    begun: int = 0
    data_seed: int = 0
    lr: float = 0.0


@dataclass(frozen=True, slots=True)
class WorldMember:
    """A process of a generation. id: never used again. device: where it runs."""

    id: int
    device: int


# Up, from ranks


@dataclass(frozen=True, slots=True)
class Beat:
    """The process runs."""


@dataclass(frozen=True, slots=True)
class Halt:
    """A rank has left its generation, and waits for an order. last: its record of its latest step."""

    generation: int
    held: HeldReport
    cause: str = ""
    position: RunPosition = RunPosition()
    last: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """A rank has its part of a generation; all of it may be used. Seconds by phase."""

    generation: int
    groups_s: float = 0.0
    state_s: float = 0.0
    bytes_moved: int = 0


@dataclass(frozen=True, slots=True)
class ToldRecord:
    """A record of the job, for the view."""

    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """What ended a rank, as `Failure` has it: no loss of a peer, so it ends the run."""

    failure: dict[str, Any]


# Down, to ranks


@dataclass(frozen=True, slots=True)
class Abort:
    """Generations up to this one are over."""

    generation: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop after a step, all after the same one: it goes into the next vote."""


@dataclass(frozen=True, slots=True)
class NextGeneration:
    """The next generation. held: the generation whose state goes on, at so many steps.

    world: its members, in the order of their ranks. program: folder of the artifact. strategy: its name, for
    people. members: world rank by rank of the program. plan: file with the moves of the state, empty where
    all begin afresh: from `checkpoint`, or as the run began where that is empty too. restored, copies: see
    Successor.
    """

    generation: int
    world: tuple[WorldMember, ...]
    address: str
    port: int
    strategy: str
    program: str
    members: tuple[int, ...]
    plan: str
    held: int
    steps: int
    position: RunPosition = RunPosition()
    checkpoint: str = ""
    restored: str = ""
    copies: str = ""

    def rank_of(self, member: int) -> int:
        """The rank of a process in this generation."""
        return next(rank for rank, each in enumerate(self.world) if each.id == member)


@dataclass(frozen=True, slots=True)
class Finish:
    """Every rank is done."""


Upward: TypeAlias = Beat | Halt | Arrived | ToldRecord | Failed
Downward: TypeAlias = Abort | Pause | NextGeneration | Finish

KINDS: Mapping[str, Any] = {
    kind.__name__.lower(): kind
    for kind in (Beat, Halt, Arrived, ToldRecord, Failed, Abort, Pause, NextGeneration, Finish)
}


def packed(message: object, kinds: Mapping[str, Any] = KINDS) -> dict[str, Any]:
    """As plain JSON values."""
    name = type(message).__name__.lower()
    assert name in kinds, "a message of ours"
    return {name: asdict(cast(Any, message))}


def unpacked(value: object, kinds: Mapping[str, Any] = KINDS) -> Any:
    """Undo `packed`; ValueError where it is no message, Misfits where a field is not of its type."""
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in kinds:
        raise ValueError("no message")
    ((name, content),) = value.items()
    return Beat() if name == "beat" else read(kinds[name], content)


def to_line(message: Upward | Downward) -> bytes:
    """One line."""
    return json.dumps(packed(message)).encode() + b"\n"


def from_line(line: bytes) -> Upward | Downward:
    """Undo `to_line`."""
    message: Upward | Downward = unpacked(json.loads(line))
    return message


class Lines:
    """Whole lines out of what comes in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[Upward | Downward]:
        """The messages that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [from_line(line) for line in lines]
