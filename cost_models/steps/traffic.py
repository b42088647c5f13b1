"""What a step moves over each link, counted from the ranks' own steps and buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base.comm_plan import CommKind
from ...base.dtypes import BYTES
from ...program.lifetimes import COMPUTE_OPS
from ...program.program import Op
from .segment_walk import CommPart

if TYPE_CHECKING:
    from .priced_actions import StepPricer

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """A link in one step. busiest_bytes: of its busiest wire in one direction. share: that at full speed."""

    name: str
    bytes: int
    busiest_bytes: int
    share: float


def rank_volumes(pricer: StepPricer) -> dict[Pair, float]:
    """Bytes per (sender, receiver) in one step; an all-reduce as the ring that it is priced as."""
    found: dict[Pair, float] = {}
    rings: dict[tuple[int, ...], float] = {}
    for rank, own in pricer.owns.items():
        for instruction, step in zip(own.instructions, pricer.shapes[rank].steps, strict=True):
            if instruction.op is Op.SEND:
                _add(found, pricer.comm.sent(own.transfers[instruction.slot], rank))
            elif instruction.op in COMPUTE_OPS and step is not None and step.walked is not None:
                for comm in step.walked.comms:
                    if comm.part is CommPart.END:
                        continue
                    one = own.comms[comm.slot]
                    if one.kind is not CommKind.ALL_REDUCE:
                        _add(found, pricer.comm.sent(one, rank))
                    elif one.group[0] == rank:
                        rings[one.group] = rings.get(one.group, 0.0) + comm.size
        counts = own.times()
        for bucket in own.grad_buckets:
            count = counts.get(bucket.id, 0)
            if bucket.slot >= 0:
                _add(found, pricer.comm.sent(own.comms[bucket.slot], rank), count)
            elif len(bucket.group) > 1 and bucket.group[0] == rank:
                size = sum(piece.length for piece in bucket.pieces) * BYTES[bucket.dtype]
                rings[bucket.group] = rings.get(bucket.group, 0.0) + size * count
        gathers = sum(instruction.op is Op.PARAM_GATHER for instruction in own.instructions)
        for gathered in own.param_buckets:
            if gathered.slot >= 0 and gathers:
                _add(found, pricer.comm.sent(own.comms[gathered.slot], rank), gathers)
    for group, moved in rings.items():
        _add(found, pricer.cost.ring_volumes(group, moved))
    return found


def _add(found: dict[Pair, float], volumes: Mapping[Pair, float], times: float = 1.0) -> None:
    for pair, size in volumes.items():
        if pair[0] != pair[1] and size and times:
            found[pair] = found.get(pair, 0.0) + size * times


def link_bytes(pricer: StepPricer, volumes: Mapping[Pair, float], step_s: float) -> list[LinkBytes]:
    """Links by the share of the step that their bytes would take at full speed, most first.

    Between two nodes all ranks share one wire; inside a node each pair has its own.
    """
    total: dict[str, float] = {}
    wires: dict[str, dict[Pair, float]] = {}
    speed: dict[str, float] = {}
    for (sender, receiver), size in volumes.items():
        name = pricer.cost.link_name(sender, receiver)
        ends = (pricer.cost.slots[sender].node, pricer.cost.slots[receiver].node)
        wire = (sender, receiver) if ends[0] == ends[1] else ends
        total[name] = total.get(name, 0.0) + size
        held = wires.setdefault(name, {})
        held[wire] = held.get(wire, 0.0) + size
        speed[name] = pricer.cost.wire_bandwidth(sender, receiver)
    found = [
        LinkBytes(
            name,
            int(size),
            int(max(wires[name].values())),
            max(wires[name].values()) / speed[name] / step_s if step_s else 0.0,
        )
        for name, size in total.items()
    ]
    return sorted(found, key=lambda link: (-link.share, link.name))
