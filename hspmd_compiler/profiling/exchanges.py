"""Messages and collectives between ranks, timed as our transport does them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time, sleep
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..base.comm_plan import Box, Combine, CommKind, CommStep, Piece
from ..program.requests import AllReduce, Exchange, Recv, Request, Send
from ..runtime.torch_transport import TorchDist

DTYPE, ELEMENT_BYTES = "float32", 4
COLLECTIVES = (
    CommKind.ALL_REDUCE,
    CommKind.ALL_GATHER,
    CommKind.REDUCE_SCATTER,
    CommKind.ALL_TO_ALL,
)
SMALL_BYTES, SMALL_REPEATS = 1 << 18, 4
"""Up to this size a message is sent so many times as often: it is over soon, and disturbed easily."""
BUSY_S, WORK_WIDTH = 1.5e-3, 128
"""What ranks compute before a collective: at least so long, in products of such matrices."""
LATE_S = 0.1
"""How long a receiver lets its sender wait, to see whether it does."""


class TimedMeeting(NamedTuple):
    """A collective's seconds, and for how many of them a member's processor works on it, in the mean."""

    seconds: float
    busy_s: float = 0.0


class _Taken(NamedTuple):
    """One member's part: when it came and went, and the work of its process in between."""

    start_s: float
    end_s: float
    busy_s: float


def transfer_step(number: int, source: int, target: int, elements: int, padded: bool = False) -> CommStep:
    """A message. padded: cut out of a wider tensor, and put into one, so that it is packed and unpacked."""
    width = 2 if padded else 1
    box: Box = ((0, elements), (0, 1))
    view = (elements, width)
    return CommStep(
        number,
        CommKind.SEND_RECV,
        (min(source, target), max(source, target)),
        src_view=view,
        dst_view=view,
        dst_shape=view,
        sends=(Piece(target, (box,)),),
        recvs=(Piece(source, (box,)),),
        dtype=DTYPE,
    )


def collective_step(kind: CommKind, number: int, group: Sequence[int], elements: int) -> CommStep:
    """A collective of which each member gives or gets `elements` in all, all pieces equal."""
    group = tuple(group)
    if kind is CommKind.ALL_REDUCE:
        return CommStep(number, kind, group, Combine.SUM, dtype=DTYPE)
    part = elements // len(group)
    whole: Box = ((0, part),)
    parts = [Piece(peer, (((at * part, (at + 1) * part),),)) for at, peer in enumerate(group)]
    all_of_it = [Piece(peer, (whole,)) for peer in group]
    gathers, scatters = kind is CommKind.ALL_GATHER, kind is CommKind.REDUCE_SCATTER
    src, dst = (part if gathers else part * len(group)), (part if scatters else part * len(group))
    return CommStep(
        number,
        kind,
        group,
        Combine.SUM if scatters else Combine.COPY,
        (src,),
        (dst,),
        (dst,),
        tuple(all_of_it if gathers else parts),
        tuple(all_of_it if scatters else parts),
        dtype=DTYPE,
    )


