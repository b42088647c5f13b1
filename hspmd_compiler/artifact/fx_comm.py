"""What a rank's fx graph calls beside kernels: communication over torch.distributed, sums of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.fx.node import has_side_effect

from ..comm_plan import Box, Combine, CommKind, CommStep, Piece
from ..errors import RunError
from . import boxes
from .arrays import TorchArrays

Ranks = tuple[int, ...]
View = tuple[int, ...]
Pieces = tuple[tuple[int, tuple[Box, ...]], ...]
"""(peer, boxes) pairs."""

# Collectives have side effects in the eyes of fx: they stay where nobody reads the result, for others wait.


@dataclass(frozen=True, slots=True)
class Groups:
    """Process groups by rank list, and one for messages in each direction (for NCCL's sake)."""

    by_ranks: dict[Ranks, dist.ProcessGroup]
    upward: dist.ProcessGroup | None = None
    downward: dist.ProcessGroup | None = None

    def name(self, ranks: Ranks) -> str:
        """The name that functional collectives take."""
        return str(self.by_ranks[ranks].group_name)

    def toward(self, source: int, target: int) -> dist.ProcessGroup | None:
        """The group for messages from one rank to another."""
        return self.upward if source < target else self.downward


_made: dict[tuple[dist.ProcessGroup | None, int, tuple[Ranks, ...]], Groups] = {}


def process_groups(world_size: int, groups: tuple[Ranks, ...]) -> Groups:
    """The groups of a program, made in its order when a rank first asks; every rank asks first of all."""
    if world_size == 1:
        return Groups({})
    if not dist.is_initialized() or dist.get_world_size() != world_size:
        raise RunError(
            f"this module is one of {world_size} ranks",
            rule="each rank's module runs in a process of its own",
            fix="call torch.distributed.init_process_group, or start the script with torchrun",
        )
    key = (dist.group.WORLD, world_size, groups)
    if key not in _made:
        _made[key] = _make(world_size, groups)
    return _made[key]


def _make(world_size: int, groups: tuple[Ranks, ...]) -> Groups:
    world = tuple(range(world_size))
    made = {ranks: dist.new_group(list(ranks)) for ranks in dict.fromkeys((*groups, world)) if len(ranks) > 1}
    return Groups(made, dist.new_group(list(world)), dist.new_group(list(world)))


@has_side_effect
def all_reduce(value: Tensor, groups: Groups, ranks: Ranks, combine: str) -> Tensor:
    """The sum or maximum over `ranks`."""
    if len(ranks) == 1:
        return value
    reduced = torch.ops._c10d_functional.all_reduce(value.contiguous(), combine, groups.name(ranks))
    return _waited(reduced)


@has_side_effect
def exchange(
    source: Tensor | None,
    groups: Groups,
    rank: int,
    ranks: Ranks,
    combine: str,
    dtype: torch.dtype,
    src_view: View | None,
    sends: Pieces,
    dst_view: View | None,
    dst_shape: View | None,
    recvs: Pieces,
) -> Tensor | None:
    """Boxes of `source` to other ranks, and a tensor made of theirs; see CommStep."""
    step = CommStep(
        0, CommKind.ALL_TO_ALL, ranks, Combine(combine), src_view, dst_view, dst_shape, _of(sends), _of(recvs)
    )
    empty = torch.empty(0, dtype=dtype, device=_device(source))
    sent = {} if source is None or src_view is None else boxes.cut(step, source)
    arrived = sent if len(ranks) == 1 else _all_to_all(step, sent, groups, empty)
    return None if dst_view is None else boxes.paste(step, arrived, empty)


@has_side_effect
def send(
    value: Tensor, groups: Groups, rank: int, src_view: View, sends: Pieces, tag: int
) -> list[tuple[dist.Work, Tensor]]:
    """Start to send boxes; the result goes to `finish_sends`."""
    step = CommStep(0, CommKind.SEND_RECV, (rank,), src_view=src_view, sends=_of(sends))
    rows = {peer: _wire(row).contiguous() for peer, row in boxes.cut(step, value).items() if row.numel()}
    works = [(dist.isend(row, peer, groups.toward(rank, peer), tag), row) for peer, row in rows.items()]
    return [(work, row) for work, row in works if work is not None]


def receive(
    groups: Groups,
    rank: int,
    combine: str,
    dtype: torch.dtype,
    dst_view: View,
    dst_shape: View,
    recvs: Pieces,
    tag: int,
    device: str,
) -> Tensor:
    """A tensor made of the boxes that others `send`."""
    step = CommStep(
        0,
        CommKind.SEND_RECV,
        (rank,),
        Combine(combine),
        dst_view=dst_view,
        dst_shape=dst_shape,
        recvs=_of(recvs),
    )
    empty = torch.empty(0, dtype=dtype, device=device)
    rows = {peer: empty.new_empty(size) for peer, size in boxes.received_volumes(step).items()}
    works = [
        dist.irecv(_wire(row), peer, groups.toward(peer, rank), tag)
        for peer, row in rows.items()
        if row.numel()
    ]
    for work in works:
        if work is not None:
            work.wait()
    return boxes.paste(step, rows, empty)


@has_side_effect
def finish_sends(started: Sequence[list[tuple[dist.Work, Tensor]]]) -> None:
    """Wait until everything has left."""
    for works in started:
        for work, _ in works:
            work.wait()


def accumulate(total: Tensor | None, value: Tensor) -> Tensor:
    """A running sum of gradients, as the executor keeps it: narrow types are summed in float32."""
    return TorchArrays(str(value.device)).accumulate(total, value, owned=False)


def pack(
    grad: Tensor | None, length: int, view: View | None, held: tuple[Box, ...] | None, like: Tensor
) -> Tensor:
    """A rank's flat contribution to a reduction; zeros where it has none. like: gives dtype and device."""
    if grad is None or view is None or held is None:
        return like.new_zeros(length)
    return boxes.pack(grad, view, held).to(like.dtype)


def part(row: Tensor, low: int, high: int, like: Tensor) -> Tensor:
    """Elements of a stored row in another type. like: gives it."""
    return row[low:high].to(like.dtype)


def unpack(parts: Sequence[Tensor], shape: View, places: Sequence[tuple[View, tuple[Box, ...]]]) -> Tensor:
    """A tensor from parts of flat buckets. places: view and boxes of each part."""
    (view, held), part = places[0], parts[0]
    if len(parts) == 1 and held == (boxes.full_box(view),):
        return part.view(shape)
    result = part.new_zeros(shape)
    for values, (view, held) in zip(parts, places, strict=True):
        boxes.unpack(values, result.view(view), held, Combine.COPY)
    return result


def _of(pieces: Pieces) -> tuple[Piece, ...]:
    return tuple(Piece(peer, held) for peer, held in pieces)


def _all_to_all(
    step: CommStep, sent: Mapping[int, Tensor], groups: Groups, empty: Tensor
) -> dict[int, Tensor]:
    leaving, coming = boxes.sent_volumes(step), boxes.received_volumes(step)
    sizes = [coming.get(peer, 0) for peer in step.group]
    row = _wire(torch.cat([empty, *(sent[peer] for peer in step.group if peer in sent)]))
    arrived = torch.ops._c10d_functional.all_to_all_single(
        row, sizes, [leaving.get(peer, 0) for peer in step.group], groups.name(step.group)
    )
    parts = torch.split(_waited(arrived).view(empty.dtype), sizes)
    return dict(zip(step.group, parts, strict=True))


def _wire(row: Tensor) -> Tensor:
    """Truth values travel as bytes."""
    return row.view(torch.uint8) if row.dtype == torch.bool else row


def _waited(value: Tensor) -> Tensor:
    waited: Tensor = torch.ops._c10d_functional.wait_tensor(value)
    return waited


def _device(source: Tensor | None) -> torch.device:
    return torch.device("cpu") if source is None else source.device
