"""Rank programs as values: segments of local rows shared by a class, and one table per rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, TypeAlias

from ..base.codec import Literals, Tag, encode, natural
from ..base.comm_plan import Box, CommStep, GradBucket, ParamBucket
from ..base.dtypes import BYTES
from ..base.typed import AtLeast, Bare
from .context.row_piece import RowPiece
from .sized.size_range import SizeRange
from .sized.sizes import Overlay, Size, size_from

ZERO_STATE, ZERO_GRADS, ZERO_PARAMS = 1, 2, 3
"""What a rank keeps of owned elements only, by `Shard.zero`; each includes those before it."""


RECEIVES_AHEAD = 1
"""As many receives a rank posts before their turn unless the strategy says otherwise."""

GETITEM = "getitem"
COMM = "comm"
COMM_START = "comm_start"
ALIASES = frozenset({"aten.alias.default", "aten.detach.default", COMM_START})
"""Operators that give their argument back: a program without autograd skips them."""


KEY_SIZE = 3
"""Numbers of a key of random numbers: seed, step, first sample."""


class InputKind(Enum):
    """Where a segment's input comes from."""

    PARAM = "param"  # name: parameter or buffer name; the local shard
    STORED = "stored"  # name: parameter; the flat run of those of its elements that this rank stores
    DATA = "data"  # name: batch key; this micro-batch's rows
    MICRO = "micro"  # a value of this micro-batch, kept by an earlier instruction (value: its id)
    STEP = "step"  # a value of this step, made by STEP_REDUCE (value: its id)
    DOCUMENTS = "documents"  # name: batch key of positions; where documents begin, on the host
    KEY = "key"  # what random masks depend on: int64 (seed, step, first sample of this micro-batch)


OF_BATCH = frozenset({InputKind.DATA, InputKind.DOCUMENTS})
"""What a batch gives."""


class OutputKind(Enum):
    """Where a segment's output goes."""

    MICRO = "micro"  # kept for later instructions of this micro-batch (saved, or to be sent)
    GRAD = "grad"  # added to the accumulated gradient of parameter `name`
    LOSS = "loss"  # added to this rank's share of the loss
    STEP = "step"  # added to a step value, reduced later by STEP_REDUCE
    BUFFER = "buffer"  # new value of buffer `name`


@dataclass(frozen=True, slots=True)
class Value(Bare):
    """A value id local to the class program; rows that realise a logical row carry that row's id."""

    id: Annotated[int, AtLeast(0)]


@dataclass(frozen=True, slots=True)
class Hole(Bare):
    """A literal that differs between the ranks of a class: entry `index` of the rank's `literals`."""

    index: Annotated[int, AtLeast(0)]


@dataclass(frozen=True, slots=True)
class DType:
    """A torch dtype by name, such as `float32`."""

    name: str


def _dtype(name: object) -> DType:
    if not isinstance(name, str) or name not in BYTES:
        raise ValueError(f"a dtype: {', '.join(BYTES)}")
    return DType(name)


Argument: TypeAlias = Annotated[
    object,
    Literals(
        Tag("v", Value, lambda value: value.id, lambda held: Value(natural(held))),
        Tag("hole", Hole, lambda hole: hole.index, lambda held: Hole(natural(held))),
        Tag("dtype", DType, lambda dtype: dtype.name, _dtype),
        Tag("size", Size, encode, size_from),
    ),
]
"""Values, holes, tuples, numbers, sizes, strings, None, and torch dtypes as `DType`."""


@dataclass(frozen=True, slots=True)
class SegmentInput:
    kind: InputKind
    value: Value
    name: str = ""


@dataclass(frozen=True, slots=True)
class SegmentOutput:
    kind: OutputKind
    value: Value
    name: str = ""


@dataclass(slots=True)
class LocalRow:
    """One local operator. `op`: `aten.*`, `hspmd.*` (see kernels), `getitem`, or `comm`.

    `comm` rows have args (Value, slot) where slot is an index into the rank's `comms`; where its step is
    counted, a Value of counts is behind them. `comm_start` has the first two and gives its value back: what
    the `comm` of this slot behind it moves may be under way from here on.
    logical: id of the row of the logical graph that this row completes, None for a helper row.
    """

    out: Value
    op: str
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument] = field(default_factory=dict)
    logical: int | None = None


@dataclass(slots=True)
class Segment:
    """Straight-line local code: the forward or backward of one stage for one micro-batch shape."""

    name: str
    inputs: list[SegmentInput]
    rows: list[LocalRow]
    outputs: list[SegmentOutput]


@dataclass(slots=True)
class ClassProgram:
    """What ranks with the same work share."""

    name: str
    segments: list[Segment]

    @property
    def draws(self) -> bool:
        """Whether a segment reads the key of random numbers."""
        return any(item.kind is InputKind.KEY for segment in self.segments for item in segment.inputs)


