"""What ranks have started and not yet waited for: each waits in the order of its starts.

Members of a group start in one order, or their starts would not meet; so they wait in one order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic

from ...errors import VerifyError
from .blocked import RankRun, V
from .matching import OURS


@dataclass(slots=True)
class StartedRequests(Generic[V]):
    """By rank what is under way, with its result. one, several: what it is, in words."""

    one: str
    several: str
    of: dict[int, deque[tuple[RankRun[V], int, V | None]]] = field(default_factory=dict)

    def put(self, run: RankRun[V], number: int, value: V | None) -> None:
        """What a rank has started, and which is there."""
        self.of.setdefault(run.rank, deque()).append((run, number, value))

    def has(self, run: RankRun[V], number: int) -> bool:
        """Whether a rank has started it, first or not."""
        return any(other == number for _, other, _ in self.of.get(run.rank, ()))

    def take(self, run: RankRun[V], number: int) -> V | None:
        """What a rank waits for, the first that it has started."""
        held = self.of.get(run.rank)
        first = held[0][1] if held else None
        if held is None or first is None or first != number:
            started = "nothing" if first is None else f"{self.one} {first}"
            raise VerifyError(
                f"rank {run.rank} waits for {self.one} {number}, and has started {started} first",
                details=[("tensor", run.tensor()), (f"rank {run.rank}", run.doing())],
                rule=self._rule(),
                fix=OURS,
            )
        return held.popleft()[2]

    def check_end(self) -> None:
        """Raise for what nobody waits for."""
        left = [(run, number) for held in self.of.values() for run, number, _ in held]
        if left:
            raise VerifyError(
                f"{len(left)} {self.several} are started and never waited for",
                details=[(f"rank {run.rank}", f"{self.one} {number}") for run, number in left[:12]],
                rule=self._rule(),
                fix=OURS,
            )

    def _rule(self) -> str:
        what = self.several.partition(" ")[0]
        return f"a rank waits for the {what} that it has started, in the order of their starts"
