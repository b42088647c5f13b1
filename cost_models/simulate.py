"""Event simulation of the instruction lists that ranks execute: when each instruction begins and ends."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence

from ..base.timeline import Span, SpanKind, Timeline
from ..errors import EstimateError
from .actions import (
    AwaitSum,
    Compute,
    FinishSends,
    Meet,
    PostRecv,
    RecvFrom,
    SendTo,
    StartSum,
    TimedAction,
)
from .deadlock import stuck
from .messages import TimedChannel, TimedMessage
from .semantics import Hosts, SendSemantics
from .shared_host import SharedHost, unslowed
from .sums_beside import SumBeside, SumsBeside

_Record = tuple[int, float, float, SpanKind, str, int, int, tuple[int, ...], int]


def simulate(
    actions: Mapping[int, Sequence[TimedAction]], semantics: SendSemantics, hosts: Hosts | None = None
) -> Timeline:
    """The timeline of one step; EstimateError where ranks wait for each other for ever."""
    records: list[_Record] = []
    simulation = _Simulation(actions, semantics, hosts or Hosts(), records)
    simulation.run()
    records.sort(key=lambda record: (record[0], record[1], record[2]))
    beside = sorted(simulation.beside, key=lambda record: (record[0], record[1], record[2]))
    spans, sums = (tuple(Span(*record) for record in some) for some in (records, beside))
    return Timeline("estimated", spans, beside=sums)


def end_times(
    actions: Mapping[int, Sequence[TimedAction]], semantics: SendSemantics, hosts: Hosts | None = None
) -> dict[int, float]:
    """When each rank is done: the simulation without its spans, at a third of the time."""
    return _Simulation(actions, semantics, hosts or Hosts(), None).run()


class _Meeting:
    """A collective under way: its members, from when to when at least, and how many still work on it."""

    __slots__ = ("begin", "end", "members", "working")

    def __init__(self, members: list[tuple[int, Meet]], begin: float) -> None:
        self.members, self.begin = members, begin
        self.end = begin + max(part.seconds for _, part in members)
        self.working = 0


class _Job:
    """A member's part of a sum on its processor."""

    __slots__ = ("rank", "sum")

    def __init__(self, rank: int, of: SumBeside) -> None:
        self.rank, self.sum = rank, of


