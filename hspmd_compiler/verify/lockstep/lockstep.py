"""All ranks in one process and one thread: each runs until it must wait, meetings are checked."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from ...base.comm_plan import Combine, CommKind, CommStep, GradBucket
from ...errors import HspmdError, VerifyError, first_line
from ...program.program import Op
from ...program.requests import (
    AllReduce,
    Exchange,
    ExchangeStart,
    GradReduce,
    LossReduce,
    Recv,
    ReduceStart,
    ReduceWait,
    Send,
)
from .blocked import OPTIMIZER_CHANNEL, Channel, RankRun, V, channel_of
from .mail import Mail
from .matching import OURS, BoxVolumes, check_alike, check_exchange, check_type, volumes_of
from .report import GRAD_REDUCE, LOSS_REDUCE, SEND_RECV, Event
from .started import StartedRequests

SHOWN_RANKS = 12
"""Blocked ranks that an error lists."""
OF_A_PROGRAM = (HspmdError, RuntimeError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What running a program raises that can't be run: it is data, and may hold anything."""
TOLD = 1000
"""Requests between two signs of progress."""

NOTED = (AllReduce, Exchange, ExchangeStart)
"""Requests whose step says what it is for."""
Update = Callable[[], None]
"""Called once all ranks have reached their OPTIMIZER instruction."""


