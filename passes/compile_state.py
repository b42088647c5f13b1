"""What a compile holds between its passes; from `Deduced` on, each has what the one before has, and more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..base.pipeline_schedule import PipelineSchedule
    from ..ir.annotated import BatchSum, PipelineGraph
    from ..ir.graph import LogicalGraph
    from ..strategy.strategy import Strategy
    from .annotate import ParameterLayouts
    from .batch_levels import BatchLevels
    from .deduction.placement import GraphFacts, StartLayouts
    from .grad_sync import Reductions
    from .gradients.waves import Waves
    from .liveness import LivePipeline
    from .lower.strategy_ranks import StrategyRanks
    from .param_places import ParamPlaces
    from .resolve_comm import CommResolver, StageComm, Tags
    from .segments import StagePlan
    from .step_counts import CountKey
    from .zero.gather_groups import GatherGroup
    from .zero.zero import Ownership


S = TypeVar("S")
KeptShapes = tuple[tuple[int, ...], ...]
"""Of each value that is kept for backward the bytes of an element, and its local shape."""


@dataclass(frozen=True, slots=True)
class Example:
    """A model with an example batch. batch: samples of a global step."""

    model: nn.Module
    inputs: Mapping[str, Tensor]
    batch: int


@dataclass(frozen=True, slots=True)
class Traced:
    """The logical graph: a training step on one device. how: how much of the model was traced, and why."""

    graph: LogicalGraph
    how: str = ""


@dataclass(frozen=True, slots=True)
class Annotated:
    """Layouts of parameters. placements: what the deduction of each pipeline starts from. facts: of the graph
    alone; rules read against calls among them."""

    graph: LogicalGraph
    strategy: Strategy
    layouts: ParameterLayouts
    placements: Sequence[StartLayouts]
    facts: GraphFacts


@dataclass(frozen=True, slots=True)
class Deduced:
    """Annotated graphs, one per pipeline; pipelines of one structure share their rows."""

    graph: LogicalGraph
    ranks: StrategyRanks
    pipelines: Sequence[PipelineGraph]

    @property
    def strategy(self) -> Strategy:
        return self.ranks.strategy


@dataclass(frozen=True, slots=True)
class Live(Deduced):
    """The needed rows of each pipeline, by stage; pipelines that work alike share them."""

    live: Sequence[LivePipeline]


@dataclass(frozen=True, slots=True)
class Gathered(Live):
    """Where parameters lie. inside: those that ZeRO gathers where they are used. groups: which together."""

    places: ParamPlaces
    inside: frozenset[str]
    groups: tuple[GatherGroup, ...]


@dataclass(frozen=True, slots=True)
class Levelled(Gathered):
    """Levels of passes. step_groups: per sum over the batch, the ranks that reduce it between levels.
    sum_groups: the same of each sum within a pass."""

    levels: BatchLevels
    step_groups: Mapping[CountKey, tuple[int, ...]]
    sum_groups: Mapping[BatchSum, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Shared(Levelled):
    """Who stores what, None without ZeRO. scatters: per pipeline, the micro-batches behind whose backward
    pass gradients are handed over."""

    ownership: Ownership | None
    scatters: Sequence[frozenset[int]]


@dataclass(frozen=True, slots=True)
class Synced(Shared):
    """How gradients are summed and parameters gathered. resolver: numbers the steps of communication.
    waves: gradients that are summed while backward goes on."""

    resolver: CommResolver
    reductions: Reductions
    waves: Waves


@dataclass(frozen=True, slots=True)
class Segmented(Synced):
    """What the segments of each stage of each pipeline hold."""

    stages: Sequence[StagePlan]


@dataclass(frozen=True, slots=True)
class Resolved(Segmented):
    """The steps of each stage's communication, in the order of `stages`."""

    comms: Sequence[StageComm]


@dataclass(frozen=True, slots=True)
class Scheduled(Resolved):
    """In which order each pipeline runs its micro-batches. tags: the first of each crossing."""

    schedules: Sequence[PipelineSchedule]
    tags: Tags


@dataclass(frozen=True, slots=True)
class Measured(Scheduled):
    """Bytes that each rank of a stage keeps of each micro-batch, in the order of `stages`.

    kept: of the first micro-batch, for programs of any size.
    """

    saved: Sequence[Sequence[list[int]]]
    kept: Sequence[Sequence[KeptShapes]] = ()


def grown(kind: type[S], state: Deduced, **more: object) -> S:
    """The state of the next kind: what is there, with what is new."""
    held = {item.name: getattr(state, item.name) for item in fields(state)}
    return kind(**held, **more)
