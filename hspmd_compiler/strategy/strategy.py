"""A Strategy: which devices run which layers, on which samples of the global batch. Values only.

A device is an id in the strategy; its rank is its index among the used devices, ascending.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from ..base import name_glob
from ..base.devices import DeviceKind
from ..base.pipeline_schedule import Lanes, PipelineSchedule, ScheduleKind, build_schedule
from ..errors import StrategyError
from .context_spec import ContextSpec
from .schedules.interleaved import interleave

__all__ = [
    "ContextSpec",
    "DeviceKind",
    "GradientForm",
    "LayoutWish",
    "Override",
    "PipelineSpec",
    "Recompute",
    "RecomputeKind",
    "ScheduleKind",
    "SizesSpec",
    "StageSpec",
    "Strategy",
]

SampleRange = tuple[int, int]

ZERO_STAGES = (0, 1, 2, 3)


class RecomputeKind(Enum):
    """Which values of a layer are not kept for its backward pass but computed again there.

    SELECTIVE: all but products with weights, attention kernels and received values. FULL: all but the
    layer's input.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Recompute:
    """What backward computes again in the layers [low, high) of a pipeline.

    every: with FULL, so many layers at a time keep the input of the first of them only.
    """

    layers: tuple[int, int]
    kind: RecomputeKind
    every: int = 1


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage: devices in tensor-parallel order, and the half-open range of layers they run.

    shares: one integer weight per device for uneven tensor-parallel splits, 0 for a device that
    gets nothing; None splits evenly, the first devices taking what remains. zero_shares: one integer
    weight per device for what ZeRO stores once, 0 for a device that stores none of it; None: 1 each.
    experts: one integer weight per device for whole experts, 0 for a device without; None: each expert is
    split like any other matrix.
    """

    devices: tuple[int, ...]
    layers: tuple[int, int]
    shares: tuple[int, ...] | None = None
    zero_shares: tuple[int, ...] | None = None
    experts: tuple[int, ...] | None = None

    @property
    def tp(self) -> int:
        """The tensor-parallel degree."""
        return len(self.devices)

    @property
    def num_layers(self) -> int:
        return self.layers[1] - self.layers[0]


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """One pipeline: its stages in order, and the size in samples of each of its micro-batches.

    Several stages may have the same devices, in one order: in turns these run all of them.

    recompute: by ranges of layers that don't overlap; other layers keep everything. schedule: one written by
    hand, over all micro-batches of a step; else it is that of the strategy.
    """

    stages: tuple[StageSpec, ...]
    micro_batches: tuple[int, ...]
    recompute: tuple[Recompute, ...] = ()
    schedule: PipelineSchedule | None = None

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices in order of stages, each once."""
        return tuple(dict.fromkeys(device for stage in self.stages for device in stage.devices))

    @property
    def lanes(self) -> Lanes | None:
        """The stages of each set of devices, where some run several; None: each stage has its own."""
        lanes: dict[tuple[int, ...], list[int]] = {}
        for number, stage in enumerate(self.stages):
            lanes.setdefault(stage.devices or (-1 - number,), []).append(number)
        return None if len(lanes) == len(self.stages) else tuple(map(tuple, lanes.values()))

    def lane_of(self, stage: int) -> tuple[int, ...]:
        """All stages that the devices of this one run."""
        own = self.stages[stage].devices
        return tuple(number for number, each in enumerate(self.stages) if each.devices == own)

    @property
    def batch_size(self) -> int:
        """Samples of one accumulation slice."""
        return sum(self.micro_batches)

    @property
    def num_layers(self) -> int:
        return self.stages[-1].layers[1]

    def stage_of(self, layer: int) -> int:
        """Index of the stage that runs this layer."""
        for index, stage in enumerate(self.stages):
            if stage.layers[0] <= layer < stage.layers[1]:
                return index
        ranges = ", ".join(f"[{stage.layers[0]}, {stage.layers[1]})" for stage in self.stages)
        raise StrategyError(f"no stage of the pipeline runs layer {layer}", details=[("stages", ranges)])


class ExpertForm(Enum):
    """How tokens come to the experts that ranks of a stage share out.

    GATHER: every rank gets those of all. ALL_TO_ALL: each row goes to the owner of its expert.
    """

    GATHER = "gather"
    ALL_TO_ALL = "all_to_all"


