"""What a plan costs: bytes per rank, messages and seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...base.comm_plan import CommKind, CostModel, GatherForm, Traffic
from .moves import ExchangeMove, StepMove
from .patterns import collectives_of
from .tally import Busiest, Tally


@dataclass(frozen=True, slots=True)
class FlatCost:
    """Every rank sends and receives at one rate, to and from any other.

    A step takes `latency`, and `message` for each peer of the rank that has most of them, and the bytes
    that the busiest rank sends or receives, at `bandwidth` bytes a second. An all-reduce moves what a ring
    moves, and has as many messages as halving and doubling.
    """

    latency: float = 20e-6
    message: float = 2e-6
    bandwidth: float = 25e9

    def comm_s(self, traffic: Sequence[Traffic]) -> float:
        """See CostModel."""
        tally = Tally()
        for each in traffic:
            for (sender, receiver), size in each.volumes.items():
                tally.add(1 << sender, 1 << receiver, size)
        reduced = [
            self._all_reduce(len(each.ranks), each.size)
            for each in traffic
            if each.kind is CommKind.ALL_REDUCE
        ]
        return max([self.step(tally.busiest(), 1), *reduced])

    def step(self, busiest: Busiest, element: int) -> float:
        """One exchange of elements of so many bytes."""
        elements = max(busiest.sent, busiest.received)
        if not elements:
            return 0.0
        return self.latency + self.message * busiest.peers + elements * element / self.bandwidth

    def least(self, steps: int, size: int) -> float:
        """No exchange in so many steps, of which the busiest rank moves `size` bytes, takes less."""
        return steps * (self.latency + self.message) + size / self.bandwidth

    def _all_reduce(self, members: int, size: int) -> float:
        messages = (members - 1).bit_length()
        return self.latency + self.message * messages + ring_bytes(members, size) / self.bandwidth

    def unequal_forms_s(
        self, kind: CommKind, group: Sequence[int], sizes: Sequence[float]
    ) -> Mapping[GatherForm, float]:
        """See CostModel."""
        return {}

    def near(self, rank: int) -> frozenset[int] | None:
        """See CostModel."""
        return None


def ring_bytes(members: int, size: int) -> int:
    """Bytes that each member of an all-reduce sends, and receives."""
    return -(-2 * (members - 1) * size // members)


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes that one rank sends and receives."""

    sent: int = 0
    received: int = 0

    @property
    def busiest(self) -> int:
        """The greater of both directions, which can be used at once."""
        return max(self.sent, self.received)

    def __add__(self, other: Load) -> Load:
        return Load(self.sent + other.sent, self.received + other.received)


def volumes_of(move: ExchangeMove, element: int) -> dict[tuple[int, int], int]:
    """Bytes per (sender, receiver); what stays on a rank is no traffic. element: bytes of one element."""
    found: dict[tuple[int, int], int] = {}
    for sender, receiver, _, size in move.transfers:
        if sender != receiver:
            pair = (sender, receiver)
            found[pair] = found.get(pair, 0) + size * element
    return found


def seconds_of(moves: Iterable[StepMove], cost: CostModel, element: int) -> float:
    """Seconds of moves that are done one after the other."""
    return sum(cost.comm_s(list(_traffic(move, element))) for move in moves)


def _traffic(move: StepMove, element: int) -> Iterator[Traffic]:
    if not isinstance(move, ExchangeMove):
        for group, size in zip(move.groups, move.sizes, strict=True):
            yield Traffic(CommKind.ALL_REDUCE, group, {}, size * element)
        return
    volumes = volumes_of(move, element)
    collectives = collectives_of(move)
    place = {rank: index for index, (_, ranks) in enumerate(collectives) for rank in ranks}
    apart: list[dict[tuple[int, int], int]] = [{} for _ in collectives]
    for pair, size in volumes.items():
        apart[place[pair[0]]][pair] = size
    for (kind, ranks), own in zip(collectives, apart, strict=True):
        if own:
            yield Traffic(kind, ranks, own)


def loads_of(moves: Iterable[StepMove], element: int) -> dict[int, Load]:
    """Bytes per rank of all moves; ranks that neither send nor receive are left out."""
    found: dict[int, Load] = {}
    for move in moves:
        for rank, load in _loads(move, element):
            found[rank] = found.get(rank, Load()) + load
    return found


def _loads(move: StepMove, element: int) -> Iterable[tuple[int, Load]]:
    if isinstance(move, ExchangeMove):
        for (sender, receiver), size in volumes_of(move, element).items():
            yield sender, Load(sent=size)
            yield receiver, Load(received=size)
    else:
        for group, size in zip(move.groups, move.sizes, strict=True):
            moved = ring_bytes(len(group), size * element)
            yield from ((rank, Load(moved, moved)) for rank in group)
