"""What a rank of an elastic run does: takes orders, works until a generation is over, says what it holds."""

from __future__ import annotations

from typing import Any, Protocol

from ..transport import PeerLost
from .agent import Agent
from .messages import NOTHING_HELD, Halt, HeldReport, NextGeneration, RunPosition


class RankWork(Protocol):
    """What is done in each generation. held, position: what the launcher decides by. last: record of the
    latest step."""

    @property
    def held(self) -> HeldReport: ...

    @property
    def position(self) -> RunPosition: ...

    @property
    def last(self) -> dict[str, Any] | None: ...

    def take(self, order: NextGeneration) -> str:
        """Enter the generation of an order and work; returns why it stopped, or raises PeerLost."""


def live(agent: Agent, work: RankWork) -> None:
    """Until the launcher says that all is done."""
    agent.report(Halt(NOTHING_HELD, work.held))
    while isinstance(order := agent.next_order(), NextGeneration):
        agent.leave()  # one that has paused keeps its groups until now: others may still be finishing
        cause = _taken(agent, work, order)
        agent.report(Halt(order.generation, work.held, cause, work.position, work.last))
    agent.leave()


def _taken(agent: Agent, work: RankWork, order: NextGeneration) -> str:
    try:
        return work.take(order)
    except PeerLost as lost:
        cause = " ".join((lost.what, *(text for _, text in lost.details)))
    except RuntimeError as error:
        if not agent.is_over(order.generation):
            raise
        cause = str(error)
    agent.leave()
    return cause