class GradientForm(Enum):
    """How the ranks of a stage that share samples come to a parameter's gradient.

    SUM: each makes an addend, which are summed. FACTORS: all gather what the gradient is the product of.
    """

    SUM = "sum"
    FACTORS = "factors"


@dataclass(frozen=True, slots=True)
class Override:
    """A hand-written choice for the parameters and modules whose name the glob `match` names.

    split: the tensor dim that is split over the stage's devices. duplicate: kept whole on each.
    tp: the layer's own degree inside its stage, at most; further devices hold copies. shares: one
    weight per part. annotation: a whole annotation in the text form of annotations/text.py. gradient: how
    ranks that share its samples come to its gradient; None: they sum it.
    Where several overrides name one parameter, the last one counts.
    """

    match: str
    split: int | None = None
    duplicate: bool = False
    tp: int | None = None
    shares: tuple[int, ...] | None = None
    annotation: str | None = None
    gradient: GradientForm | None = None

    def matches(self, name: str) -> bool:
        """Whether it is meant for this parameter or module, or for a module above it."""
        return name_glob.matches(self.match, name)

    def degree(self, stage: StageSpec) -> int:
        """The degree inside this stage: `tp`, or all devices where the stage has no more."""
        if self.tp is None or self.tp >= stage.tp:
            return stage.tp
        if stage.tp % self.tp:
            raise StrategyError(
                f"override {self.match!r} can't have its own degree in a stage",
                details=[("tp", str(self.tp)), ("devices", ", ".join(map(str, stage.devices)))],
                rule="a layer's own degree divides the number of devices of its stage",
                fix=f"choose a divisor of {stage.tp}, or narrow the glob to other layers",
            )
        return self.tp


@dataclass(frozen=True, slots=True)
class LayoutWish:
    """How the values at the anchors that the glob `at` names lie on the ranks of their stage, in order.

    to: states without devices, in the text form of annotations/text.py, as `S2(4,2,2)`; or `S2`, `D`, `P`,
    over all ranks of a stage, by its shares. A value's gradient returns to the layout in which the value
    came. Where several wishes name one anchor, the last one counts.
    """

    at: str
    to: str

    def names(self, anchor: str) -> bool:
        """Whether it is meant for the anchor of this name."""
        return name_glob.matches_exactly(self.at, anchor)


@dataclass(frozen=True, slots=True)
class SizesSpec:
    """Which sizes a micro-batch may have, chosen anew in every step: [low, high] of one of the two.

    tokens: of a row of packed sequences, which is a micro-batch. samples: of a micro-batch.
    """

    tokens: tuple[int, int] | None = None
    samples: tuple[int, int] | None = None

    @property
    def range(self) -> tuple[int, int]:
        """The one that is given."""
        return self.tokens or self.samples or (0, 0)


