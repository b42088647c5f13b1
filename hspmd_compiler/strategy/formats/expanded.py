"""What a published strategy says: the Strategy, and what a Strategy has no field for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ...base.bad_values import Problem
from ...base.limits import MOST_LAYERS, MOST_MICRO_BATCHES, MOST_SAMPLES, beyond
from ..check import raise_if_any
from ..context_spec import ContextSpec
from ..strategy import PipelineSpec, StageSpec, Strategy
from .recompute import PublishedRecompute


class Format(StrEnum):
    """A language that strategies are published in."""

    STRATEGY = "strategy"
    HSPMD_LINES = "hspmd-lines"
    HSPMD_CASES = "hspmd-cases"
    ANNOTATION = "hspmd-annotation"
    HEXISCALE = "hexiscale"
    HYDRAULIS = "hydraulis"
    HOTSPA = "hotspa"
    FLAGSCALE = "flagscale"


class AnnotationStyle(StrEnum):
    """Which generator's annotation JSON belongs to a strategy.

    UNION: one device group per pipeline. ONE_GROUP: all pipelines' devices of a stage are one group.
    LAYER_RANGES: one group too, as HotSPa writes it, with one entry per stage instead of per block.
    """

    UNION = "union"
    ONE_GROUP = "one group"
    LAYER_RANGES = "layer ranges"


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """Where a device sits: the number of its machine, and its number there."""

    device: int
    machine: int
    local: int


@dataclass(frozen=True, slots=True)
class Expanded:
    """One published strategy, read.

    num_gpus: as the source counts, devices or rank slots. notes: what was read and doesn't decide the
    Strategy.
    """

    strategy: Strategy
    recompute: PublishedRecompute | None = None
    style: AnnotationStyle = AnnotationStyle.UNION
    num_gpus: int | None = None
    places: tuple[DeviceSlot, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def zero(self) -> bool:
        """Whether the source asks for ZeRO."""
        return self.strategy.zero > 0


def context_groups(degrees: Sequence[int], lengths: Sequence[int] = ()) -> tuple[ContextSpec, ...]:
    """Groups of pipelines that follow each other, by how many members each has.

    lengths: tokens of each pipeline; samples of a group with fewer than others are padded to as many.
    """
    firsts = [sum(degrees[:number]) for number in range(len(degrees))]
    members = [tuple(range(first, first + count)) for first, count in zip(firsts, degrees, strict=True)]
    own = [tuple(lengths[first : first + count]) for first, count in zip(firsts, degrees, strict=True)]
    longest = max(map(sum, own), default=0)
    found = [ContextSpec(held, each, longest - sum(each)) for held, each in zip(members, own, strict=True)]
    return tuple(spec for spec in found if len(spec.pipelines) > 1 or spec.padding)


@dataclass(frozen=True, slots=True)
class Entry:
    """One strategy of a file, by its id; empty where the file holds one only. It is read when asked for."""

    id: str
    expand: Callable[[], Expanded]


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user says where a format does not, or instead of it.

    micro_batch_size: samples, else 1. micro_batches: per pipeline, else its number of stages.
    num_layers: the model's.
    """

    micro_batch_size: int | None = None
    micro_batches: int | None = None
    num_layers: int | None = None

    def __post_init__(self) -> None:
        given = (
            ("--micro-batch-size", "samples", self.micro_batch_size, MOST_SAMPLES),
            ("--micro-batches", "micro-batches", self.micro_batches, MOST_MICRO_BATCHES),
            ("--layers", "layers", self.num_layers, MOST_LAYERS),
        )
        rules = [(flag, beyond(what, count or 0, most)) for flag, what, count, most in given]
        raise_if_any([Problem(flag, rule) for flag, rule in rules if rule])

    @property
    def size(self) -> int:
        """Samples of a micro-batch where the format doesn't say."""
        return 1 if self.micro_batch_size is None else self.micro_batch_size

    def sizes(self, stages: int) -> tuple[int, ...]:
        """The micro-batches of a pipeline of so many stages where the format doesn't say."""
        return (self.size,) * (stages if self.micro_batches is None else self.micro_batches)

    def pipeline(self, stages: list[StageSpec]) -> PipelineSpec:
        """A pipeline whose micro-batches the format doesn't say."""
        return PipelineSpec(tuple(stages), self.sizes(len(stages)))