class _Simulation:
    """Ranks run in any order as far as they can: times follow from the instructions, not from that order.

    Only what works on a shared host goes by the clock, through `_events`; all that an event brings
    about is later than it, so nothing comes too late for a host.
    """

    def __init__(
        self,
        actions: Mapping[int, Sequence[TimedAction]],
        semantics: SendSemantics,
        hosts: Hosts,
        records: list[_Record] | None,
    ) -> None:
        self.actions = actions
        self.semantics = semantics
        self.records = records
        self.at = dict.fromkeys(actions, 0)
        self.clock = dict.fromkeys(actions, 0.0)
        self.ready = list(actions)
        self.channels: dict[tuple[int, int, Hashable], TimedChannel] = {}
        self.lines: dict[tuple[int, int], float] = {}
        self.unfinished: dict[int, list[TimedMessage]] = {rank: [] for rank in actions}
        self.finishing: set[int] = set()
        self.meetings: dict[Hashable, list[tuple[int, Meet]]] = {}
        self.joined: dict[int, _Meeting] = {}
        self.sums = SumsBeside()
        self.beside: list[_Record] = []
        host_of = hosts.shared()
        shared = {
            host: SharedHost(hosts.cores[host], hosts.slowed.get(host, unslowed))
            for host in set(host_of.values())
        }
        self.host_of = {rank: shared[host] for rank, host in host_of.items()}
        self._events: list[tuple[float, int, int | SharedHost | _Job, int]] = []
        self._count = 0

    def run(self) -> dict[int, float]:
        """Every rank to its end."""
        while True:
            while self.ready:
                self._advance(self.ready.pop())
            if not self._events:
                break
            self._event()
        left = {rank: self.actions[rank][at] for rank, at in self.at.items() if at < len(self.actions[rank])}
        if left:
            raise stuck(left, {key: [rank for rank, _ in came] for key, came in self.meetings.items()})
        wrong = [rank for rank, end in self.clock.items() if not 0.0 <= end < float("inf")]
        if wrong:
            raise EstimateError(
                f"rank {wrong[0]} ends at {self.clock[wrong[0]]} seconds",
                rule="what an instruction takes is a finite number of seconds, and not below 0",
                fix="look for a bandwidth, a latency or a measured time of the cluster that is none",
            )
        return self.clock

    def _advance(self, rank: int) -> None:
        """The rank's next instructions, up to one that has to wait for others."""
        actions = self.actions[rank]
        while self.at[rank] < len(actions):
            action = actions[self.at[rank]]
            match action:
                case Compute():
                    if rank in self.host_of:
                        return self._later(self.clock[rank], rank)
                    start = self.clock[rank]
                    self._done(rank, start, start + action.seconds, action.kind, action)
                case SendTo():
                    if not self._send(rank, action):
                        return None
                case PostRecv():
                    channel = self._channel(action.peer, rank, action.tag)
                    self._post(channel, action.peer, rank)
                    self.at[rank] += 1
                case RecvFrom():
                    if not self._receive(rank, action):
                        return None
                case FinishSends():
                    if any(message.end < 0 for message in self.unfinished[rank]):
                        self.finishing.add(rank)
                        return None
                    self._finished_sends(rank, action)
                case Meet():
                    if not self._meet(rank, action):
                        return None
                case StartSum():
                    self.at[rank] += 1
                    self._begin_sums(self.sums.start(rank, self.clock[rank], action))
                case AwaitSum():
                    if not self._await_sum(rank, action):
                        return None
        return None

    def _begin_sums(self, begun: Iterable[SumBeside]) -> None:
        for found in [*begun]:
            working = [one for one, part in found.members.items() if part.busy_s and one in self.host_of]
            found.working = len(working)
            found.end = -1.0
            if not working:
                self._sum_over(found, found.begin + max(part.seconds for part in found.members.values()))
            for one in working:
                self._later(found.begin, _Job(one, found))

    def _sum_over(self, found: SumBeside, end: float) -> None:
        key = next(iter(found.members.values())).key
        begun = [*self.sums.over(key, end)]
        if self.records is not None:
            for one, part in found.members.items():
                place = (part.label, part.position, part.mb, part.group, part.size_bytes)
                self.beside.append((one, found.begin, end, part.kind, *place))
        self.ready += found.waiting
        self._begin_sums(begun)

    def _await_sum(self, rank: int, action: AwaitSum) -> bool:
        found = self.sums.of[action.key]
        if found.end < 0:
            found.waiting.append(rank)
            return False
        came = self.clock[rank]
        begin = min(max(came, found.begin), max(came, found.end))
        if begin > came:
            self._record(rank, came, begin, SpanKind.WAIT, action, 0)
        self._done(rank, begin, max(found.end, begin), action.kind, action)
        return True

    def _job_over(self, job: _Job, time: float) -> None:
        """See `_worked`."""
        found, host, part = job.sum, self.host_of[job.rank], job.sum.members[job.rank]
        here = sum(self.host_of.get(one) is host for one in found.members)
        found.came_s = max(found.came_s, time + max(0.0, part.seconds - part.busy_s * host.stretch(here)))
        found.working -= 1
        if not found.working:
            self._sum_over(found, found.came_s)

    def _done(
        self, rank: int, start: float, end: float, kind: SpanKind, action: TimedAction, size: int = 0
    ) -> None:
        """The instruction is done at `end`, and the next can begin."""
        self.clock[rank] = end
        self.at[rank] += 1
        self._record(rank, start, end, kind, action, size)

    def _record(
        self, rank: int, start: float, end: float, kind: SpanKind, action: TimedAction, size: int
    ) -> None:
        if self.records is None or isinstance(action, PostRecv | StartSum):
            return
        group: tuple[int, ...] = ()
        if isinstance(action, SendTo | RecvFrom):
            group = (action.peer,)
        elif isinstance(action, Meet | AwaitSum):
            group = action.group
        mb = -1 if isinstance(action, FinishSends) else action.mb
        self.records.append((rank, start, end, kind, action.label, action.position, mb, group, size))

    def _exchanged(self, rank: int, action: TimedAction, begin: float, end: float, size: int) -> None:
        """An exchange that begins when the other end is there; until then the rank waits."""
        kind = SpanKind.SEND if isinstance(action, SendTo) else SpanKind.RECV
        if isinstance(action, Meet):
            kind = action.kind
        came = self.clock[rank]
        begin = max(came, min(begin, end))
        if begin > came:
            self._record(rank, came, begin, SpanKind.WAIT, action, 0)
        self._done(rank, begin, max(end, begin), kind, action, size)

    def _channel(self, sender: int, receiver: int, tag: Hashable) -> TimedChannel:
        key = (sender, receiver, tag)
        found = self.channels.get(key)
        if found is None:
            found = self.channels[key] = TimedChannel()
        return found

    def _send(self, rank: int, action: SendTo) -> bool:
        channel = self._channel(rank, action.peer, action.tag)
        message = channel.at(channel.sent)
        channel.sent += 1
        message.sent, message.wire, message.size = self.clock[rank], action.wire_s, action.size_bytes
        self.unfinished[rank].append(message)
        if self.semantics.posted_ahead:
            message.posted = 0.0
        self._match(message, rank, action.peer)
        part = self.semantics.sender_waits(action.size_bytes)
        if part and message.end < 0:
            message.sender_waits = True
            return False
        self._sent(rank, action, message, part)
        return True

    def _sent(self, rank: int, action: SendTo, message: TimedMessage, part: float) -> None:
        done = message.start + part * message.wire if part else message.sent
        self._exchanged(rank, action, message.start if part else message.sent, done, message.size)

    def _post(self, channel: TimedChannel, sender: int, receiver: int) -> None:
        """The next receive of a channel is posted now; it stays with the first posting."""
        message = channel.at(channel.posted)
        channel.posted += 1
        if message.posted < 0:
            message.posted = 0.0 if self.semantics.posted_ahead else self.clock[receiver]
            self._match(message, sender, receiver)

    def _receive(self, rank: int, action: RecvFrom) -> bool:
        channel = self._channel(action.peer, rank, action.tag)
        if channel.posted == channel.received:
            self._post(channel, action.peer, rank)
        message = channel.messages[channel.received]
        if message.end < 0:
            message.receiver_waits = True
            return False
        channel.received += 1
        self._exchanged(rank, action, message.start, max(message.end, self.clock[rank]), message.size)
        return True

    def _match(self, message: TimedMessage, sender: int, receiver: int) -> None:
        """Both ends are there: the message goes when its line is free; who waited for it goes on."""
        if message.sent < 0 or message.posted < 0:
            return
        line = (sender, receiver)
        message.start = max(message.sent, message.posted, self.lines.get(line, 0.0))
        message.end = self.lines[line] = message.start + message.wire
        if message.sender_waits:
            action = self.actions[sender][self.at[sender]]
            assert isinstance(action, SendTo), "a sender waits at its send"
            self._sent(sender, action, message, self.semantics.sender_waits(message.size))
            self.ready.append(sender)
        if message.receiver_waits:
            self.ready.append(receiver)
        if sender in self.finishing:
            self.finishing.discard(sender)
            self.ready.append(sender)

    def _finished_sends(self, rank: int, action: FinishSends) -> None:
        came = self.clock[rank]
        end = max((message.end for message in self.unfinished[rank]), default=came)
        self.unfinished[rank].clear()
        self._done(rank, came, max(came, end), SpanKind.SEND, action)

    def _meet(self, rank: int, action: Meet) -> bool:
        came = self.meetings.setdefault(action.key, [])
        came.append((rank, action))
        if len(came) < len(action.group):
            return False
        del self.meetings[action.key]
        meeting = _Meeting(came, max(self.clock[one] for one, _ in came))
        working = [one for one, part in came if part.busy_s and one in self.host_of]
        if not working:
            self._met(meeting)
            self.ready += [one for one, _ in came if one != rank]
            return True
        meeting.working = len(working)
        for one in working:
            self.joined[one] = meeting
            self._later(meeting.begin, one)
        return False

    def _met(self, meeting: _Meeting) -> None:
        for one, part in meeting.members:
            self._exchanged(one, part, meeting.begin, meeting.end, part.size_bytes)

    def _worked(self, rank: int, time: float) -> None:
        """A member's processor has done its part; what its group waits for beside that comes on top.

        Where the group has its hosts for itself it takes as long as the price says.
        """
        meeting, host = self.joined.pop(rank), self.host_of[rank]
        here = sum(self.host_of.get(one) is host for one, _ in meeting.members)
        seconds, busy_s = next((part.seconds, part.busy_s) for one, part in meeting.members if one == rank)
        meeting.end = max(meeting.end, time + max(0.0, seconds - busy_s * host.stretch(here)))
        meeting.working -= 1
        if not meeting.working:
            self._met(meeting)
            self.ready += [one for one, _ in meeting.members]

    def _later(self, time: float, subject: int | SharedHost | _Job) -> None:
        """A rank has work for its shared host, or a host's next work ends."""
        self._count += 1
        version = subject.version if isinstance(subject, SharedHost) else 0
        heapq.heappush(self._events, (time, self._count, subject, version))

    def _event(self) -> None:
        time, _, subject, version = heapq.heappop(self._events)
        if isinstance(subject, SharedHost):
            if version != subject.version:
                return  # somebody came since: it ends at another time
            host = subject
            self._ended(subject.ended(time), time)
        elif isinstance(subject, _Job):
            host = self.host_of[subject.rank]
            host.came(time, subject, subject.sum.members[subject.rank].busy_s)
        else:
            host, action = self.host_of[subject], self.actions[subject][self.at[subject]]
            assert isinstance(action, Compute | Meet), "only they work on a processor"
            host.came(time, subject, action.seconds if isinstance(action, Compute) else action.busy_s)
        ends = host.next_end()
        if ends is not None:
            self._later(ends, host)

    def _ended(self, subject: object, time: float) -> None:
        """A host has done what a rank had for it, or what a sum had."""
        if isinstance(subject, _Job):
            self._job_over(subject, time)
            return
        assert isinstance(subject, int), "a host works for ranks and for sums"
        action = self.actions[subject][self.at[subject]]
        if isinstance(action, Compute):
            self._done(subject, self.clock[subject], time, action.kind, action)
            self.ready.append(subject)
        else:
            self._worked(subject, time)
