"""A Strategy as plain mappings and lists, the content of its JSON or YAML, both ways."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeAlias

from ..base.bad_values import Problem
from ..base.codec import encode
from ..base.devices import DeviceKind
from ..base.forms import VERSION, Count, DeviceIds, Version, at_most, read_form
from ..base.limits import MOST_MICRO_BATCHES
from ..base.typed import Either, ValueRule, Wanted
from .check import find_problems, raise_if_any
from .schedules.schedule_text import read_schedule
from .strategy import (
    ContextSpec,
    ExpertForm,
    LayoutWish,
    Override,
    PipelineSpec,
    Recompute,
    RecomputeKind,
    ScheduleKind,
    SizesSpec,
    StageSpec,
    Strategy,
)

SUBJECT = "strategy"

Layers: TypeAlias = Annotated[
    int | tuple[int, ...],
    Either((int,), int, tuple[int, ...]),
    Wanted("a count, or [low, high]"),
    ValueRule(lambda given: isinstance(given, int) or len(given) == 2, "a range has two ends, [low, high]"),
]
Ends: TypeAlias = Annotated[
    tuple[int, ...],
    Wanted("[low, high]"),
    ValueRule(lambda ends: len(ends) == 2, "a range has two ends, [low, high]"),
]
Weights: TypeAlias = Annotated[tuple[int, ...], Wanted("a list of integer weights")]
DeviceId: TypeAlias = Annotated[
    str, ValueRule(lambda key: re.fullmatch(r"0|[1-9][0-9]{0,17}", key) is not None, "the key is a device id")
]


@dataclass(frozen=True, slots=True)
class GroupForm:
    """`count` micro-batches of one size."""

    count: Annotated[Count, at_most("micro-batches", MOST_MICRO_BATCHES)]
    size: int


@dataclass(frozen=True, slots=True)
class RecomputeForm:
    """What is recomputed in a range of layers."""

    layers: Ends
    kind: RecomputeKind
    every: int = 1


@dataclass(frozen=True, slots=True)
class StageForm:
    """layers: a count of those after the stage before, or [low, high)."""

    devices: DeviceIds
    layers: Layers
    shares: Weights | None = None
    zero_shares: Weights | None = None
    experts: Weights | None = None


Sizes: TypeAlias = Annotated[
    GroupForm | tuple[int | GroupForm, ...],
    Either((dict,), GroupForm, tuple[Annotated[int | GroupForm, Either((dict,), GroupForm, int)], ...]),
]


@dataclass(frozen=True, slots=True)
class PipelineForm:
    """recompute: one kind for all layers, or a list of ranges. schedule: a text with a line per stage."""

    stages: tuple[StageForm, ...]
    micro_batches: Sizes
    recompute: Annotated[
        RecomputeKind | tuple[RecomputeForm, ...],
        Either((str,), RecomputeKind, tuple[RecomputeForm, ...]),
    ] = ()
    schedule: str | None = None


@dataclass(frozen=True, slots=True)
class SizesForm:
    """Which sizes a micro-batch may have."""

    tokens: Ends | None = None
    samples: Ends | None = None


@dataclass(frozen=True, slots=True)
class StrategyForm:
    """The keys of a strategy."""

    version: Version = VERSION
    name: str = ""
    pipelines: tuple[PipelineForm, ...] = field(kw_only=True)
    accumulation: int = 1
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    sequence_parallel: bool = False
    zero: int = 0
    overrides: tuple[Override, ...] = ()
    layouts: tuple[LayoutWish, ...] = ()
    sizes: SizesForm | None = None
    receives_ahead: int = 1
    expert_form: ExpertForm | None = None
    bucket_bytes: int | None = None
    device_kinds: dict[DeviceId, DeviceKind] = field(default_factory=dict)
    context: tuple[ContextSpec, ...] = ()


STAND_INS = {
    "": {"pipelines": []},
    "pipelines": [],
    "pipelines[]": {"stages": [], "micro_batches": []},
    "stages": [],
    "stages[]": {"devices": [], "layers": 0},
    "devices": [],
    "layers": [0, 0],
    "micro_batches": [],
    "micro_batches[]": 1,
    "count": 1,
    "size": 1,
    "recompute[]": {"layers": [0, 0], "kind": "none"},
    "kind": "none",
    "overrides[]": {"match": ""},
    "match": "",
    "layouts[]": {"at": "", "to": ""},
    "at": "",
    "to": "",
    "sizes": {"samples": [1, 1]},
    "tokens": [1, 1],
    "samples": [1, 1],
    "shares[]": 1,
    "zero_shares[]": 1,
    "experts[]": 1,
    "context[]": {"pipelines": []},
    "lengths[]": 1,
}


def strategy_from(form: object, at: str = "") -> Strategy:
    """The Strategy a form describes; one error lists every bad value in it."""
    found = read_form(StrategyForm, form, SUBJECT, STAND_INS)
    strategy = _strategy(found.form)
    unread_actions = list(_unread_actions(found.form.pipelines))
    unread = found.unread | {
        path.partition(".")[0]
        for path in found.unread
        if path.startswith(("overrides", "layouts", "context"))
    }
    unread |= {problem.path for problem in unread_actions}
    raise_if_any([*found.problems, *unread_actions, *find_problems(strategy, unread=unread)], at)
    return strategy


def _strategy(form: StrategyForm) -> Strategy:
    kinds = {int(device): kind for device, kind in form.device_kinds.items()}
    return Strategy(
        pipelines=tuple(map(_pipeline, form.pipelines)),
        accumulation=form.accumulation,
        schedule=form.schedule,
        sequence_parallel=form.sequence_parallel,
        overrides=form.overrides,
        layouts=form.layouts,
        device_kinds=tuple(sorted(kinds.items())),
        name=form.name,
        zero=form.zero,
        context=form.context,
        sizes=None if form.sizes is None else _sizes(form.sizes),
        receives_ahead=form.receives_ahead,
        expert_form=form.expert_form,
        bucket_bytes=form.bucket_bytes,
    )


def _sizes(form: SizesForm) -> SizesSpec:
    ends = ((given[0], given[1]) if given else None for given in (form.tokens, form.samples))
    return SizesSpec(*ends)


def _pipeline(form: PipelineForm) -> PipelineSpec:
    stages: list[StageSpec] = []
    for stage in form.stages:
        first = stages[-1].layers[1] if stages else 0
        low, high = (first, first + stage.layers) if isinstance(stage.layers, int) else stage.layers
        weights = (stage.shares, stage.zero_shares, stage.experts)
        stages.append(StageSpec(stage.devices, (low, high), *weights))
    given = form.micro_batches
    groups = [given] if isinstance(given, GroupForm) else given
    sizes = [(item.size,) * item.count if isinstance(item, GroupForm) else (item,) for item in groups]
    layers = stages[-1].layers[1] if stages else 0
    spec = PipelineSpec(tuple(stages), sum(sizes, ()), _recompute(form.recompute, layers))
    if form.schedule is None:
        return spec
    return replace(spec, schedule=read_schedule(form.schedule, spec.lanes)[0])


def _recompute(form: RecomputeKind | tuple[RecomputeForm, ...], layers: int) -> tuple[Recompute, ...]:
    if isinstance(form, RecomputeKind):
        return () if form is RecomputeKind.NONE else (Recompute((0, layers), form),)
    return tuple(Recompute((item.layers[0], item.layers[1]), item.kind, item.every) for item in form)


def _unread_actions(pipelines: Sequence[PipelineForm]) -> Iterator[Problem]:
    """What can't be read in schedules."""
    for index, form in enumerate(pipelines):
        lanes = _pipeline(form).lanes
        for where, what in () if form.schedule is None else read_schedule(form.schedule, lanes)[1]:
            yield Problem(f"pipelines[{index}].schedule", f"{where}: {what}")


