"""What bounds a step, in one line: memory, a link, the filling of a pipeline, or what a stage computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .critical_path import PathShare

LINK = "link"


@dataclass(frozen=True, slots=True)
class StagedRank:
    """A rank as the line names it. memory_share: its most over what its device has. fits: if that is less."""

    rank: int
    device: str
    pipeline: int
    stage: int
    memory_share: float
    fits: bool

    @property
    def place(self) -> tuple[int, int]:
        """Its stage among all."""
        return self.pipeline, self.stage


def bound_text(path: Sequence[PathShare], ranks: Sequence[StagedRank]) -> str:
    """Memory where the step does not fit, else what most of its critical path is."""
    small = [one for one in ranks if not one.fits]
    if small:
        worst = max(small, key=lambda one: one.memory_share)
        return f"memory: rank {worst.rank} needs {worst.memory_share:.0%} of what its device has"
    if not path:
        return "nothing: no rank computes"
    if path[0].kind == LINK:
        return f"link {path[0].name}: {path[0].share:.0%} of the critical path"
    return _computing(path, {one.rank: one for one in ranks})


def _computing(path: Sequence[PathShare], ranks: dict[int, StagedRank]) -> str:
    """The stage that computes most of it, or all others of its pipeline that it waits for."""
    total = sum(share.seconds for share in path)
    linked = sum(share.seconds for share in path if share.kind == LINK)
    stages: dict[tuple[int, int], float] = {}
    for share in path:
        if share.kind != LINK:
            place = ranks[share.rank].place
            stages[place] = stages.get(place, 0.0) + share.seconds
    most = max(stages, key=lambda place: stages[place])
    others = sum(stages.values()) - stages[most]
    if others > stages[most]:
        return f"bubble: {others / total:.0%} of the critical path fills and drains pipelines"
    first = next(share for share in path if share.kind != LINK and ranks[share.rank].place == most)
    rank = ranks[first.rank]
    rest = f", links {linked / total:.0%}" if linked else ""
    where = f"pipeline {rank.pipeline} stage {rank.stage}, {rank.device}"
    return f"compute of rank {rank.rank} ({where}): {stages[most] / total:.0%} of the critical path{rest}"
