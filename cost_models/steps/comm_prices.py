"""Prices of a program's communication: steps, transfers and buckets, each beside what goes on at once."""

from __future__ import annotations

from collections.abc import Mapping

from ...base.comm_plan import CommKind, CommStep, GatherForm, GradBucket, ParamBucket
from ...base.dtypes import BYTES
from ...program.boxes import sent_volumes
from ...program.exchange_plan import ExchangePlan, Shortcut, gathered_sizes, moved_volumes, scattered_sizes
from ...program.program import RankProgram
from ..links import ClusterCost

Pair = tuple[int, int]
Group = tuple[int, ...]
SHORTCUTS = {Shortcut.ALL_GATHER: CommKind.ALL_GATHER, Shortcut.REDUCE_SCATTER: CommKind.REDUCE_SCATTER}


class StepComm:
    """Communication of one program on one cluster; every price is found once."""

    def __init__(self, owns: Mapping[int, RankProgram], cost: ClusterCost) -> None:
        self.owns, self.cost = owns, cost
        self._members: dict[int, dict[int, CommStep]] | None = None
        self._exchanges: dict[tuple[int, Group], float] = {}
        self._wires: dict[int, dict[int, list[tuple[int, int, float]]]] = {}
        self._senders: dict[int, dict[int, list[int]]] = {}
        self._sizes: dict[int, tuple[object, int]] = {}
        self._node_rings: dict[int, dict[Group, int]] | None = None
        self._rings_of: dict[Group, float] = {}

    def step_s(self, step: CommStep, size_bytes: int) -> float:
        """One step among its group. size_bytes: of the operand."""
        if step.kind is CommKind.ALL_REDUCE:
            return self.cost.all_reduce_s(step.group, size_bytes)
        return self.exchange_s(step)

    def exchange_s(self, step: CommStep, rings: float = 1.0) -> float:
        """As the transport does it: a collective of equal pieces, else all to all with splits."""
        key = (step.id, step.group)
        if key not in self._exchanges:
            members = self.members(step)
            size = BYTES[step.dtype]
            pieces = [count * size for count in gathered_sizes(step) or scattered_sizes(step) or ()]
            plans = {ExchangePlan.of(one).shortcut for one in members.values()}
            kind = SHORTCUTS.get(plans.pop()) if len(plans) == 1 else None
            if step.form is not GatherForm.ALL_TO_ALL:
                seconds = self.cost.unequal_forms_s(step.kind, step.group, pieces, rings)[step.form]
            elif kind is not None:
                piece = max(sent_volumes(step).values(), default=0) * size
                seconds = self.cost.ring_pass_s(step.group, piece, rings, kind)
            else:
                seconds = self.cost.exchange_s(step.group, self._volumes(members, size), CommKind.ALL_TO_ALL)
            self._exchanges[key] = seconds
        return self._exchanges[key]

    def members(self, step: CommStep) -> dict[int, CommStep]:
        """Every member's part of a step."""
        if self._members is None:
            self._members = {}
            for rank, own in self.owns.items():
                for one in (*own.comms, *own.transfers):
                    if one.kind is not CommKind.ALL_REDUCE:
                        self._members.setdefault(one.id, {})[rank] = one
        found = self._members.get(step.id, {})
        return {rank: found[rank] for rank in step.group if rank in found}

    def sent(self, step: CommStep, rank: int) -> dict[Pair, float]:
        """What one rank sends in a step."""
        return self._volumes({rank: step}, BYTES[step.dtype])

    def _volumes(self, members: Mapping[int, CommStep], size: int) -> dict[Pair, float]:
        return {
            (rank, peer): float(count * size)
            for rank, one in members.items()
            for peer, count in moved_volumes(one).items()
            if peer != rank and count
        }

    def sends(self, step: CommStep, rank: int) -> list[tuple[int, int, float]]:
        """(receiver, bytes, seconds) of a transfer's messages, beside all that its stage sends at once."""
        self._wire(step)
        return self._wires[step.id].get(rank, [])

    def senders(self, step: CommStep, rank: int) -> list[int]:
        """Ranks that send to this one in a transfer."""
        self._wire(step)
        return self._senders[step.id].get(rank, [])

    def _wire(self, step: CommStep) -> None:
        if step.id in self._wires:
            return
        volumes = self._volumes(self.members(step), BYTES[step.dtype])
        leaving = self._wires[step.id] = {}
        coming = self._senders[step.id] = {}
        for (sender, receiver), seconds in self.cost.messages_s(volumes).items():
            leaving.setdefault(sender, []).append((receiver, int(volumes[sender, receiver]), seconds))
            coming.setdefault(receiver, []).append(sender)

    def bucket_bytes(self, bucket: GradBucket | ParamBucket) -> int:
        """All elements of a bucket."""
        if id(bucket) not in self._sizes:
            size = sum([piece.length for piece in bucket.pieces]) * BYTES[bucket.dtype]
            self._sizes[id(bucket)] = (bucket, size)
        return self._sizes[id(bucket)][1]

    def bucket_s(self, bucket: GradBucket | ParamBucket, comms: list[CommStep]) -> float:
        """One bucket over its group."""
        size = self.bucket_bytes(bucket)
        rings = self._rings(bucket.group)
        if bucket.slot >= 0:
            return self.exchange_s(comms[bucket.slot], rings)
        return self.cost.gradient_s(bucket.group, size, rings)

    def _rings(self, group: Group) -> float:
        """How many rings share a NIC with a group's, on the busiest node; those of fewer bytes count less."""
        if group not in self._rings_of:
            self._rings_of[group] = self._count_rings(group)
        return self._rings_of[group]

    def _count_rings(self, group: Group) -> float:
        if self._node_rings is None:
            self._node_rings = self._all_rings()
        nodes = {self.cost.slots[rank].node for rank in group}
        if len(nodes) < 2:
            return 1.0
        shares = []
        for node in nodes:
            rings = self._node_rings[node]
            shares.append(sum([min(1.0, size / rings[group]) for size in rings.values()]))
        return max(shares)

    def _all_rings(self) -> dict[int, dict[Group, int]]:
        """Per node its groups of buckets that reach other nodes, with all their bytes."""
        sums: dict[Group, int] = {}
        for own in self.owns.values():
            buckets: tuple[GradBucket | ParamBucket, ...] = (*own.grad_buckets, *own.param_buckets)
            for bucket in buckets:
                if len(bucket.group) > 1 and bucket.group[0] == own.rank:
                    sums[bucket.group] = sums.get(bucket.group, 0) + self.bucket_bytes(bucket)
        found: dict[int, dict[Group, int]] = {}
        for group, size in sums.items():
            nodes = {self.cost.slots[rank].node for rank in group}
            for node in nodes if len(nodes) > 1 else ():
                found.setdefault(node, {})[group] = max(size, 1)
        return found