class Op(Enum):
    """Instructions of a rank program."""

    STEP_COMPUTE = "STEP_COMPUTE"  # segment, mb: compute shares of step values (global counts)
    STEP_REDUCE = "STEP_REDUCE"  # value, slot (comm): all-reduce a step value
    FORWARD = "FORWARD"  # segment, mb
    BACKWARD = "BACKWARD"  # segment, mb
    WEIGHTS = "WEIGHTS"  # segment, mb: gradients of weights that a backward pass has left
    SEND = "SEND"  # value, slot (transfer), mb
    RECV = "RECV"  # value, slot (transfer), mb
    GRAD_SCATTER = (
        "GRAD_SCATTER"  # grad buckets of shards with zero 2 and up, in order, for what is there yet
    )
    REDUCE_START = "REDUCE_START"  # wave: the sums of its grad buckets, which are whole, may be under way
    REDUCE_WAIT = "REDUCE_WAIT"  # wave: until its sums are there, in the order of starts
    GRAD_SYNC = "GRAD_SYNC"  # all grad buckets of no wave, in order
    LOSS = "LOSS"  # all-reduce the loss over all ranks (sum)
    OPTIMIZER = "OPTIMIZER"
    PARAM_GATHER = "PARAM_GATHER"  # all param buckets, in order: local shards from what their holders store
    PARAM_DROP = "PARAM_DROP"  # let go of the local shards that PARAM_GATHER made


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; fields not used by `op` are -1. mb: local micro-batch number (see Program.rows).

    over: of a RECV, how many of the rank's first SENDs have surely been received when it is done. wave: of a
    REDUCE_START, with the micro-batch behind whose backward pass it stands, and of a REDUCE_WAIT.
    """

    op: Op
    segment: int = -1
    mb: int = -1
    value: int = -1
    slot: int = -1
    tag: int = -1
    over: int = -1
    wave: int = -1

    # A SEND or RECV carries `tag`, unique in the whole program for each (transfer, micro-batch).


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's piece of a parameter: boxes of the whole and where they lie in the local tensor.

    shape: local. view: local factored view. boxes: (box in `whole_view`, box in `view`) pairs.
    owned: indexes into boxes... elements counted by this rank for norms and saving (each element
    of the whole is owned by exactly one rank). persistent: False for a buffer that the model keeps
    out of its state dict. zero: from 1 this rank trains only what it owns, from 2 it keeps only that of
    the summed gradient, from 3 it stores only that between uses. compute: type of the copies that
    segments read, empty: `dtype`, which is the type that is trained and saved.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    view: tuple[int, ...]
    whole_shape: tuple[int, ...]
    whole_view: tuple[int, ...]
    boxes: tuple[tuple[Box, Box], ...]
    owned: tuple[tuple[Box, Box], ...]
    trainable: bool
    is_buffer: bool
    persistent: bool = True
    zero: int = 0
    compute: str = ""

    @property
    def local_dtype(self) -> str:
        """The type of the local tensor that segments read."""
        return self.compute or self.dtype

    @property
    def is_flat(self) -> bool:
        """Whether what is trained is stored apart from the local tensor, as a flat run of elements."""
        return bool(self.compute) or self.zero == ZERO_PARAMS

    def synced_shape(self, view: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a synchronised gradient: of the local tensor, or of the row of elements that are kept."""
        return view if self.zero >= ZERO_GRADS else self.shape

    @property
    def kept(self) -> tuple[Box, ...]:
        """The boxes of the local tensor that this rank trains, in the order of its run."""
        if self.zero:
            return tuple(local for _, local in self.owned)
        return (tuple((0, size) for size in self.view),)


