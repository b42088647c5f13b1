"""How long a change of the ranks took, by phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from .choosing import Successor
from .messages import Arrived, WorldMember


@dataclass(slots=True)
class Regroup:
    """From a loss, or a wish to join, that was noted at `began_at`, to the first step after it.

    halted_at: all have reported. ordered_at: the program is chosen. groups_s, state_s: of the slowest rank.
    """

    generation: int
    began_at: float
    lost: list[WorldMember] = field(default_factory=list)
    joined: list[WorldMember] = field(default_factory=list)
    strategy: str = ""
    note: str = ""
    was_prepared: bool = False
    halted_at: float = 0.0
    ordered_at: float = 0.0
    groups_s: float = 0.0
    state_s: float = 0.0
    bytes_moved: int = 0
    resumed_at: float = 0.0

    def begins(self, generation: int, successor: Successor) -> None:
        """The generation that ends this change is told."""
        self.generation, self.ordered_at = generation, monotonic()
        self.strategy, self.note = successor.strategy, successor.note

    def arrived(self, arrivals: Sequence[Arrived]) -> None:
        """All are in it."""
        self.groups_s = max(each.groups_s for each in arrivals)
        self.state_s = max(each.state_s for each in arrivals)
        self.bytes_moved = sum(each.bytes_moved for each in arrivals)

    def to_json(self) -> dict[str, object]:
        """For the view: devices lost and joined, seconds by phase."""
        return {
            "generation": self.generation,
            "lost": [each.device for each in self.lost],
            "joined": [each.device for each in self.joined],
            "strategy": self.strategy,
            "note": self.note,
            "prepared": self.was_prepared,
            "halted_s": round(self.halted_at - self.began_at, 4),
            "chosen_s": round(self.ordered_at - self.halted_at, 4),
            "groups_s": round(self.groups_s, 4),
            "state_s": round(self.state_s, 4),
            "resumed_s": round(self.resumed_at - self.began_at, 4),
            "bytes_moved": self.bytes_moved,
        }
