"""Starts ranks, hears who dies, and tells those that are left how to go on; it never restarts a survivor.

One generation after the other: all report what they hold, a pure function decides what is in force, a child
chooses the program, an order goes out, all arrive, they train, until one dies or all pause. No thread runs
here, so that a process may be forked at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from ...base.log import logger
from ...base.name_groups import shortened
from ...errors import RankLost
from ..start.rendezvous import LOCAL_HOST
from .agent import Tell
from .choosing import Choose, Chooser, Situation, Successor
from .decide import Decision, decide
from .forked import Process, Writer, fork
from .generations import Generations
from .keeper import Keeper
from .members import START_S, LiveRank, LiveRanks, RankProcess, Record, how_it_ended
from .messages import NOTHING_HELD, Abort, Finish, Halt, Pause, WorldMember
from .presence import Presence, PresenceSchedule
from .regroup import Regroup
from .searches import Newest, Searches
from .several.follower import Inherited
from .several.other_hosts import OtherHosts

POLL_S = 0.02
GATHER = 3
"""Times the silence, for the launchers to turn to the one that takes over."""
PAUSED, DONE = "pause", "done"
"""Causes of a halt without a loss. Such a rank keeps its groups until the next order."""

Body = Callable[[int, int, Tell], None]
"""Lives as a rank: its id, the descriptor of its orders, and how it reports."""


@dataclass(frozen=True, slots=True)
class ElasticLimits:
    """silent_s: until a process that says nothing is killed. start_s: one that has said nothing yet.

    grace_s: for all to report after an abort.
    cause_s: that a halt without a known death waits for one. unexplained: how many in a row may be so.
    """

    silent_s: float = 10.0
    start_s: float = START_S
    grace_s: float = 300.0
    cause_s: float = 0.2
    unexplained: int = 5


@dataclass
class ElasticLauncher:
    """A run of `body` on these devices, as often changed as ranks are lost and come back.

    respawns: how many processes that die are replaced at once by a new one. schedule: what devices do of
    their own accord. checkpoint: asked for the newest one, in a child, when pieces of the state are lost;
    None where none are kept. regroups: all changes so far.
    hosts: other launchers, where this one decides for several hosts.
    """

    body: Body
    choose: Choose
    devices: Sequence[int]
    on_record: Callable[[Record], None] = lambda record: None
    limits: ElasticLimits = field(default_factory=ElasticLimits)
    respawns: int = 0
    schedule: Sequence[Presence] = ()
    checkpoint: Newest | None = None
    regroups: list[Regroup] = field(default_factory=list)
    hosts: OtherHosts | None = None

    def __post_init__(self) -> None:
        self._members = LiveRanks(self.limits.silent_s, self._record, self.limits.start_s)
        self._searches = Searches(Chooser(self.choose), self._members, self._descriptors, self._poll)
        self._keeper = Keeper(LOCAL_HOST if self.hosts is None else self.hosts.address)
        self._generations = Generations(self._keeper.address, self._keeper.port)
        self._schedule = PresenceSchedule(self.schedule)
        self._started = monotonic()
        self._current = Regroup(NOTHING_HELD, self._started)
        self._lost: list[WorldMember] = []
        self._next_id = self._shown = self._unexplained = 0
        self._furthest = 0

    def run(self, inherited: Inherited | None = None) -> None:
        """Return when every rank is done; raise what ends the run. inherited: from one that is lost."""
        error: BaseException | None = None
        try:
            self._start_keeper()
            if inherited is not None:
                self._inherit(inherited)
            for device in self.devices if inherited is None else ():
                self._spawn(device)
            while not self._is_finished():
                self._regroup()
            self._members.tell(Finish())
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._end(error)

    def _inherit(self, inherited: Inherited) -> None:
        """Go on with the ranks that are left, from what they report."""
        assert self.hosts is not None, "it was another's run"
        members = [*inherited.ranks.values(), *self.hosts.gather(GATHER * self.limits.silent_s)]
        self._members.alive = {rank.member.id: rank for rank in members}
        last = self._generations.inherit([*inherited.orders, *self.hosts.orders])
        standing = inherited.standing
        self.respawns, self._shown = standing.respawns, standing.shown
        self._furthest = 0 if last is None else max(standing.shown, last.steps, 1)
        self._next_id = max([standing.next_id, *(id + 1 for id in self._members.alive)])
        self._current = Regroup(self._generations.number, monotonic())
        lost = [] if last is None else [each for each in last.world if each.id not in self._members.alive]
        self._lost += lost
        self._current.lost += lost
        self._say()
        self._abort()

    # One generation after the other

    def _is_finished(self) -> bool:
        """Whether all are done; one that has just come doesn't count."""
        own = [rank.halt for rank in self._ranks if not self._is_new(rank)]
        return bool(own) and all(halt and self._is_current(halt) and halt.cause == DONE for halt in own)

    def _regroup(self) -> None:
        """From the reports of all to the end of the next generation."""
        self._collect()
        decision = decide({rank.member.id: halt.held for rank, halt in self._halts})
        self._catch_up(decision)
        world = self._world()
        successor = self._successor(self._generations.situation(world, decision))
        if successor is not None and self._begin(world, decision, successor):
            self._prepare()
            self._stay()

    def _collect(self) -> None:
        """Until everybody alive has reported; who doesn't within the grace is killed."""
        deadline = monotonic() + self.limits.grace_s
        while late := [rank for rank in self._ranks if rank.halt is None]:
            self._poll()
            if monotonic() > deadline:
                for rank in late:
                    logger.warning("%s has not come out of its step: killed", rank.name)
                    rank.process.kill()
                deadline += self.limits.grace_s
        if not self._ranks:
            raise RankLost(
                "no rank is left", details=self._lost_devices(), fix="start again from a checkpoint"
            )
        self._current.halted_at = monotonic()

    def _begin(self, world: Sequence[WorldMember], decision: Decision, successor: Successor) -> bool:
        """Tell the next generation; whether all have arrived in it."""
        checkpoint = None
        if decision.held == NOTHING_HELD or successor.missing:
            checkpoint = self._instead(successor)
            if checkpoint is None:
                return False
        halts = [halt for _, halt in self._halts]
        order = self._generations.next(tuple(world), decision, successor, halts, checkpoint)
        self._current.begins(order.generation, successor)
        for rank in self._ranks:
            rank.halt = None
        self._members.tell(order)
        while not all(self._has_arrived(rank) for rank in self._ranks):
            if self._poll() or any(rank.halt for rank in self._ranks):
                self._abort()
                return False
        self._lost.clear()  # what they had is held by others
        self._current.arrived([rank.arrived for rank in self._ranks if rank.arrived is not None])
        return True

    def _stay(self) -> None:
        """Until the generation is over: by a death, a halt, or since all pause or are done."""
        is_pausing = False
        while True:
            if self._poll():
                self._abort()
                return
            old = [rank for rank in self._ranks if not self._is_new(rank)]
            new = [rank for rank in self._ranks if self._is_new(rank)]
            halts = [rank.halt for rank in old if rank.halt is not None]
            if any(halt.cause not in (PAUSED, DONE) for halt in halts):
                self._await_cause()
                self._abort()
                return
            if len(halts) == len(old):
                return
            if new and not is_pausing and all(rank.halt for rank in new):
                is_pausing = True
                self._change().joined += [rank.member for rank in new]
                self._members.tell(Pause(), [rank.member.id for rank in old])
            self._follow()

    def _abort(self) -> None:
        """Wake everybody who waits for one that is gone."""
        self._members.tell(Abort(self._generations.number))

    def _await_cause(self) -> None:
        """A halt is most often the first sign of a death."""
        until = monotonic() + self.limits.cause_s
        while monotonic() < until:
            if self._poll():
                return
        self._unexplained += 1
        if self._unexplained > self.limits.unexplained:
            causes = [(rank.name, halt.cause) for rank, halt in self._halts if halt.cause]
            raise RankLost(
                f"{self._unexplained} generations in a row ended without a step, and nobody died",
                details=shortened(causes),
                fix="look at the network between the ranks",
            )

    # What happens meanwhile

    @property
    def _ranks(self) -> list[LiveRank]:
        return list(self._members.alive.values())

    @property
    def _halts(self) -> list[tuple[LiveRank, Halt]]:
        return [(rank, rank.halt) for rank in self._ranks if rank.halt is not None]

    def _poll(self) -> list[LiveRank]:
        """Hear all; those that have died, replaced where that is wanted."""
        if self.hosts is not None:
            self.hosts.attend(self._members.also)
        dead = self._members.poll(POLL_S)
        if self._keeper.process is not None and self._keeper.process.is_stopped:
            self._keeper.process.kill()  # nobody meets while it is; another one is started
        for rank in dead:
            logger.warning("%s is lost: %s", rank.name, how_it_ended(rank))
            self._lost.append(rank.member)
            self._change().lost.append(rank.member)
            self._unexplained = 0
        for rank in dead:
            if self.respawns > 0 and self._has_host(rank.member.device):
                self.respawns -= 1
                self._spawn(rank.member.device)
        return dead

    def _change(self) -> Regroup:
        """The change that is under way: one that comes before the first step after another is part of it."""
        if self._current.resumed_at:
            self._current = Regroup(self._generations.number, monotonic())
        return self._current

    def _follow(self) -> None:
        """Do what the schedule says: kill whose devices are gone, start those that are back."""
        moment = self._schedule.due(self._shown, monotonic() - self._started)
        if moment is None:
            return
        here = {rank.member.device: rank for rank in self._ranks}
        for device in sorted(set(here) - moment.devices):
            here[device].process.kill()
        for device in sorted(moment.devices - set(here)):
            self._spawn(device)

    def _spawn(self, device: int) -> None:
        member = WorldMember(self._next_id, device)
        self._next_id += 1
        self._say()
        process: RankProcess | None = None if self.hosts is None else self.hosts.spawn(member)
        self._members.add(member, process or self._forked(member.id))

    def _forked(self, id: int) -> Process:
        return fork(lambda control, told: self.body(id, control, Writer(told)), self._descriptors())

    def _has_host(self, device: int) -> bool:
        return self.hosts is None or self.hosts.has(device)

    def _say(self) -> None:
        """What the launcher that takes over must know."""
        if self.hosts is not None:
            self.hosts.say(self._next_id, self.respawns, self._shown)

    def _start_keeper(self) -> None:
        if self._keeper.process is not None:
            self._members.also.pop(self._keeper.process.pidfd)
            self._keeper.process.bury()
            logger.warning("the store's process is lost; a new one is started at the same place")
        process = self._keeper.start(self._others_descriptors())
        self._members.also[process.pidfd] = self._start_keeper

    def _descriptors(self) -> list[int]:
        """What a child must not keep."""
        return [*self._others_descriptors(), *self._keeper.descriptors]

    def _others_descriptors(self) -> list[int]:
        """All but the keeper's."""
        links = [] if self.hosts is None else self.hosts.descriptors
        return [*self._members.descriptors, *self._searches.chooser.descriptors, *links]

    def _record(self, record: Record) -> None:
        """Show a record; of a step only once, whoever told of it."""
        step = record.get("step")
        if isinstance(step, int):
            if step <= self._shown:
                return
            self._shown, self._furthest, self._unexplained = step, max(step, self._furthest), 0
            self._say()
            if self._current.ordered_at and not self._current.resumed_at:
                self._current.resumed_at = monotonic()
                self.regroups.append(self._current)
                if self._current.lost or self._current.joined:
                    self.on_record({"regroup": self._current.to_json()})
        self.on_record(record)

    def _catch_up(self, decision: Decision) -> None:
        """Show the last step where the rank that tells of steps died before it did."""
        for _, halt in self._halts:
            if halt.last is not None and halt.last["step"] <= decision.steps:
                self._record(halt.last)
        if self.hosts is not None:  # the launcher that was told of steps may be lost
            self._furthest = max(self._furthest, decision.steps)

    # What comes next

    def _world(self) -> list[WorldMember]:
        return sorted((rank.member for rank in self._ranks), key=lambda each: each.device)

    def _successor(self, situation: Situation) -> Successor | None:
        """What to go on with, None where one more has died while it was searched for."""
        self._current.was_prepared = self._searches.chooser.known(situation) is not None
        return self._searches.successor(situation)

    def _prepare(self) -> None:
        """Find what follows each single loss, while training runs."""
        self._searches.prepare(self._generations.after(self._world(), self.respawns > 0))

    def _instead(self, successor: Successor) -> str | None:
        """Where a state comes from that nobody has whole: all go back to one checkpoint, or to the start.

        None where one more has died while it was searched for.
        """
        if not self._furthest:
            return ""
        checkpoint = (
            "" if self.checkpoint is None else self._searches.checkpoint(self.checkpoint, self._furthest)
        )
        if checkpoint:
            logger.warning("pieces of the state are lost: all ranks go back to %s", checkpoint)
            self._shown = 0
        elif checkpoint == "":
            raise self._nothing_left(successor)
        return checkpoint

    def _nothing_left(self, successor: Successor) -> RankLost:
        kept, fix = [], "give --checkpoint DIR --every N"
        if self.checkpoint is not None:
            kept = [("--checkpoint", f"holds no whole one of a step up to {self._furthest}")]
            fix = "a smaller --every N"
        copies = "a larger --survive F" if successor.copies else "--survive F, which keeps copies"
        return RankLost(
            "nobody is left who holds all of the state",
            details=[*shortened(list(successor.missing)), *self._lost_devices(), *kept],
            rule="a piece that only lost ranks had comes from a checkpoint",
            fix=f"{fix}; or {copies}; or a strategy that has each piece on two nodes: more than one pipeline,"
            " and no ZeRO",
        )

    def _lost_devices(self) -> list[tuple[str, str]]:
        return [(f"device {each.device}", "lost") for each in self._lost]

    def _has_arrived(self, rank: LiveRank) -> bool:
        return rank.arrived is not None and rank.arrived.generation == self._generations.number

    def _is_current(self, halt: Halt) -> bool:
        return halt.generation == self._generations.number >= 0

    @staticmethod
    def _is_new(rank: LiveRank) -> bool:
        """Whether it has been in no generation yet."""
        return rank.arrived is None

    def _end(self, error: BaseException | None) -> None:
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.process.bury()
        self._searches.end()
        self._keeper.close()
        if self.hosts is not None:
            self.hosts.over(error)