@dataclass(frozen=True, slots=True)
class Strategy:
    """How one model is spread over devices.

    accumulation: how often one step runs each pipeline's micro-batch list, over consecutive slices
    of the global batch. device_kinds: (device, kind) of those devices that are bound to a kind.
    zero: what is stored once over all holders of a parameter instead of by each: from 1 the state of
    the optimizer, from 2 the summed gradient, from 3 the parameter itself. layouts: of activations. context:
    pipelines that share their samples; the others run whole ones.
    sizes: what a step may choose; then `micro_batches` and `accumulation` say nothing. receives_ahead: how
    many receives a rank posts before their turn. expert_form: None: of both what costs less where a compile
    knows costs, else GATHER.
    bucket_bytes: of gradients that are summed together while backward goes on; None: what costs least, 0:
    all are summed at its end. same_buckets: names of parameters, bucket after bucket, as another compile of
    the same model chose them; no file has it.
    """

    pipelines: tuple[PipelineSpec, ...]
    accumulation: int = 1
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    sequence_parallel: bool = False
    overrides: tuple[Override, ...] = ()
    device_kinds: tuple[tuple[int, DeviceKind], ...] = ()
    name: str = ""
    zero: int = 0
    layouts: tuple[LayoutWish, ...] = ()
    context: tuple[ContextSpec, ...] = ()
    sizes: SizesSpec | None = None
    receives_ahead: int = 1
    expert_form: ExpertForm | None = None
    bucket_bytes: int | None = None
    same_buckets: tuple[tuple[str, ...], ...] = ()

    @property
    def devices(self) -> tuple[int, ...]:
        """The used devices, ascending; a device's index is its rank."""
        return tuple(sorted({device for pipeline in self.pipelines for device in pipeline.devices}))

    @property
    def has_lanes(self) -> bool:
        """Whether devices run several stages of a pipeline."""
        return any(pipeline.lanes for pipeline in self.pipelines)

    @property
    def world_size(self) -> int:
        """Number of used devices."""
        return len(self.devices)

    def ranks(self) -> dict[int, int]:
        """Device to rank."""
        return {device: rank for rank, device in enumerate(self.devices)}

    def zero_weights(self) -> dict[int, int]:
        """Rank to its weight for what ZeRO stores once."""
        ranks = self.ranks()
        return {
            ranks[device]: weight
            for pipeline in self.pipelines
            for stage in pipeline.stages
            for device, weight in zip(stage.devices, stage.zero_shares or (1,) * stage.tp, strict=True)
        }

    def context_of(self, pipeline: int) -> ContextSpec | None:
        """The group that a pipeline is a member of."""
        return next((group for group in self.context if pipeline in group.pipelines), None)

    @property
    def own_rows(self) -> tuple[int, ...]:
        """Per pipeline the first one that runs the same samples: itself, but for members of a group."""
        first = {member: min(group.pipelines) for group in self.context for member in group.pipelines}
        return tuple(first.get(pipeline, pipeline) for pipeline in range(len(self.pipelines)))

    @property
    def slice_size(self) -> int:
        """Samples of one accumulation slice; those that several pipelines share count once."""
        return sum(self._sizes)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Samples of a slice, by pipeline; none where an earlier one runs the same."""
        return tuple(
            spec.batch_size if first == number else 0
            for number, (spec, first) in enumerate(zip(self.pipelines, self.own_rows, strict=True))
        )

    @property
    def global_batch(self) -> int:
        """Samples of one step."""
        return self.accumulation * self.slice_size

    @property
    def num_layers(self) -> int:
        return self.pipelines[0].num_layers

    def rows(self, pipeline: int) -> list[SampleRange]:
        """Rows [low, high) of the global batch, per micro-batch of a pipeline.

        Within a slice, pipelines take consecutive rows in their order, members of a context group those of
        its first. Micro-batch m of slice a has index a * len(micro_batches) + m.
        """
        before = sum(self._sizes[: self.own_rows[pipeline]])
        sizes = self.pipelines[pipeline].micro_batches
        return [
            rows
            for number in range(self.accumulation)
            for rows in _consecutive(number * self.slice_size + before, sizes)
        ]

    @property
    def schedule_name(self) -> str:
        """`1f1b`, and which pipelines have schedules of their own."""
        own = [str(number) for number, spec in enumerate(self.pipelines) if spec.schedule is not None]
        name = str(self.schedule.value)
        return f"{name}, but of pipeline {' and '.join(own)} its own" if own else name

    def schedule_of(self, pipeline: int) -> PipelineSchedule:
        """In which order a pipeline's stages run the micro-batches of a step."""
        spec = self.pipelines[pipeline]
        if spec.schedule is not None:
            return spec.schedule
        count = len(spec.micro_batches) * self.accumulation
        if spec.lanes is not None:
            return interleave(self.schedule, spec.lanes, count)
        return build_schedule(self.schedule, len(spec.stages), count)

    def splits_backward(self, pipeline: int, stage: int) -> bool:
        """Whether a stage runs gradients of weights apart from its backward passes."""
        spec = self.pipelines[pipeline]
        if spec.schedule is not None:
            return spec.schedule.splits(stage)
        return self.schedule.splits(stage, len(spec.stages))

    def override_for(self, name: str) -> Override | None:
        """The override that counts for a parameter: the last that names it."""
        return self.override_of((name,))

    def override_of(self, names: Collection[str]) -> Override | None:
        """The override that counts for a parameter of several names: the last that names it by any."""
        return next((item for item in reversed(self.overrides) if any(map(item.matches, names))), None)

    @property
    def anchor_globs(self) -> tuple[str, ...] | None:
        """What names the anchors that it needs; None: it needs none."""
        return tuple(wish.at for wish in self.layouts) or None

    def layout_at(self, anchor: str) -> int | None:
        """The number of the wish that counts at an anchor: the last that names it."""
        numbers = range(len(self.layouts) - 1, -1, -1)
        return next((number for number in numbers if self.layouts[number].names(anchor)), None)


def _consecutive(low: int, sizes: tuple[int, ...]) -> Iterator[SampleRange]:
    for size in sizes:
        yield low, low + size
        low += size