@dataclass(slots=True)
class Meetings:
    """One rank's side of what is timed between ranks. All ranks call the same methods in the same order.

    Of a message's repetitions the quickest counts: whatever else a machine does only adds to it. one_host:
    whether all ranks read one clock.
    """

    transport: TorchDist
    repeats: int
    one_host: bool = True
    _tag: int = 0

    def together(self) -> None:
        """Begin at the same time."""
        self.transport.sum_over_ranks(torch.zeros((), device=self.transport.device))
        self._now()

    def one_way_s(self, pairs: Sequence[tuple[int, int]], size_bytes: int, padded: bool = False) -> float:
        """Seconds of a message between pairs of ranks that send it to and fro, all at once; 0.0 elsewhere."""

        def there_and_back(source: int, target: int, tensor: Tensor) -> None:
            for one, two in ((source, target), (target, source)):
                step = transfer_step(self._tag, one, two, tensor.shape[0], padded)
                self._move(step, one, tensor)

        return self._of_pairs(pairs, size_bytes, padded, there_and_back) / 2

    def both_ways_s(self, pair: tuple[int, int], size_bytes: int) -> float:
        """Seconds of two messages that two ranks send each other at once."""

        def both(source: int, target: int, tensor: Tensor) -> None:
            other = target if self.transport.rank == source else source
            rank = self.transport.rank
            self._answer(Send(transfer_step(self._tag, rank, other, tensor.shape[0]), tensor, self._tag))
            self._answer(Recv(transfer_step(self._tag, other, rank, tensor.shape[0]), self._tag))

        return self._of_pairs([pair], size_bytes, False, both)

    def late_receiver(self, pair: tuple[int, int], size_bytes: int) -> tuple[float, float]:
        """Seconds that the sender's call takes, and its wait for the end, where the receiver comes late.

        0.0 on other ranks: the receiver's own time is that of the message.
        """
        source, target = pair
        self.together()
        if self.transport.rank == target:
            sleep(LATE_S)
        if self.transport.rank not in pair:
            return 0.0, 0.0
        tensor = self._tensor(size_bytes, False)
        start = self._now()
        self._move(transfer_step(self._tag, source, target, tensor.shape[0]), source, tensor)
        posted = self._now()
        self.transport.finish_sends()
        return (posted - start, self._now() - posted) if self.transport.rank == source else (0.0, 0.0)

    def collective_s(
        self, kind: CommKind, number: int, group: Sequence[int], size_bytes: int
    ) -> TimedMeeting:
        """A collective, from when its last member comes; 0.0 without members. number: of the step.

        Members come from computing, one after the other, with a tensor that is new, as in a training: ranks
        that wait have to be woken, which takes longer than the collective of idle ones. So the mean counts.
        """
        elements = max(len(group), size_bytes // ELEMENT_BYTES)
        step = collective_step(kind, number, group, elements)
        mine = self.transport.rank in group and len(group) > 1
        elements = elements if step.src_view is None else step.src_view[0]
        given = torch.zeros(elements if mine else 1, device=self.transport.device)
        taken = []
        for turn in range(self._often(size_bytes) + 1):
            tensor = given.clone()
            self.together()
            if mine:
                self._work(BUSY_S * (1 + (self.transport.rank + turn) % 3))
            start, worked = self._now(), process_time()
            if mine and kind is CommKind.ALL_REDUCE:
                self._answer(AllReduce(step, tensor, may_overwrite=True))
            elif mine:
                self._answer(Exchange(step, tensor))
            taken.append(_Taken(start, self._now(), process_time() - worked))
        return self._from_the_last(taken[1:] if mine else [])

    def gradient_s(self, number: int, group: Sequence[int], size_bytes: int) -> TimedMeeting:
        """The sum of a gradient bucket: as of an all-reduce, of what was packed just before."""
        elements = max(len(group), size_bytes // ELEMENT_BYTES)
        step = collective_step(CommKind.ALL_REDUCE, number, group, elements)
        mine = self.transport.rank in group and len(group) > 1
        half = torch.zeros(elements // 2 if mine else 1, device=self.transport.device)
        taken = []
        for turn in range(self._often(size_bytes) + 1):
            self.together()
            if mine:
                self._work(BUSY_S * (1 + (self.transport.rank + turn) % 3))
            bucket = torch.cat([half, half])
            start, worked = self._now(), process_time()
            if mine:
                self._answer(AllReduce(step, bucket, may_overwrite=True))
            taken.append(_Taken(start, self._now(), process_time() - worked))
        return self._from_the_last(taken[1:] if mine else [])

    def _work(self, seconds: float) -> None:
        """Products, for so long."""
        end = perf_counter() + seconds
        one = torch.ones(WORK_WIDTH, WORK_WIDTH, device=self.transport.device)
        while perf_counter() < end:
            one = (one @ one).clamp_(-1.0, 1.0)

    def _from_the_last(self, taken: Sequence[_Taken]) -> TimedMeeting:
        """Mean seconds between the last member's coming and the last one's going.

        Ranks of several machines have no common clock: each is told how long the shortest took, which is that
        of the member that came last.
        """
        held = cast(list[list[_Taken]], self.transport.gather_objects(list(taken)))
        members = [each for each in held if each]
        if not members:
            return TimedMeeting(0.0)
        turns = list(zip(*members, strict=True))
        if self.one_host:
            spans = [max(one.end_s for one in turn) - max(one.start_s for one in turn) for turn in turns]
        else:
            spans = [min(one.end_s - one.start_s for one in turn) for turn in turns]
        busy = [one.busy_s for turn in turns for one in turn]
        return TimedMeeting(sum(spans) / len(spans), sum(busy) / len(busy))

    def _of_pairs(
        self,
        pairs: Sequence[tuple[int, int]],
        size_bytes: int,
        padded: bool,
        call: Callable[[int, int, Tensor], None],
    ) -> float:
        mine = next((pair for pair in pairs if self.transport.rank in pair), None)
        tensor = self._tensor(size_bytes if mine else ELEMENT_BYTES, padded)
        taken = []
        self.together()
        for _ in range(self._often(size_bytes) + 1):
            tag = self._next_tag()
            start = self._now()
            if mine is not None:
                call(*mine, tensor)
                self.transport.finish_sends()
            self._tag = tag
            taken.append(self._now() - start)
        return min(taken[1:]) if mine is not None else 0.0

    def _often(self, size_bytes: int) -> int:
        return self.repeats * (SMALL_REPEATS if size_bytes <= SMALL_BYTES else 1)

    def _move(self, step: CommStep, source: int, tensor: Tensor) -> None:
        if self.transport.rank == source:
            self._answer(Send(step, tensor, self._tag))
        else:
            self._answer(Recv(step, self._tag))

    def _answer(self, request: Request[Tensor]) -> None:
        self.transport.answer(request)

    def _next_tag(self) -> int:
        self._tag += 1
        return self._tag

    def _tensor(self, size_bytes: int, padded: bool) -> Tensor:
        elements = max(1, size_bytes // ELEMENT_BYTES)
        return torch.zeros(elements, 2 if padded else 1, device=self.transport.device)

    def _now(self) -> float:
        if self.transport.device.type != "cpu":
            torch.cuda.synchronize(self.transport.device)
        return perf_counter()
