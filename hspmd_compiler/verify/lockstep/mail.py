"""Sends and receives in lockstep: a send never waits, a receive waits for all its senders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

from ...errors import VerifyError
from ...ir.type_text import dtype_name
from ...program.requests import Recv, Send
from .blocked import RankRun, V
from .matching import BOX_RULE, OURS, BoxVolumes, check_type
from .receipts import Receipts

MailKey = tuple[int, int, int]
"""(sender, receiver, tag)."""

TAG_RULE = "a tag belongs to one transfer of one micro-batch"


@dataclass(slots=True)
class Message(Generic[V]):
    """What a rank sent and nobody has received yet. rows: of the global batch that it belongs to.

    known: how many messages its sender had received before.
    """

    value: V
    volumes: tuple[int, ...]
    step: int
    rows: tuple[int, int] | None
    where: str
    sender: RankRun[V]
    number: int
    known: int = 0

    @property
    def tensor(self) -> str:
        """What was sent, for an error."""
        return self.sender.named(self.number)


class Mail(Generic[V]):
    """All messages on their way, and who waits for some."""

    def __init__(self) -> None:
        self._messages: dict[MailKey, Message[V]] = {}
        self._receivers: dict[MailKey, RankRun[V]] = {}
        self._receipts = Receipts()

    def post(self, run: RankRun[V], request: Send[V], sent: BoxVolumes) -> Iterator[RankRun[V]]:
        """Send to every peer in `sent`; yields the ranks that waited for it."""
        check_type(run, request.value, request.step.dtype)
        others = tuple(peer for peer in sent if peer != run.rank)
        known = self._receipts.sent(run.rank, request.tag, others)
        for peer, value in run.arrays.cut(request.step, request.value).items():
            if peer not in sent:
                continue
            box = (run.rank, peer, request.tag)
            if box in self._messages:
                raise VerifyError(
                    f"rank {run.rank} sends to rank {peer} twice under tag {request.tag}",
                    details=[
                        ("tensor", run.tensor()),
                        (f"rank {run.rank}", run.doing()),
                        ("before", self._messages[box].where),
                    ],
                    rule=TAG_RULE,
                    fix=OURS,
                )
            self._messages[box] = Message(
                value, sent[peer], request.step.id, rows_of(run), run.doing(), run, run.moved(), known
            )
            if box in self._receivers:
                yield self._receivers[box]

    def collect(self, run: RankRun[V], request: Recv, expected: BoxVolumes) -> dict[int, Message[V]] | None:
        """The messages from every peer in `expected`, checked; None while one is missing."""
        boxes = {peer: (peer, run.rank, request.tag) for peer in expected}
        self._receivers.update(dict.fromkeys(boxes.values(), run))
        if any(box not in self._messages for box in boxes.values()):
            return None
        for peer, box in boxes.items():
            del self._receivers[box]
            check_message(run, request, self._messages[box], expected[peer], peer)
        found = {peer: self._messages.pop(box) for peer, box in boxes.items()}
        self._receipts.received(run, request, {peer: message.known for peer, message in found.items()})
        return found

    def lacking(self, run: RankRun[V]) -> list[int]:
        """Peers whose message a rank still waits for."""
        waits = [box for box, other in self._receivers.items() if other is run]
        return [box[0] for box in waits if box not in self._messages]

    def unread(self) -> list[tuple[str, str]]:
        """Messages that nobody has received, for an error."""
        return [
            (f"tag {tag}", f"{message.tensor}, from rank {sender} to rank {receiver}: {message.where}")
            for (sender, receiver, tag), message in self._messages.items()
        ]


def check_message(
    run: RankRun[V], request: Recv, message: Message[V], volumes: tuple[int, ...], sender: int
) -> None:
    """What arrives is what the receiver's step describes."""
    checks: tuple[tuple[str, object, object], ...] = (
        ("step", message.step, request.step.id),
        ("rows", message.rows, rows_of(run)),
        ("boxes of elements", message.volumes, volumes),
        ("type", dtype_name(message.value.dtype), request.step.dtype),
    )
    for name, sent, wanted in checks:
        if sent != wanted:
            raise VerifyError(
                f"tag {request.tag}: {name} {sent} is sent, {wanted} is expected",
                details=[
                    ("tensor", message.tensor),
                    (f"rank {sender}", message.where),
                    (f"rank {run.rank}", run.doing()),
                ],
                rule=BOX_RULE,
                fix=OURS,
            )


def rows_of(run: RankRun[V]) -> tuple[int, int] | None:
    """Rows of the global batch that the current instruction works on."""
    instruction, rows = run.instruction, run.plan.program.rows
    if instruction is None or not 0 <= instruction.mb < len(rows):
        return None
    return rows[instruction.mb]
