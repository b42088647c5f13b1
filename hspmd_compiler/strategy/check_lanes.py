"""The rules of devices: each is in one pipeline, and what holds where it runs several stages of that."""

from __future__ import annotations

from collections.abc import Iterator

from ..base.bad_values import Problem
from ..base.pipeline_schedule import ScheduleKind
from .schedules.interleaved import LANE_KINDS
from .strategy import PipelineSpec, Strategy

IN_COMMON = "stages of a pipeline have all of their devices in common, in one order, or none"
SEVERAL = "devices run several stages of a pipeline"


def repeat_problems(strategy: Strategy) -> Iterator[Problem]:
    """Every second use of a device that is none of a stage's with the same devices, named with the first."""
    first: dict[int, tuple[int, int]] = {}
    for index, pipeline in enumerate(strategy.pipelines):
        for number, stage in enumerate(pipeline.stages):
            path = f"pipelines[{index}].stages[{number}].devices"
            for place, device in enumerate(stage.devices):
                at = first.setdefault(device, (index, number))
                its = f"pipelines[{at[0]}].stages[{at[1]}]"
                if at[0] != index or device in stage.devices[:place]:
                    yield Problem(path, f"{device}: used once only, {its} has it too")
                elif pipeline.stages[at[1]].devices != stage.devices:
                    yield Problem(path, f"{device}: {its} has it too: {IN_COMMON}")


def lane_problems(strategy: Strategy) -> Iterator[Problem]:
    """What is not done yet, or has no meaning, where devices run several stages."""
    for index, pipeline in enumerate(strategy.pipelines):
        yield from _schedule_problems(f"pipelines[{index}].schedule", pipeline)
        yield from _weight_problems(f"pipelines[{index}]", pipeline)
    if not strategy.has_lanes:
        return
    if strategy.zero >= 2:
        rule = f"{SEVERAL}, which hand over gradients at the end of a step only; set zero to 0 or 1"
        yield Problem("zero", f"{strategy.zero}: {rule}")
    if strategy.sizes is not None:
        yield Problem("sizes", f"given: {SEVERAL}, whose micro-batches have the sizes that are written")
    if strategy.context:
        yield Problem("context", f"given: {SEVERAL}; pipelines that share samples have devices per stage")
    if strategy.bucket_bytes:
        rule = f"{SEVERAL}, which sum gradients at the end of a step; leave it out, or give 0"
        yield Problem("bucket_bytes", f"{strategy.bucket_bytes}: {rule}")
    named = any(spec.lanes is not None and spec.schedule is None for spec in strategy.pipelines)
    if named and strategy.schedule not in LANE_KINDS:
        names = ", ".join(kind.value for kind in ScheduleKind if kind in LANE_KINDS)
        rule = f"{SEVERAL}: one of {names}, or a text of the pipeline's own"
        yield Problem("schedule", f"{strategy.schedule.value}: {rule}")


def _schedule_problems(path: str, pipeline: PipelineSpec) -> Iterator[Problem]:
    """A schedule of a pipeline's own tells in which order devices run their stages."""
    if pipeline.schedule is None:
        return
    told = tuple(tuple(sorted({*lane})) for lane in pipeline.schedule.lanes) or None
    if told != pipeline.lanes:
        groups = pipeline.lanes or tuple((number,) for number in range(len(pipeline.stages)))
        text = ", ".join(" and ".join(map(str, lane)) for lane in groups)
        yield Problem(path, f"its lines are not those of the devices: of stages {text}")


def _weight_problems(path: str, pipeline: PipelineSpec) -> Iterator[Problem]:
    """A device has one weight for what ZeRO stores once."""
    for number, stage in enumerate(pipeline.stages):
        first = pipeline.lane_of(number)[0] if stage.devices else number
        if pipeline.stages[first].zero_shares != stage.zero_shares:
            given = "none" if stage.zero_shares is None else f"{list(stage.zero_shares)}"
            rule = f"stage {first} has the same devices, of one weight each; give both the same"
            yield Problem(f"{path}.stages[{number}].zero_shares", f"{given}: {rule}")
