"""Where each rank of a timeline stands: its device, pipeline and stage, as its label says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...base.timeline import Timeline

STAGE = re.compile(r"pipeline (\d{1,9})\D{1,20}?stage (\d{1,9})")
START = re.compile(r"rank \d+: ")
LONGEST = 120
LONGEST_DEVICE = 40


@dataclass(frozen=True, slots=True)
class LabelledRank:
    """pipeline, stage: -1 where the label doesn't tell."""

    rank: int
    device: str
    pipeline: int
    stage: int

    @property
    def group(self) -> str:
        """Ranks of one group stand together."""
        return "ranks" if self.pipeline < 0 else f"pipeline {self.pipeline}, stage {self.stage}"

    @property
    def title(self) -> str:
        """`rank 3, A100`."""
        return f"rank {self.rank}, {self.device}" if self.device else f"rank {self.rank}"

    @property
    def text(self) -> str:
        """`rank 3 (A100, pipeline 0, stage 1)`."""
        inside = [part for part in (self.device, self.group if self.pipeline >= 0 else "") if part]
        return f"rank {self.rank} ({', '.join(inside)})" if inside else f"rank {self.rank}"


def places_of(timelines: Sequence[Timeline]) -> list[LabelledRank]:
    """All ranks of all timelines, by pipeline, stage and rank; the first label of a rank counts."""
    labels: dict[int, str] = {}
    for line in timelines:
        for rank, label in line.labels.items():
            labels.setdefault(rank, label)
    ranks = {span.rank for line in timelines for span in line.spans}
    ranks |= {point.rank for line in timelines for point in line.memory}
    found = [_place(rank, labels) for rank in ranks]
    return sorted(found, key=lambda place: (place.pipeline, place.stage, place.rank))


def _place(rank: int, labels: Mapping[int, str]) -> LabelledRank:
    label = labels.get(rank, "")[:LONGEST]
    stage, start = STAGE.search(label), START.match(label)
    numbers = (-1, -1) if stage is None else (int(stage[1]), int(stage[2]))
    parts = label[start.end() :].split(",") if start else []
    named = [part.strip() for part in parts if "pipeline" not in part and "stage" not in part]
    return LabelledRank(rank, named[0][:LONGEST_DEVICE] if named else "", *numbers)