@dataclass(slots=True)
class SizedRank:
    """What of a rank's program varies with the micro-batch, beside the sizes in its rows and literals.

    comms, transfers: per slot, what varies of the step. begin, counts, forward, backward, end: the
    instructions of one micro-batch (mb 0), their tags being numbers of crossings; of `counts`, each
    STEP_COMPUTE is done for all micro-batches before what follows it. weights: what backward leaves to later.
    scatters: gradients are handed over inside a step. saved: bytes that are kept from a micro-batch's forward
    to its backward, the sum of these products. answers: (crossing that is sent, what comes): then it is over.
    """

    comms: list[Overlay]
    transfers: list[Overlay]
    begin: list[Instruction]
    counts: list[Instruction]
    forward: list[Instruction]
    backward: list[Instruction]
    end: list[Instruction]
    scatters: bool = False
    saved: list[tuple[Size, ...]] = field(default_factory=list)
    weights: list[Instruction] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class RankProgram:
    """One rank's program: the class program's name and everything that is this rank's own.

    rows: per micro-batch, the [low, high) rows of the global batch, along `row_dim` of its inputs: 1 where
    the batch is one row of packed tokens. literals: fill the class program's holes. comms: CommStep per slot,
    used by `comm` rows and STEP_REDUCE. transfers: CommStep (SEND_RECV, one direction) per slot for SEND and
    RECV. saved: per micro-batch, the bytes that are kept from its forward to its backward pass. sized: what
    varies, of a program for micro-batches of any size; all else has the numbers of its first probe.
    piece: the tokens of its samples that it runs, None: all of them. pieces: by micro-batch, where these are
    pieces of unlike rows. receives_ahead: how many receives are posted before their turn, see
    `messages.early_receives`. segment_stages: of a rank of several stages, the stage of each segment; `stage`
    is the first one.
    """

    rank: int
    device: int
    pipeline: int
    stage: int
    coordinate: int
    class_name: str
    device_kind: str
    rows: list[tuple[int, int]]
    literals: list[Argument]
    comms: list[CommStep]
    transfers: list[CommStep]
    shards: list[Shard]
    grad_buckets: list[GradBucket]
    instructions: list[Instruction]
    param_buckets: list[ParamBucket] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    row_dim: int = 0
    sized: SizedRank | None = None
    piece: RowPiece | None = None
    receives_ahead: Annotated[int, AtLeast(0)] = RECEIVES_AHEAD
    pieces: list[RowPiece] = field(default_factory=list)
    segment_stages: tuple[int, ...] = ()

    @property
    def stages(self) -> tuple[int, ...]:
        """All stages that it runs, in order."""
        return tuple(sorted({self.stage, *self.segment_stages}))

    @property
    def stage_text(self) -> str:
        """`0`, or of several `0 and 2`."""
        return " and ".join(map(str, self.stages))

    def stage_of(self, segment: int) -> int:
        """The stage that a segment is of."""
        return self.segment_stages[segment] if self.segment_stages else self.stage

    def piece_of(self, mb: int) -> RowPiece | None:
        """The tokens of a micro-batch's rows that it runs, None: all of them."""
        return self.pieces[mb] if self.pieces else self.piece

    @property
    def drawn_rows(self) -> list[tuple[int, int]]:
        """Rows from the first sample, or token, on that this rank runs: there its random numbers begin."""
        if not self.pieces:
            return self.rows
        pairs = zip(self.rows, self.pieces, strict=True)
        return [(low + piece.runs[0][0], high) for (low, high), piece in pairs]

    def micro_shape(self, name: str, shape: tuple[int, ...], rows: int, mb: int = 0) -> tuple[int, ...]:
        """What a micro-batch of so many rows has of an input of this shape."""
        held, piece = (*shape[: self.row_dim], rows, *shape[self.row_dim + 1 :]), self.piece_of(mb)
        return held if piece is None else piece.shape(name, held)

    @property
    def update_at(self) -> int:
        """The position of the update; the end where there is none."""
        ops = [instruction.op for instruction in self.instructions]
        return ops.index(Op.OPTIMIZER) if Op.OPTIMIZER in ops else len(ops)

    @property
    def device_family(self) -> str:
        """`cuda` of `cuda NVIDIA H100`."""
        return self.device_kind.partition(" ")[0]

    @property
    def scattered(self) -> frozenset[str]:
        """Parameters of whose summed gradients this rank keeps a share."""
        return frozenset(shard.name for shard in self.shards if shard.zero >= ZERO_GRADS)

    def times(self) -> dict[int, int]:
        """How often a step reduces each gradient bucket, by its id."""
        shared = self.scattered
        scatters = sum(instruction.op is Op.GRAD_SCATTER for instruction in self.instructions)
        syncs = sum(instruction.op is Op.GRAD_SYNC for instruction in self.instructions)
        return {
            bucket.id: syncs + scatters * (bucket.pieces[0].param in shared)
            for bucket in self.grad_buckets
            if bucket.pieces
        }


@dataclass(slots=True)
class Program:
    """All programs of one compiled strategy.

    batch: global batch size. inputs: key -> (global shape, dtype). aliases: name -> canonical name.
    groups: every rank list that a collective uses, in creation order. sizes: of a program for micro-batches
    of any size, see `sized.instantiate`. left_out: as `inputs`, what a batch may hold that no rank reads:
    masks of ones.
    """

    world_size: int
    batch: int
    inputs: dict[str, tuple[tuple[int, ...], str]]
    aliases: dict[str, str]
    classes: dict[str, ClassProgram]
    ranks: list[RankProgram]
    groups: list[tuple[int, ...]]
    sizes: SizeRange | None = None
    left_out: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    @property
    def cuts_samples(self) -> bool:
        """Whether some rank runs some tokens of its samples only."""
        if self.sizes is not None and self.sizes.groups:
            return True
        return any(own.piece is not None or own.pieces for own in self.ranks)
