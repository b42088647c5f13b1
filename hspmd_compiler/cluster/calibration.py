"""What `hspmd profile` measured on machines, as cost models read it. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, NamedTuple, TypeAlias

from ..base.typed import Wanted

Number: TypeAlias = Annotated[float, Wanted("a number, such as 4.0e-09")]
SENDS = ("blocking", "buffered", "async")
GRADIENT = "gradient"
"""A sum of a gradient bucket, among collectives: an all-reduce of what was packed just before."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds as a sum of three parts. spread: median deviation of what was measured from it, relative.

    busy: of a collective, the part of its seconds for which each member works on a processor.
    """

    fixed_s: Number
    per_flop_s: Number = 0.0
    per_byte_s: Number = 0.0
    spread: Number = 0.0
    busy: Number = 0.0

    def seconds(self, flops: float = 0.0, bytes: float = 0.0) -> float:
        return self.fixed_s + flops * self.per_flop_s + bytes * self.per_byte_s


class LayerTime(NamedTuple):
    """Seconds of one layer at one size of micro-batch."""

    micro_batch: int
    forward_s: Number
    backward_s: Number


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """What was measured of one kind of layer: `times` by size of micro-batch, ascending."""

    kind: str
    tp: int
    dtype: str
    times: tuple[LayerTime, ...]


class AtOnce(NamedTuple):
    """Where so many ranks of a machine compute at once, computing takes `factor` times what `operators` say.

    Beside their waiting for a processor. spread: median deviation of what was measured from it, relative.
    """

    ranks: int
    factor: Number
    spread: Number = 0.0


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """What a rank holds beyond its tensors: `fixed_bytes`, and `share` of their bytes, as blocks that its
    allocator keeps. spread: median deviation of what was measured from it, relative.
    """

    fixed_bytes: int = 0
    share: Number = 0.0
    spread: Number = 0.0

    def extra(self, tensor_bytes: int) -> int:
        """Bytes beside tensors of so many bytes."""
        return self.fixed_bytes + int(self.share * tensor_bytes)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A machine as measured through our runtime.

    date: as in `2026-11-28`. torch: its version. device: the kind. threads: of a rank's operators.
    operators: by class and element type, as in `matmul:float32`. exchange: by class of link, per message
    and byte, packed, sent, received and unpacked. collectives: by kind, members and place, as in
    `all_reduce:4:across`, of gradient buckets `gradient:4:across`. update: of a parameter tensor, and per
    byte. instruction_s: of an instruction that does nothing. platform_bytes: held before any tensor is there,
    with all communicators up.
    sends: whether a sender waits; it doesn't for a message of at most buffer_bytes. posted_ahead: whether
    a receive is posted before its value is needed. held: beyond tensors and platform, as trial runs showed.
    at_once: by the number of ranks, ascending; none: ranks do not slow each other.
    """

    date: str
    torch: str
    device: str
    threads: int
    operators: dict[str, Fit] = field(hash=False)
    exchange: dict[str, Fit] = field(hash=False)
    collectives: dict[str, Fit] = field(hash=False)
    update: Fit
    instruction_s: Number
    platform_bytes: int
    sends: str
    buffer_bytes: int = 0
    posted_ahead: bool = False
    layers: tuple[LayerProfile, ...] = ()
    held: HeldMemory = HeldMemory()
    at_once: tuple[AtOnce, ...] = ()

    def slowdown(self, ranks: int) -> float:
        """The factor where so many compute at once: straight between what was measured, level outside."""
        measured = self.at_once
        if not measured:
            return 1.0
        for low, high in pairwise(measured):
            if low.ranks <= ranks <= high.ranks:
                part = (ranks - low.ranks) / (high.ranks - low.ranks)
                return low.factor + part * (high.factor - low.factor)
        return measured[0 if ranks < measured[0].ranks else -1].factor

    def is_of(self, kind: str) -> bool:
        """Whether it holds for a kind of device: one family, and one name a part of the other."""
        (family, _, name), (other_family, _, other) = (
            text.lower().partition(" ") for text in (self.device, kind)
        )
        return family == other_family and (name in other or other in name)

    def find_differences(self, torch: str, device: str) -> tuple[str, ...]:
        """Why it may not hold where this torch runs on this kind of device, for people."""
        builds = (self.torch.partition("+")[0], torch.partition("+")[0])
        pairs = (
            ("torch", self.torch, torch, builds[0] == builds[1]),
            ("device", self.device, device, self.is_of(device)),
        )
        return tuple(
            f"the profile of {self.date} was measured with {name} {own}, here it is {other}"
            for name, own, other, is_same in pairs
            if not is_same
        )
