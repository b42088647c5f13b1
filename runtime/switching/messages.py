"""What a parcel is on its way: rows of bytes, alike at both ends.

Elements of one kind that are many go by themselves, out of the tensor that has them and into the one that is
to have them, where they lie in one piece there. All others of a parcel share one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...program.state.part_places import TensorPlace, part_places, place_in, write_places
from ...program.state.state_elements import source_kind
from .held import HeldState, StateLayout
from .streams import MovedPart, Parcel

ALONE_BYTES = 1 << 16
"""From so many on, elements of one kind go by themselves."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Elements of one kind."""

    moved: MovedPart
    kind: str
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return self.moved.size * self.dtype.itemsize

    @property
    def is_alone(self) -> bool:
        return self.size_bytes >= ALONE_BYTES


def places_of(moved: MovedPart, layout: StateLayout, kind: str) -> tuple[TensorPlace, ...]:
    """Where elements lie in a rank's tensor of a kind."""
    return part_places(moved.part, moved.low, moved.high, layout.shards[moved.part.name], kind)


def leaving_rows(source: HeldState, parcel: Parcel, device: torch.device) -> list[Tensor]:
    """The rows of a parcel that is sent; some are the memory of the source itself."""
    alone, shared = _entries(source.layout, parcel)
    rows = [_own_memory(source, entry, gives=True) for entry in alone]
    found = [
        _packed(source, [entry], device) if row is None else row
        for entry, row in zip(alone, rows, strict=True)
    ]
    return [*found, *([_packed(source, shared, device)] if shared else [])]


def arriving_rows(target: HeldState, parcel: Parcel, device: torch.device) -> list[Tensor]:
    """Memory for the rows of a parcel that comes; some is that of the target itself."""
    alone, shared = _entries(target.layout, parcel)
    rows = [_own_memory(target, entry, gives=False) for entry in alone]
    found = [_empty([entry], device) if row is None else row for entry, row in zip(alone, rows, strict=True)]
    return [*found, *([_empty(shared, device)] if shared else [])]


def take_rows(target: HeldState, parcel: Parcel, rows: Sequence[Tensor]) -> None:
    """Put what has come where it belongs, if it isn't there yet."""
    alone, shared = _entries(target.layout, parcel)
    for entry, row in zip(alone, rows, strict=False):
        if _own_memory(target, entry, gives=False) is None:
            _unpack(target, [entry], row)
    if shared:
        _unpack(target, shared, rows[-1])


def _entries(layout: StateLayout, parcel: Parcel) -> tuple[list[_Entry], list[_Entry]]:
    """Those that go by themselves, and others: wide types first, each at a multiple of its size."""
    found = [
        _Entry(each, kind, layout.dtype((each.part.name, kind))) for each in parcel for kind in each.kinds
    ]
    shared = sorted((entry for entry in found if not entry.is_alone), key=lambda entry: -entry.dtype.itemsize)
    return [entry for entry in found if entry.is_alone], shared


def _own_memory(held: HeldState, entry: _Entry, gives: bool) -> Tensor | None:
    """The elements where they lie, as bytes; None where they are in pieces, or of another type."""
    name = entry.moved.part.name
    kind = source_kind(held.layout.shards[name], entry.kind) if gives else entry.kind
    places, tensor = places_of(entry.moved, held.layout, kind), held.tensor((name, kind))
    if len(places) != 1 or tensor.dtype != entry.dtype or tensor.is_conj() or not tensor.is_contiguous():
        return None
    seen = place_in(tensor, places[0])
    return seen.reshape(-1).view(torch.uint8) if seen.is_contiguous() else None


def _spans(entries: Sequence[_Entry]) -> Iterator[tuple[_Entry, int, int]]:
    start = 0
    for entry in entries:
        yield entry, start, start + entry.size_bytes
        start += entry.size_bytes


def _empty(entries: Sequence[_Entry], device: torch.device) -> Tensor:
    return torch.empty(sum(entry.size_bytes for entry in entries), dtype=torch.uint8, device=device)


def _packed(source: HeldState, entries: Sequence[_Entry], device: torch.device) -> Tensor:
    message = _empty(entries, device)
    for entry, begin, end in _spans(entries):
        name = entry.moved.part.name
        origin = source_kind(source.layout.shards[name], entry.kind)
        tensor, row = source.tensor((name, origin)), message[begin:end].view(entry.dtype)
        start = 0
        for place in places_of(entry.moved, source.layout, origin):
            seen = place_in(tensor, place)
            row[start : start + seen.numel()].view(seen.shape).copy_(seen)
            start += seen.numel()
    return message


def _unpack(target: HeldState, entries: Sequence[_Entry], message: Tensor) -> None:
    for entry, begin, end in _spans(entries):
        tensor = target.tensor((entry.moved.part.name, entry.kind))
        row = message[begin:end].view(entry.dtype)
        write_places(tensor, places_of(entry.moved, target.layout, entry.kind), row)
