"""The generations of a run: who was which rank of which program, and what the next one is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .choosing import Situation, Successor
from .decide import Decision
from .messages import NOTHING_HELD, Halt, NextGeneration, RunPosition, WorldMember


@dataclass(frozen=True, slots=True)
class _Past:
    """A generation. ranks: of its program, by id of the process; one that it left idle has none."""

    program: str
    strategy: str
    ranks: Mapping[int, int]


@dataclass(slots=True)
class Generations:
    """Numbers generations and remembers them. number: of the one that was ordered last."""

    address: str
    port: int
    number: int = NOTHING_HELD
    _position: RunPosition = field(default_factory=RunPosition)
    _past: dict[int, _Past] = field(default_factory=dict)

    def situation(self, world: Sequence[WorldMember], decision: Decision) -> Situation:
        """What there is to choose a program for."""
        devices = tuple(each.device for each in world)
        past = self._past.get(decision.held)
        if past is None:
            return Situation(devices, held_as=(None,) * len(world))
        held_as = [past.ranks.get(each.id) if each.id in decision.holders else None for each in world]
        stale = [rank for rank, each in enumerate(world) if each.id in decision.stale]
        return Situation(devices, past.program, past.strategy, tuple(held_as), tuple(stale))

    def after(self, world: Sequence[WorldMember], is_renewed: bool) -> list[Situation]:
        """Situations that one loss would bring now, where a process is lost, or renewed."""
        past = self._past[self.number]
        devices = tuple(each.device for each in world)
        now = Situation(
            devices, past.program, past.strategy, tuple(past.ranks.get(each.id) for each in world)
        )
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
        ranks = {world[at].id: rank for rank, at in enumerate(successor.members)}
        self._past[self.number] = _Past(successor.program, successor.strategy, ranks)
        return NextGeneration(
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
        )

    def _standing(self, halts: Sequence[Halt], decision: Decision) -> RunPosition:
        """Where the run stands: those know who took the last step; else what was known last."""
        best = [each for each in halts if each.held.generation >= 0 and each.held.steps == decision.steps]
        if best:
            self._position = best[0].position
        return self._position