class Lockstep(Generic[V]):
    """One step of all ranks. `run` returns what was matched, or raises at the first misfit."""

    def __init__(
        self,
        runs: Sequence[RankRun[V]],
        update: Update | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._runs = {run.rank: run for run in runs}
        self._update = update
        self._progress = progress
        self._world: Channel = tuple(self._runs)
        self._ready: deque[tuple[RankRun[V], V | None]] = deque((run, None) for run in runs)
        self._waiting: dict[Channel, list[RankRun[V]]] = {}
        self._mail: Mail[V] = Mail()
        self._volumes: dict[int, tuple[BoxVolumes, BoxVolumes]] = {}
        self._matched: dict[tuple[int, ...], int] = {}
        self._looked_into: list[CommStep] = []  # known by identity: none of them may go
        self._events: list[Event] = []
        self._sums: StartedRequests[V] = StartedRequests("bucket", "sums of gradients")
        self._exchanges: StartedRequests[V] = StartedRequests("step", "exchanges")

    def run(self) -> tuple[Event, ...]:
        """Step all ranks to their end."""
        for count in itertools.count(1):
            if not self._ready:
                break
            run, answer = self._ready.popleft()
            run.request = None
            self._advance(run, answer)
            if self._progress is not None and count % TOLD == 0:
                self._progress(TOLD)
        self._check_end()
        return tuple(self._events)

    def _advance(self, run: RankRun[V], answer: V | None) -> None:
        try:
            run.request = run.steps.send(answer)
        except StopIteration as end:
            run.loss, run.finished = end.value, True
            return
        except OF_A_PROGRAM as error:
            raise failed(run, error) from error
        del answer
        if isinstance(run.request, Send):
            self._post(run, run.request)
        elif isinstance(run.request, Recv):
            self._try_receive(run, run.request)
        elif isinstance(run.request, ReduceWait):
            self._ready.append((run, self._sums.take(run, run.request.bucket.id)))
        elif isinstance(run.request, ExchangeStart) and not meets_at_start(run.request.step):
            self._ready.append((run, run.request.value))
        elif isinstance(run.request, Exchange) and self._exchanges.has(run, run.request.step.id):
            self._ready.append((run, self._exchanges.take(run, run.request.step.id)))
        else:
            self._meet(run)

    def _meet(self, run: RankRun[V]) -> None:
        """Wait on the group; go on together once its last member has come."""
        assert run.request is not None, "only a waiting rank meets others"
        channel = channel_of(run.request, self._world)
        assert channel is not None, "transfers do not meet"
        members = self._world if channel == OPTIMIZER_CHANNEL else channel
        if run.rank not in members:
            raise VerifyError(
                f"rank {run.rank} joins a collective of other ranks",
                details=[("tensor", run.tensor()), (f"rank {run.rank}", run.doing())],
                rule="a rank takes part in collectives of its own groups only",
                fix=OURS,
            )
        waiting = self._waiting.setdefault(channel, [])
        waiting.append(run)
        if len(waiting) > 1:
            check_alike(waiting[0], run)
        if len(waiting) == len(members):
            del self._waiting[channel]
            self._resolve(sorted(waiting, key=lambda member: member.rank))

    def _resolve(self, members: list[RankRun[V]]) -> None:
        request = members[0].request
        if isinstance(request, (Exchange, ExchangeStart)):
            self._exchange(members, request.step)
        elif isinstance(request, AllReduce):
            self._reduce(members, request.step.kind.value, request.step.id, request.step.combine)
        elif isinstance(request, GradReduce):
            self._reduce(members, GRAD_REDUCE, request.bucket.id, Combine.SUM)
        elif isinstance(request, ReduceStart):
            self._start(members, request.bucket)
        elif isinstance(request, LossReduce):
            self._reduce(members, LOSS_REDUCE, -1, Combine.SUM)
        else:
            if self._update is not None:
                self._update()
            self._ready.extend((member, None) for member in members)

    def _reduce(self, members: list[RankRun[V]], kind: str, step: int, combine: Combine) -> None:
        values = [reduced(member) for member in members]
        self._note(members, kind, step, sum(size_of(value) for value in values))
        total = members[0].arrays.reduce(values, combine)
        self._ready.extend((member, member.arrays.own(total, overwritten(member))) for member in members)

    def _start(self, members: list[RankRun[V]], bucket: GradBucket) -> None:
        """All have started it. Here a start waits for its partners: programs that pass need no luck."""
        values = [reduced(member) for member in members]
        self._note(members, GRAD_REDUCE, bucket.id, sum(size_of(value) for value in values))
        total = members[0].arrays.reduce(values, Combine.SUM)
        for member in members:
            self._sums.put(member, bucket.id, member.arrays.own(total, overwritten(member)))
            self._ready.append((member, None))

    def _exchange(self, members: list[RankRun[V]], first: CommStep) -> None:
        parts = {member.rank: self._cut(member) for member in members}
        moved = self._checked_exchange(members, parts)
        self._note(members, first.kind.value, first.id, moved)
        for member in members:
            step = self._step_of(member)
            arrived = {rank: cut[member.rank] for rank, cut in parts.items() if member.rank in cut}
            pasted = None if step.dst_view is None else member.arrays.paste(step, arrived)
            if isinstance(member.request, ExchangeStart):
                self._exchanges.put(member, step.id, pasted)
                pasted = member.request.value
            self._ready.append((member, pasted))

    def _checked_exchange(self, members: list[RankRun[V]], parts: dict[int, Mapping[int, V]]) -> int:
        """Bytes that members hand over; the steps that meet are looked into when they first do."""
        key = tuple(id(self._step_of(member)) for member in members)
        if key not in self._matched:
            check_exchange(members, {member.rank: self._volumes_of(member) for member in members})
            self._matched[key] = sum(
                size_of(part)
                for sender, by_peer in parts.items()
                for peer, part in by_peer.items()
                if peer != sender
            )
        return self._matched[key]

    def _cut(self, run: RankRun[V]) -> Mapping[int, V]:
        request = run.request
        assert isinstance(request, (Exchange, ExchangeStart)), "members are alike"
        if request.step.src_view is None:
            return {}
        if request.value is None:
            raise VerifyError(f"rank {run.rank} has no value for {run.doing()}", fix=OURS)
        check_type(run, request.value, request.step.dtype)
        return run.arrays.cut(request.step, request.value)

    def _post(self, run: RankRun[V], request: Send[V]) -> None:
        for receiver in self._mail.post(run, request, self._volumes_of(run)[0]):
            assert isinstance(receiver.request, Recv), "only receivers wait for mail"
            self._try_receive(receiver, receiver.request)
        self._ready.append((run, None))

    def _try_receive(self, run: RankRun[V], request: Recv) -> None:
        messages = self._mail.collect(run, request, self._volumes_of(run)[1])
        if messages is None:
            return
        for sender, message in messages.items():
            moved = size_of(message.value) if sender != run.rank else 0
            ranks, step = (sender, run.rank), request.step
            self._events.append(Event(SEND_RECV, ranks, moved, Op.RECV.value, step.id, "", step.note))
        arrived = {sender: message.value for sender, message in messages.items()}
        self._ready.append((run, run.arrays.paste(request.step, arrived)))

    def _volumes_of(self, run: RankRun[V]) -> tuple[BoxVolumes, BoxVolumes]:
        step = self._step_of(run)
        if id(step) not in self._volumes:
            self._volumes[id(step)] = volumes_of(step)
            self._looked_into.append(step)
        return self._volumes[id(step)]

    def _step_of(self, run: RankRun[V]) -> CommStep:
        """The step of boxes that a rank is at."""
        assert isinstance(run.request, (Exchange, ExchangeStart, Send, Recv)), "only boxes have volumes"
        return run.request.step

    def _note(self, members: list[RankRun[V]], kind: str, step: int, moved: int) -> None:
        first = members[0]
        op = "" if first.instruction is None else first.instruction.op.value
        ranks = tuple(member.rank for member in members)
        note = first.request.step.note if isinstance(first.request, NOTED) else ""
        self._events.append(Event(kind, ranks, moved, op, step, first.segment, note))

    def _check_end(self) -> None:
        blocked = [run for run in self._runs.values() if not run.finished]
        unread = self._mail.unread()
        if blocked:
            raise self._deadlock(blocked, unread)
        self._sums.check_end()
        self._exchanges.check_end()
        if unread:
            raise VerifyError(
                f"{len(unread)} messages are sent and never received",
                details=unread[:SHOWN_RANKS],
                rule="every send has a receive with the same tag",
                fix=OURS,
            )

    def _deadlock(self, blocked: list[RankRun[V]], unread: list[tuple[str, str]]) -> VerifyError:
        """Both sides of what never comes, or the circle of ranks that wait for each other, come first."""
        first = self._never_sent(blocked) or self._circle(blocked)
        rest = [run for run in blocked if run not in first]
        shown = [*first, *rest[: max(0, SHOWN_RANKS - len(first))]]
        left = len(blocked) - sum(not run.finished for run in shown)
        return VerifyError(
            f"deadlock: {len(blocked)} of {len(self._runs)} ranks wait for each other",
            details=[
                ("tensor", first[0].tensor()),
                *((f"rank {run.rank}", f"{run.doing()}{self._lacking(run)}") for run in shown),
                *([("others", f"{left} more ranks wait")] if left else []),
                *((f"unread {name}", text) for name, text in unread[:SHOWN_RANKS]),
            ],
            rule="every rank reaches the end of its program",
            fix=OURS,
        )

    def _never_sent(self, blocked: list[RankRun[V]]) -> list[RankRun[V]]:
        """(receiver, sender) of a message that its sender will not send; nothing if all may come."""
        for run in blocked:
            request = run.request
            for peer in self._mail.lacking(run) if isinstance(request, Recv) else ():
                sender = self._runs.get(peer)
                ahead = [] if sender is None else sender.plan.program.instructions[sender.state.position :]
                tags = {item.tag for item in ahead if item.op is Op.SEND}
                if isinstance(request, Recv) and request.tag not in tags:
                    return [run] if sender is None else [run, sender]
        return []

    def _circle(self, blocked: list[RankRun[V]]) -> list[RankRun[V]]:
        """Ranks of which each waits for the next, up to one that is there already or has finished."""
        chain = [blocked[0]]
        while not chain[-1].finished:
            missing = self._missing(chain[-1])
            following = self._runs.get(missing[0]) if missing else None
            if following is None:
                break
            if following in chain:
                return chain[chain.index(following) :]
            chain.append(following)
        return chain

    def _missing(self, run: RankRun[V]) -> list[int]:
        """Whom a blocked rank waits for."""
        if run.request is None:
            return []
        channel = channel_of(run.request, self._world)
        if channel is None:
            return self._mail.lacking(run)
        here = {other.rank for other in self._waiting.get(channel, [])}
        members = self._world if channel == OPTIMIZER_CHANNEL else channel
        return [int(rank) for rank in members if rank not in here]

    def _lacking(self, run: RankRun[V]) -> str:
        missing = self._missing(run)
        return f", waits for rank {', '.join(map(str, missing))}" if missing else ""


def meets_at_start(step: CommStep) -> bool:
    """Whether the members of a started exchange are to start it in one order, as a collective is. Messages
    find each other by their tags."""
    return step.kind is not CommKind.SEND_RECV


def failed(run: RankRun[V], error: Exception) -> VerifyError:
    """An error inside a rank's program, with the place."""
    at = f"rank {run.rank} {run.where()}"
    if isinstance(error, HspmdError):
        return VerifyError(
            error.what, at=(at, *error.at), details=error.details, rule=error.rule, fix=error.fix or OURS
        )
    kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
    return VerifyError(kind + first_line(error), at=at, fix=OURS)


def reduced(run: RankRun[V]) -> V:
    """What a rank puts into a reduction."""
    assert isinstance(run.request, (AllReduce, GradReduce, ReduceStart, LossReduce)), "members are alike"
    return run.request.value


def overwritten(run: RankRun[V]) -> V | None:
    """The memory that a real driver would reduce in place, so that a wrong permission shows."""
    request = run.request
    if isinstance(request, AllReduce):
        return request.value if request.may_overwrite else None
    return request.value if isinstance(request, (GradReduce, ReduceStart)) else None


def size_of(value: V) -> int:
    """Bytes."""
    return value.numel() * value.dtype.itemsize
