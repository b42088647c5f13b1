"""The transport over torch.distributed: gloo between CPUs, NCCL between CUDA devices."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.constants import default_pg_timeout

from ..base.comm_plan import Combine, CommKind, CommStep
from ..errors import InternalError, RunError
from ..program import boxes
from ..program.arrays import TorchArrays
from ..program.literals import torch_dtype
from ..program.requests import (
    AllReduce,
    Exchange,
    ExchangeStart,
    GradReduce,
    LossReduce,
    Recv,
    ReduceStart,
    ReduceWait,
    Request,
    Send,
)
from .device import CUDA
from .group_exchanges import GroupExchanges
from .groups import Groups, SharedWorld
from .members import ProgramMembers
from .transport import from_wire, peer_lost_in, to_wire, wire_dtype
from .under_way.gathers import Gather
from .under_way.sums import SumsUnderWay
from .under_way.swaps import Swap, start_all
from .watching.watch import Watch

REDUCE_OPS = {Combine.SUM: dist.ReduceOp.SUM, Combine.MAX: dist.ReduceOp.MAX}

# Tags in three interleaved series, so that a message never meets a receive of another kind.
TAG_SERIES = 3
TRANSFER, EXCHANGE, ROW = range(TAG_SERIES)
NO_TRANSFER = 1 << 62
"""The number of what no program sends: it isn't over before sends are."""
SWAP_TAG = TAG_SERIES + ROW


