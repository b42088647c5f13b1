"""Communication as values: what moves between which ranks, by boxes, priced by bytes. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

Interval = tuple[int, int]
Box = tuple[Interval, ...]


class CommKind(Enum):
    """What a plan amounts to; the name that reports and counts use."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"


class GatherForm(Enum):
    """How pieces of unequal lengths go to all members of a group, or addends of such pieces to who sums them.

    ALL_TO_ALL: exact boxes to each, as any exchange. PADDED: one all-gather, or one reduce-scatter, of pieces
    as long as the longest. BROADCASTS: each member's piece by a broadcast of its own; of gathers alone.
    """

    ALL_TO_ALL = "all_to_all"
    PADDED = "padded"
    BROADCASTS = "broadcasts"


class Counted(Enum):
    """Whether how many rows go to whom is counted in the step, and which way they go.

    NO: the numbers of the step say it. OUT: row r of the counts is what member r sends to each. BACK: what
    came by OUT returns.
    """

    NO = "no"
    OUT = "out"
    BACK = "back"


class Combine(Enum):
    """How pieces that arrive at one place are joined."""

    COPY = "copy"
    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Piece:
    """Boxes that go to, or come from, one rank, in the local factored view of this rank's tensor."""

    peer: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class CommStep:
    """One rank's part of one collective or batched send/receive.

    group: ranks, ascending; every member has a step with the same id, kind and group.
    ALL_REDUCE reduces the whole tensor over the group with `combine` and needs nothing below.
    Otherwise: the source tensor is viewed as `src_view`, the boxes of `sends` are cut from it (in
    order, for each peer); the result, of shape `dst_shape`, viewed as `dst_view`, starts as zeros,
    and the boxes of `recvs` are filled (COPY) or added (SUM), in the order of `recvs`. The boxes a
    sends to b match, in order and volume, the boxes b receives from a. A piece whose peer is the
    rank itself is a local copy. A rank without the source has src_view None; one that needs no
    result has dst_view None. dtype: element type of what moves, by torch name; a rank without the
    source allocates by it. form: other than ALL_TO_ALL only where each member gives the same boxes to all
    members, itself too, or nothing, or, PADDED, where each has an addend of every member's piece; alike on
    all members. counted: other than NO the step is an exchange of rows between views [rows, width], whose
    numbers are those of an even load; see program/sized/counted_step.
    """

    id: int
    kind: CommKind
    group: tuple[int, ...]
    combine: Combine = Combine.COPY
    src_view: tuple[int, ...] | None = None
    dst_view: tuple[int, ...] | None = None
    dst_shape: tuple[int, ...] | None = None
    sends: tuple[Piece, ...] = ()
    recvs: tuple[Piece, ...] = ()
    note: str = ""
    dtype: str = "float32"
    form: GatherForm = GatherForm.ALL_TO_ALL
    counted: Counted = Counted.NO


@dataclass(frozen=True, slots=True)
class GradPiece:
    """Part of one parameter's gradient in a reduction over one group.

    src_boxes: boxes of this rank's accumulated gradient (viewed as `src_view`) that it contributes,
    None where it contributes zeros. dst_boxes: boxes of the synchronised gradient (shape of the
    local parameter, viewed as `dst_view`) that it receives, None where it needs none. length:
    elements, the same on every rank of the group.
    """

    param: str
    length: int
    src_view: tuple[int, ...] | None
    src_boxes: tuple[Box, ...] | None
    dst_view: tuple[int, ...] | None
    dst_boxes: tuple[Box, ...] | None


@dataclass(frozen=True, slots=True)
class GradBucket:
    """One flat all-reduce (sum) of gradient pieces over a group; a group of one rank is a local copy.

    slot: of the step among the rank's `comms` that is done instead, a reduce-scatter of the flat bucket;
    -1 for the all-reduce. Its pieces with `src_boxes` make up the bucket, in order, those with `dst_boxes`
    what this rank keeps of it: they go into the rows of elements that the rank stores. Ranks without
    anything to add have no source in that step.
    wave: of buckets that start together while backward goes on; -1 for one that is reduced at its end.
    """

    id: int
    group: tuple[int, ...]
    dtype: str
    pieces: tuple[GradPiece, ...]
    slot: int = -1
    wave: int = -1

    @property
    def given(self) -> tuple[GradPiece, ...]:
        """The pieces that make up the flat bucket of this rank."""
        if self.slot < 0:
            return self.pieces
        return tuple(piece for piece in self.pieces if piece.src_boxes is not None)

    @property
    def kept(self) -> tuple[GradPiece, ...]:
        """The pieces that make up what this rank gets back, flat."""
        if self.slot < 0:
            return self.pieces
        return tuple(piece for piece in self.pieces if piece.dst_boxes is not None)


@dataclass(frozen=True, slots=True)
class ParamPiece:
    """Part of one parameter in a gathering over its holders.

    boxes: where all of its elements lie in this rank's local tensor. own: those that this rank stores.
    row: where these lie, [low, high), in the run of all elements of the parameter that it stores.
    """

    param: str
    length: int
    boxes: tuple[Box, ...]
    own: tuple[Box, ...]
    row: Interval


@dataclass(frozen=True, slots=True)
class ParamBucket:
    """One flat all-gather of parameter pieces over their holders; a group of one rank is a local copy.

    slot: of the step among the rank's `comms`, from the flat elements that it stores to all of them; -1
    for one rank.
    """

    id: int
    group: tuple[int, ...]
    dtype: str
    pieces: tuple[ParamPiece, ...]
    slot: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one collective, or one batch of sends and receives, moves between its ranks.

    volumes: bytes per (sender, receiver). An all-reduce has none, since it moves as it likes; size: the bytes
    that each of its ranks reduces.
    """

    kind: CommKind
    ranks: tuple[int, ...]
    volumes: Mapping[tuple[int, int], int]
    size: int = 0


class CostModel(Protocol):
    """What communication costs, in seconds; plans are compared by it, and kept by it: it is hashable."""

    def comm_s(self, traffic: Sequence[Traffic]) -> float:
        """One step: all of it goes on at once, and no rank is in two of them."""

    def unequal_forms_s(
        self, kind: CommKind, group: Sequence[int], sizes: Sequence[float]
    ) -> Mapping[GatherForm, float]:
        """ALL_GATHER: pieces of so many bytes, one of each member, to all. REDUCE_SCATTER: sums of so many
        bytes, one for each member, of addends that all have. None where forms aren't told apart.
        """

    def near(self, rank: int) -> frozenset[int] | None:
        """The ranks that `rank` reaches best, as those of its machine; None where all are alike."""


def box_volume(box: Box) -> int:
    """Elements in a box."""
    volume = 1
    for low, high in box:
        volume *= high - low
    return volume
