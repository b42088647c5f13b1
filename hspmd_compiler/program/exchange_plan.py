"""How one CommStep goes over torch.distributed: sizes per member, and collectives that it amounts to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..base.comm_plan import Box, Combine, CommKind, CommStep, GatherForm, Piece
from .boxes import full_box, received_volumes, sent_volumes, volume


class Shortcut(Enum):
    """A collective for equal pieces that does the same as all_to_all_single with splits."""

    NONE = "none"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """One rank's sizes in elements, by member of the group, and the shortcut that its own part allows.

    in_turn: see `lands_in_turn`.
    """

    send_sizes: tuple[int, ...]
    recv_sizes: tuple[int, ...]
    shortcut: Shortcut
    in_turn: bool = False

    @classmethod
    def of(cls, step: CommStep) -> ExchangePlan:
        sent, received = sent_volumes(step), received_volumes(step)
        sends = tuple(sent.get(peer, 0) for peer in step.group)
        recvs = tuple(received.get(peer, 0) for peer in step.group)
        return cls(sends, recvs, _shortcut(step, sends, recvs), lands_in_turn(step))


def _shortcut(step: CommStep, sends: tuple[int, ...], recvs: tuple[int, ...]) -> Shortcut:
    """The shortcut of equal pieces; every member must find the same one for it to be taken."""
    sizes = {*sends, *recvs}
    return Shortcut.NONE if len(sizes) != 1 or 0 in sizes else shortcut_of_equals(step)


def shortcut_of_equals(step: CommStep) -> Shortcut:
    """The shortcut that a rank's part of a step allows where the pieces of all members are equal.

    Where all members find the same one, each of them sees the sizes of all pieces: a gather gives the same to
    all members, and what is summed has all of its destination from each.
    """
    if step.kind is CommKind.SEND_RECV:
        return Shortcut.NONE
    if step.combine is Combine.COPY and _same_boxes(step.sends, len(step.group)):
        return Shortcut.ALL_GATHER
    if step.combine is Combine.SUM and _all_whole(step):
        return Shortcut.REDUCE_SCATTER
    return Shortcut.NONE


def gathered_sizes(step: CommStep) -> tuple[int, ...] | None:
    """Elements of each member's piece, by a rank's part of a gather of any lengths; None for other steps.

    In a gather each member gives the same to all members, itself too.
    """
    if step.kind is not CommKind.ALL_GATHER or step.combine is not Combine.COPY or step.dst_view is None:
        return None
    given: dict[int, list[Box]] = {peer: [] for peer in step.group}
    for piece in step.sends:
        given.setdefault(piece.peer, []).extend(piece.boxes)
    if len(given) != len(step.group) or any(boxes != given[step.group[0]] for boxes in given.values()):
        return None
    received = received_volumes(step)
    return tuple(received.get(peer, 0) for peer in step.group)


def scattered_sizes(step: CommStep) -> tuple[int, ...] | None:
    """Elements of each member's sum, by a rank's part of a reduce-scatter of any lengths; else None.

    In one each member has an addend of every sum, and adds up its own, the same boxes from each.
    """
    if step.kind is not CommKind.REDUCE_SCATTER or step.combine is not Combine.SUM or step.src_view is None:
        return None
    added = [piece for piece in step.recvs if volume(piece.boxes)]
    if added and not (_same_boxes(added, len(step.group)) and {one.peer for one in added} == {*step.group}):
        return None
    sent = sent_volumes(step)
    return tuple(sent.get(peer, 0) for peer in step.group)


def has_form(step: CommStep) -> bool:
    """Whether a rank's part of a step can be done in the form that the step says."""
    if step.form is GatherForm.ALL_TO_ALL or gathered_sizes(step) is not None:
        return True
    return step.form is GatherForm.PADDED and scattered_sizes(step) is not None


def lands_in_turn(step: CommStep) -> bool:
    """Whether what arrives, one member after the other, is the result as it is."""
    if step.dst_view is None or step.combine is not Combine.COPY or len(step.dst_view) != 1:
        return False
    sizes = received_volumes(step)
    low = 0
    for peer in step.group:
        boxes = [piece.boxes for piece in step.recvs if piece.peer == peer]
        if sizes.get(peer, 0) and boxes != [(((low, low + sizes[peer]),),)]:
            return False
        low += sizes.get(peer, 0)
    return low == step.dst_view[0]


def moved_volumes(step: CommStep) -> dict[int, int]:
    """Elements that a rank's part of a step moves to each peer, with those that pad them."""
    if step.form is not GatherForm.PADDED:
        return sent_volumes(step)
    sizes = gathered_sizes(step) or scattered_sizes(step) or ()
    return dict.fromkeys(step.group, max(sizes, default=0))


def _same_boxes(pieces: Sequence[Piece], members: int) -> bool:
    """Whether each member gets the same boxes, in one piece."""
    return len(pieces) == members and len({piece.boxes for piece in pieces}) == 1


def _all_whole(step: CommStep) -> bool:
    """Whether each member's piece is added to all of the destination."""
    if step.dst_view is None or len(step.recvs) != len(step.group):
        return False
    whole: tuple[Box, ...] = (full_box(step.dst_view),)
    return all(piece.boxes == whole for piece in step.recvs)