class TorchDist:
    """Answers a rank program's requests by torch.distributed. The process group must be up.

    groups: of all programs that are to run, in world ranks. members: of the program whose requests come
    first. watch: hears of the calls of all ranks, None where there is one. world: see Groups.
    """

    def __init__(
        self,
        device: torch.device,
        groups: Sequence[tuple[int, ...]],
        timeout: timedelta,
        members: ProgramMembers | None = None,
        watch: Watch | None = None,
        world: SharedWorld | None = None,
    ) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.device = device
        self._members = members or ProgramMembers.all_of(self.world_size)
        self._watch = watch
        self._arrays = TorchArrays(str(device))
        self._forms = GroupExchanges(self.rank, device, self._arrays)
        self._pending: deque[tuple[dist.Work, Tensor, int]] = deque()
        self._sends = 0
        self._begun: dict[int, Swap] = {}
        self._gathers: dict[int, Gather] = {}
        self._posted: dict[int, Swap] = {}
        self._sums = SumsUnderWay()
        with peer_lost_in("setting up the process groups"):
            self._groups = Groups(groups, timeout, device.type != "cpu", world)

    def answer(self, request: Request[Tensor]) -> Tensor | None:
        """See Transport."""
        match request:
            case AllReduce(step, value, may_overwrite):
                return self._all_reduce(self._members.step(step), value, may_overwrite)
            case Exchange(step, source):
                return self._exchange(self._members.step(step), source)
            case ExchangeStart(step, source):
                self._begin(self._members.step(step), source)
                return source
            case Send(step, value, tag):
                self._send(self._members.step(step), value, tag)
                return None
            case Recv(step, tag, over, ahead):
                return self._recv(self._members.step(step), tag, over, ahead)
            case GradReduce(bucket, flat):
                own = flat.clone() if len(bucket.pieces) == 1 else flat  # may be a shared gradient itself
                return self._sum(own, self._members.group(bucket.group), f"gradient bucket {bucket.id}")
            case ReduceStart(bucket, flat, on_end):
                group = self._members.group(bucket.group)
                with peer_lost_in(f"gradient bucket {bucket.id} over ranks {group}"):
                    self._sums.start(bucket.id, flat, self._groups.of(group), on_end)
                return None
            case ReduceWait(bucket):
                with peer_lost_in(f"gradient bucket {bucket.id} over ranks {bucket.group}"):
                    return self._sums.wait(bucket.id)
            case LossReduce(share):
                return self.sum_over_ranks(share)
        raise InternalError(f"a transport can't answer {type(request).__name__}")

    def serve(self, members: ProgramMembers) -> None:
        """See Transport."""
        self._members = members

    def call(self, name: str, meets: bool = True) -> AbstractContextManager[None]:
        """See Transport."""
        if not self._groups.is_up:
            raise RunError(
                f"{name} is called behind the end of this engine",
                rule="an engine talks to its other ranks until it, or the process group, is taken down",
                fix="call destroy_process_group, and close of the engine, behind its last call",
            )
        return nullcontext() if self._watch is None else self._watch.call(name, meets)

    def close(self) -> None:
        """Leave the other ranks, after the last step."""
        uncaught = getattr(sys, "last_value", None)  # at the end of the interpreter
        self.tell_end("" if uncaught is None else f"{type(uncaught).__name__}: {uncaught}")
        self._pending.clear()
        self._groups.close()

    def tell_end(self, failure: str = "") -> None:
        """Tell the others that this rank makes no more calls, and why if by an error."""
        if self._watch is not None:
            self._watch.close(failure)

    def finish_sends(self) -> None:
        """See Transport."""
        with peer_lost_in("finishing sends"):
            for work, _, _ in self._pending:
                work.wait()
        self._pending.clear()
        self._begun.clear()
        self._gathers.clear()
        self._posted.clear()
        self._sends = 0

    @property
    def kept_sends(self) -> int:
        """Messages whose memory is held, since they may not have left yet."""
        return len(self._pending)

    def _let_go(self, over: int = 0) -> None:
        """Let go of messages that are known to have left, the oldest first; nothing waits.

        NCCL says so of its own accord, gloo only to who waits for it: there it is the program that knows.
        over: how many of the step's sends have been received.
        """
        with peer_lost_in("finishing sends"):
            while self._pending and (self._pending[0][2] <= over or self._pending[0][0].is_completed()):
                self._pending.popleft()[0].wait()  # over already: raises what went wrong

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """See Transport."""
        return self._sum(value.clone(), tuple(range(self.world_size)), "the sum over all ranks")

    def broadcast(self, value: Tensor, source: int) -> None:
        """See Transport."""
        with peer_lost_in(f"the broadcast from rank {source}"):
            dist.broadcast(to_wire(value), source, self._groups.world)

    def send_run(self, row: Tensor, peer: int) -> None:
        """See Transport."""
        self._start_send(row, peer, ROW)

    def recv_run(self, size: int, dtype: torch.dtype, peer: int) -> Tensor:
        """See Transport."""
        row = torch.empty(size, dtype=wire_dtype(dtype), device=self.device)
        with peer_lost_in(f"receiving from rank {peer}"):
            self._start_recv(row, peer, ROW).wait()
        return from_wire(row, dtype)

    def swap_runs(
        self, leaving: Mapping[int, Sequence[Tensor]], arriving: Mapping[int, Sequence[Tensor]]
    ) -> None:
        """See Transport."""
        with peer_lost_in(f"exchanging with ranks {sorted({*leaving, *arriving})}"):
            for work in start_all(leaving, arriving, SWAP_TAG, self._groups.world):
                work.wait()

    def gather_objects(self, value: object) -> list[object]:
        """See Transport."""
        gathered: list[object] = [None] * self.world_size
        with peer_lost_in("gathering a value of every rank"):
            dist.all_gather_object(gathered, value, self._groups.world)
        return gathered

    def _sum(self, value: Tensor, group: tuple[int, ...], what: str) -> Tensor:
        """The sum over a group; `value` may be overwritten."""
        if len(group) == 1:
            return value
        value = value.contiguous()
        with peer_lost_in(f"{what} over ranks {group}"):
            dist.all_reduce(value, group=self._groups.of(group))
        return value

    def _all_reduce(self, step: CommStep, value: Tensor, may_overwrite: bool) -> Tensor:
        if len(step.group) == 1 or not value.numel():  # as many elements on every member
            return value
        self._announced(step, value)
        own = (
            value
            if may_overwrite and value.is_contiguous()
            else value.clone(memory_format=torch.contiguous_format)
        )
        with peer_lost_in(f"{step.kind.value} {step.id} over ranks {step.group}"):
            dist.all_reduce(to_wire(own), REDUCE_OPS[step.combine], self._groups.of(step.group))
        return own

    def _begin(self, step: CommStep, source: Tensor | None) -> None:
        """Let messages, or a gather of pieces alike, be under way; other collectives begin where they end."""
        is_gather = self._forms.is_gather(step, step.id in self._members.shortcuts)
        if source is None or not (step.kind is CommKind.SEND_RECV or is_gather):
            return
        self._announced(step, source)
        with peer_lost_in(f"{step.kind.value} {step.id} over ranks {step.group}"):
            sent = self._arrays.cut(step, source)
            if is_gather:
                self._gathers[step.id] = self._forms.start_gather(step, sent, self._groups.of(step.group))
            else:
                self._begun[step.id] = self._swap(step, sent)

    def _exchange(self, step: CommStep, source: Tensor | None) -> Tensor | None:
        if step.id in self._begun:
            with peer_lost_in(f"{step.kind.value} {step.id} over ranks {step.group}"):
                begun = self._begun.pop(step.id).arrived(self.rank)
            return None if step.dst_view is None else self._arrays.paste(step, begun)
        if step.id in self._gathers:
            with peer_lost_in(f"{step.kind.value} {step.id} over ranks {step.group}"):
                return self._forms.gathered(step, self._gathers.pop(step.id).ended())
        if source is not None:
            self._announced(step, source)
        sent = {} if source is None else self._arrays.cut(step, source)
        arrived: Mapping[int, Tensor] = sent
        if len(step.group) > 1:
            with peer_lost_in(f"{step.kind.value} {step.id} over ranks {step.group}"):
                if step.kind is not CommKind.SEND_RECV:
                    group, agreed = self._groups.of(step.group), step.id in self._members.shortcuts
                    return self._forms.run(step, sent, group, agreed)
                arrived = self._swap(step, sent).arrived(self.rank)
        return None if step.dst_view is None else self._arrays.paste(step, arrived)

    def _swap(self, step: CommStep, sent: Mapping[int, Tensor]) -> Swap:
        """What goes to and comes from each peer, by one batch of sends and receives without empty ones."""
        dtype = torch_dtype(step.dtype)
        arrived = {
            peer: torch.empty(size, dtype=wire_dtype(dtype), device=self.device)
            for peer, size in boxes.received_volumes(step).items()
        }
        works = start_all(
            {peer: [to_wire(row)] for peer, row in sent.items() if peer != self.rank and row.numel()},
            {peer: [row] for peer, row in arrived.items() if peer != self.rank and row.numel()},
            step.id * TAG_SERIES + EXCHANGE,
            self._groups.world,
        )
        return Swap(works, sent, {peer: from_wire(row, dtype) for peer, row in arrived.items()})

    def _send(self, step: CommStep, value: Tensor, tag: int) -> None:
        self._announced(step, value)
        self._let_go()
        self._sends += 1
        for peer, row in self._arrays.cut(step, value).items():
            if row.numel():
                self._start_send(row, peer, tag * TAG_SERIES + TRANSFER, self._sends)

    def _recv(
        self, step: CommStep, tag: int, over: int, ahead: Sequence[tuple[CommStep, int]] = ()
    ) -> Tensor:
        self._let_go()
        own = self._posted.pop(tag, None) or self._post_receive(step, tag)
        for other, later in ahead:
            self._posted[later] = self._post_receive(self._members.step(other), later)
        with peer_lost_in(f"receiving transfer {tag} from ranks {sorted(own.received)}"):
            arrived = own.arrived(self.rank)
        self._let_go(over)
        return self._arrays.paste(step, arrived)

    def _post_receive(self, step: CommStep, tag: int) -> Swap:
        """Let the message leave as soon as its sender has it; nothing waits."""
        dtype = torch_dtype(step.dtype)
        rows = {
            peer: torch.empty(size, dtype=wire_dtype(dtype), device=self.device)
            for peer, size in boxes.received_volumes(step).items()
        }
        with peer_lost_in(f"receiving transfer {tag} from ranks {sorted(rows)}"):
            works = [
                self._start_recv(row, peer, tag * TAG_SERIES + TRANSFER)
                for peer, row in rows.items()
                if row.numel()
            ]
        return Swap(works, {}, {peer: from_wire(row, dtype) for peer, row in rows.items()})

    def _start_send(self, row: Tensor, peer: int, tag: int, number: int = NO_TRANSFER) -> None:
        row = to_wire(row)
        with peer_lost_in(f"sending to rank {peer}"):
            work = dist.isend(row, peer, self._groups.toward(self.rank, peer), tag)
        if work is not None:
            self._pending.append((work, row, number))

    def _start_recv(self, row: Tensor, peer: int, tag: int) -> dist.Work:
        work = dist.irecv(row, peer, self._groups.toward(peer, self.rank), tag)
        assert work is not None, "this rank is in the group"
        return work

    def _announced(self, step: CommStep, value: Tensor) -> None:
        """Receivers read what arrives as the announced type: another one would be numbers of no meaning."""
        if value.dtype != torch_dtype(step.dtype):
            found = str(value.dtype).removeprefix("torch.")
            raise RunError(
                f"rank {self.rank} has {found} to hand over where {step.dtype} is announced",
                details=[("step", f"{step.kind.value} {step.id} over ranks {step.group}")],
                rule="an operator gives the same element types on the device that runs it as in the trace",
                fix="compile without --precision, or report it with the model and the strategy",
            )


_opened: dict[tuple[object, ...], TorchDist] = {}


def of_process_group(world_size: int, groups: tuple[tuple[int, ...], ...], device: str) -> TorchDist:
    """The transport of the process group that is up, for a kind of device; every rank asks first of all."""
    if not dist.is_initialized() or dist.get_world_size() != world_size:
        raise RunError(
            f"this module is one of {world_size} ranks",
            rule="each rank's module runs in a process of its own",
            fix="call torch.distributed.init_process_group, or start the script with torchrun",
        )
    key = (dist.group.WORLD, world_size, groups, device)
    if key not in _opened:
        place = torch.device(device, torch.cuda.current_device()) if device == CUDA else torch.device(device)
        _opened[key] = TorchDist(place, groups, default_pg_timeout)
    return _opened[key]
