"""What the engine asks of a transport between ranks, and how a lost peer is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor

from ..errors import RankLost
from ..program.requests import Request
from .members import ProgramMembers


class PeerLost(RankLost):
    """A transfer failed, most likely because another rank died: a consequence, not the cause."""


class Transport(Protocol):
    """Moves tensors between ranks; every call may raise PeerLost.

    Ranks are those of the run; only `answer` takes those of a program, which it finds by its members.
    """

    rank: int
    world_size: int
    device: torch.device

    def answer(self, request: Request[Tensor]) -> Tensor | None:
        """The answer to a communication request of a rank program."""

    def serve(self, members: ProgramMembers) -> None:
        """Answer the requests of another program from now on."""

    def finish_sends(self) -> None:
        """Wait until all sends have left, and let go of their buffers."""

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """The sum over all ranks; every rank calls this."""

    def broadcast(self, value: Tensor, source: int) -> None:
        """Overwrite `value` with that of rank `source`; every rank calls this."""

    def send_run(self, row: Tensor, peer: int) -> None:
        """Start to send a flat tensor outside of a step; `finish_sends` ends it."""

    def recv_run(self, size: int, dtype: torch.dtype, peer: int) -> Tensor:
        """A flat tensor that `peer` gave to `send_run`."""

    def swap_runs(
        self, leaving: Mapping[int, Sequence[Tensor]], arriving: Mapping[int, Sequence[Tensor]]
    ) -> None:
        """Send rows of bytes and overwrite others with what comes, by the other rank, in their order.

        Outside of a step; all messages are on their way at once, and all are over when this returns.
        """

    def gather_objects(self, value: object) -> list[object]:
        """A small value of every rank, by rank; every rank calls this."""

    def call(self, name: str, meets: bool = True) -> AbstractContextManager[None]:
        """Announce a call that every rank makes, and which runs within; calls inside of it aren't told.

        meets: begin only when every rank has made it. RunError where other ranks make another one.
        """

    def tell_end(self, failure: str = "") -> None:
        """Tell the others that this rank makes no more calls, and why if by an error."""

    def close(self) -> None:
        """Leave the other ranks, after the last step."""


@contextmanager
def peer_lost_in(what: str) -> Iterator[None]:
    """Turn an error of the communication library into PeerLost that says what was going on."""
    try:
        yield
    except PeerLost:
        raise
    except RuntimeError as error:
        reason = str(error).strip().splitlines()
        raise PeerLost(
            f"lost contact in {what}",
            details=[("reason", reason[0] if reason else type(error).__name__)],
            fix="look for the rank that died first; its own message has the cause",
        ) from error


def to_wire(tensor: Tensor) -> Tensor:
    """The tensor as the library can move it: contiguous, nothing left to do to it, truth values as bytes."""
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def from_wire(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo `to_wire`."""
    return tensor.view(torch.bool) if dtype == torch.bool else tensor


def wire_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that `to_wire` gives."""
    return torch.uint8 if dtype == torch.bool else dtype