def form_of(strategy: Strategy) -> dict[str, object]:
    """The form of a Strategy: keys in documented order, without those that say nothing."""
    form: dict[str, object] = {"version": VERSION}
    if strategy.name:
        form["name"] = strategy.name
    form["pipelines"] = [_pipeline_form(pipeline) for pipeline in strategy.pipelines]
    form["accumulation"] = strategy.accumulation
    form["schedule"] = strategy.schedule.value
    form["sequence_parallel"] = strategy.sequence_parallel
    if strategy.zero:
        form["zero"] = strategy.zero
    if strategy.overrides:
        form["overrides"] = encode(strategy.overrides)
    if strategy.layouts:
        form["layouts"] = encode(strategy.layouts)
    if strategy.sizes is not None:
        form["sizes"] = encode(strategy.sizes)
    if strategy.receives_ahead != 1:
        form["receives_ahead"] = strategy.receives_ahead
    if strategy.expert_form is not None:
        form["expert_form"] = strategy.expert_form.value
    if strategy.bucket_bytes is not None:
        form["bucket_bytes"] = strategy.bucket_bytes
    if strategy.device_kinds:
        form["device_kinds"] = {str(device): kind.value for device, kind in strategy.device_kinds}
    if strategy.context:
        form["context"] = encode(strategy.context)
    return form


def _pipeline_form(pipeline: PipelineSpec) -> dict[str, object]:
    plain = encode(replace(pipeline, schedule=None))
    assert isinstance(plain, dict), "a dataclass is written by its fields"
    return {**plain} if pipeline.schedule is None else {**plain, "schedule": pipeline.schedule.text()}
