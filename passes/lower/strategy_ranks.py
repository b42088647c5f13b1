"""Ranks, devices and rows of a strategy's stages, looked up once and not per rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...strategy.strategy import SampleRange, Strategy
from ..deduction.placement import first_coordinate


@dataclass(slots=True)
class StrategyRanks:
    """rows: of the global batch, per pipeline and micro-batch."""

    strategy: Strategy
    rows: list[list[SampleRange]] = field(init=False)
    _stages: dict[tuple[int, int], tuple[int, ...]] = field(init=False)
    _kinds: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        rank_of = self.strategy.ranks()
        self._stages = {
            (p, s): tuple(rank_of[device] for device in stage.devices)
            for p, pipeline in enumerate(self.strategy.pipelines)
            for s, stage in enumerate(pipeline.stages)
        }
        self.rows = [self.strategy.rows(p) for p in range(len(self.strategy.pipelines))]
        self._kinds = dict(self.strategy.device_kinds)

    def of_stage(self, pipeline: int, stage: int) -> tuple[int, ...]:
        """Ranks of a stage in the order of its devices."""
        return self._stages[pipeline, stage]

    def kind(self, device: int, default: str) -> str:
        """What a device is; those that the strategy binds to no kind are of the default."""
        return self._kinds.get(device, default)

    def first_coordinate(self, pipeline: int) -> int:
        """BATCH coordinate of the pipeline's first micro-batch."""
        return first_coordinate(self.strategy, pipeline)
