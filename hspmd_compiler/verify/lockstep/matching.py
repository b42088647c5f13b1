"""Whether the requests that meet belong together: same step, same type, same sizes."""

from __future__ import annotations

from collections.abc import Sequence

from ...base.by_key import by_key
from ...base.comm_plan import CommStep, Piece, box_volume
from ...errors import VerifyError
from ...ir.type_text import dtype_name
from ...program.program_text import kind_text
from ...program.requests import AllReduce, Exchange, ExchangeStart, GradReduce, ReduceStart, Request
from .blocked import RankRun, V, typed

BoxVolumes = dict[int, tuple[int, ...]]
"""Elements of each box, in order, by peer."""


def check_alike(first: RankRun[V], second: RankRun[V]) -> None:
    """Both ranks wait on one group: they must ask for the same step with the same kind of value."""
    one, two = first.request, second.request
    assert one is not None and two is not None, "only waiting ranks meet"
    for name, mine, other in zip(ALIKE, _signature(one), _signature(two), strict=True):
        if mine != other:
            raise mismatch(first, second, f"{name} {mine} meets {other}", ALIKE_RULE)


def check_exchange(members: Sequence[RankRun[V]], volumes: dict[int, tuple[BoxVolumes, BoxVolumes]]) -> None:
    """Every pair of an exchange: boxes sent equal boxes received, in order and volume."""
    for sender in members:
        for receiver in members:
            sent = volumes[sender.rank][0].get(receiver.rank, ())
            wanted = volumes[receiver.rank][1].get(sender.rank, ())
            if sent != wanted:
                raise mismatch(
                    sender,
                    receiver,
                    f"rank {sender.rank} sends {_shown(sent)}, rank {receiver.rank} expects {_shown(wanted)}",
                    BOX_RULE,
                )


def volumes_of(step: CommStep) -> tuple[BoxVolumes, BoxVolumes]:
    """(sent, received) elements of each box, by peer; empty boxes do not travel."""
    return _by_peer(step.sends), _by_peer(step.recvs)


def mismatch(first: RankRun[V], second: RankRun[V], what: str, rule: str) -> VerifyError:
    """An error that shows both ranks."""
    details = [("tensor", first.tensor()), *((f"rank {run.rank}", run.doing()) for run in (first, second))]
    return VerifyError(what, details=details, rule=rule, fix=OURS)


def check_type(run: RankRun[V], value: V, wanted: str) -> None:
    """The element type that a step announces is the one of its value."""
    if dtype_name(value.dtype) != wanted:
        raise VerifyError(
            f"rank {run.rank} hands over {typed(value)} where {wanted} is announced",
            details=[("tensor", run.tensor()), (f"rank {run.rank}", run.doing())],
            rule="receivers allocate by the type that the step announces",
            fix=OURS,
        )


ALIKE = ("request", "step", "kind", "combination", "type and size", "pieces")
ALIKE_RULE = "the members of a group post the same collectives in the same order"
BOX_RULE = "the boxes that one rank sends to another match those it expects, in order and volume"
OURS = "report it with the strategy: the compiler made programs that do not fit together"


def _signature(request: Request[V]) -> tuple[object, ...]:
    name = type(request).__name__
    if isinstance(request, AllReduce):
        step, value = request.step, request.value
        shape = (str(value.dtype), tuple(value.shape))
        return (name, step.id, step.kind.value, step.combine.value, shape, ())
    if isinstance(request, (Exchange, ExchangeStart)):
        step = request.step
        return (name, step.id, kind_text(step), step.combine.value, step.dtype, ())
    if isinstance(request, (GradReduce, ReduceStart)):
        bucket = request.bucket
        pieces = tuple((piece.param, piece.length) for piece in bucket.pieces)
        return (name, bucket.id, "", "sum", (bucket.dtype, request.value.numel()), pieces)
    return (name, -1, "", "", "", ())


def _by_peer(pieces: Sequence[Piece]) -> BoxVolumes:
    volumes = ((piece.peer, box_volume(box)) for piece in pieces for box in piece.boxes)
    found = by_key((peer, size) for peer, size in volumes if size)
    return {peer: tuple(sizes) for peer, sizes in found.items()}


def _shown(volumes: tuple[int, ...]) -> str:
    return f"boxes of {', '.join(map(str, volumes))} elements" if volumes else "nothing"
