"""The generations of a run: who was which rank of which program, and what the next one is told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .choosing import Situation, Successor
from .decide import Decision
from .messages import NOTHING_HELD, Halt, NextGeneration, RunPosition, WorldMember


@dataclass(frozen=True, slots=True)
class _Past:
    """A generation. ranks: of its program, by id of the process; one that it left idle has none.

    copies: file of those that it kept. places: world ranks by id.
    """

    program: str
    strategy: str
    ranks: Mapping[int, int]
    copies: str
    places: Mapping[int, int]

    def holding(
        self, world: Sequence[WorldMember], holders: Collection[int], stale: Collection[int]
    ) -> Situation:
        """What is left of it. holders, stale: ids of processes that have its state, or a part of it."""
        held_as = tuple(self.ranks.get(each.id) if each.id in holders else None for each in world)
        copied_as = tuple(self.places.get(each.id) if each.id in holders else None for each in world)
        return Situation(
            tuple(each.device for each in world),
            self.program,
            self.strategy,
            held_as,
            tuple(rank for rank, each in enumerate(world) if each.id in stale),
            self.copies,
            copied_as if self.copies else (),
        )


@dataclass(slots=True)
class Generations:
    """Numbers generations and remembers them. number: of the one that was ordered last."""

    address: str
    port: int
    number: int = NOTHING_HELD
    _position: RunPosition = field(default_factory=RunPosition)
    _past: dict[int, _Past] = field(default_factory=dict)

    def inherit(self, orders: Iterable[NextGeneration]) -> NextGeneration | None:
        """Go on behind these, which another launcher has given; the last of them."""
        last = None
        for order in sorted(orders, key=lambda each: each.generation):
            self._remember(order)
            self.number, self._position, last = order.generation, order.position, order
        return last

    def _remember(self, order: NextGeneration) -> None:
        ranks = {order.world[at].id: rank for rank, at in enumerate(order.members)}
        places = {each.id: rank for rank, each in enumerate(order.world)}
        self._past[order.generation] = _Past(order.program, order.strategy, ranks, order.copies, places)

    def situation(self, world: Sequence[WorldMember], decision: Decision) -> Situation:
        """What there is to choose a program for."""
        devices = tuple(each.device for each in world)
        past = self._past.get(decision.held)
        if past is None:
            return Situation(devices, held_as=(None,) * len(world))
        return past.holding(world, decision.holders, decision.stale)

    def after(self, world: Sequence[WorldMember], is_renewed: bool) -> list[Situation]:
        """Situations that one loss would bring now, where a process is lost, or renewed."""
        devices = tuple(each.device for each in world)
        now = self._past[self.number].holding(world, [each.id for each in world], ())
        if is_renewed:
            return [now.renewed(device) for device in devices]
        return [now.without(device) for device in devices if len(devices) > 1]

    def next(
        self,
        world: tuple[WorldMember, ...],
        decision: Decision,
        successor: Successor,
        halts: Sequence[Halt],
        checkpoint: str | None,
    ) -> NextGeneration:
        """Begin the next one. checkpoint: where all begin from, "" as the run began, None: they go on."""
        self.number += 1
        order = NextGeneration(
            self.number,
            world,
            self.address,
            self.port,
            successor.strategy,
            successor.program,
            successor.members,
            successor.plan if checkpoint is None else "",
            decision.held,
            decision.steps,
            self._standing(halts, decision),
            checkpoint or "",
            successor.restored if checkpoint is None else "",
            successor.copies,
        )
        self._remember(order)
        return order

    def _standing(self, halts: Sequence[Halt], decision: Decision) -> RunPosition:
        """Where the run stands: those know who took the last step; else what was known last."""
        best = [each for each in halts if each.held.generation >= 0 and each.held.steps == decision.steps]
        if best:
            self._position = best[0].position
        return self._position
