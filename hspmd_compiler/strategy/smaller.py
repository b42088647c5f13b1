"""Strategies for what is left of a strategy's devices: the simplest that are sound, the best first."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from .strategy import PipelineSpec, StageSpec, Strategy


def smaller_strategies(strategy: Strategy, lost: Collection[int]) -> Iterator[tuple[Strategy, str]]:
    """Strategies of the same global batch without these devices, each with what was done; none may exist.

    Pipelines that lost nothing take the micro-batches of those that did; else a stage goes on without its
    lost devices, and one that lost all of them gives its layers to the stage beside it. None where pipelines
    share sequences: what is left of a group may not meet in one order.
    """
    if strategy.context:
        return
    whole = [each for each in strategy.pipelines if not set(each.devices) & set(lost)]
    if whole and len(whole) < len(strategy.pipelines):
        dropped = len(strategy.pipelines) - len(whole)
        yield (
            replace(strategy, pipelines=_sharing(strategy.pipelines, whole)),
            f"{dropped} of {len(strategy.pipelines)} pipelines dropped, whose samples go to the others",
        )
    cut = [_cut(each, lost) for each in strategy.pipelines]
    left = tuple(each for each in cut if each is not None)
    if len(left) == len(cut) and left != strategy.pipelines:
        yield replace(strategy, pipelines=left), "stages go on without their lost devices"


def _sharing(before: Collection[PipelineSpec], whole: list[PipelineSpec]) -> tuple[PipelineSpec, ...]:
    """The pipelines that are left, with the micro-batches of the others handed out in turn."""
    batches = [list(each.micro_batches) for each in whole]
    orphaned = [size for each in before if each not in whole for size in each.micro_batches]
    for number, size in enumerate(orphaned):
        batches[number % len(whole)].append(size)
    return tuple(
        replace(each, micro_batches=tuple(sizes), schedule=None)
        for each, sizes in zip(whole, batches, strict=True)
    )


def _cut(pipeline: PipelineSpec, lost: Collection[int]) -> PipelineSpec | None:
    """A pipeline on the devices that it has left, None where it has none."""
    if not set(pipeline.devices) & set(lost):
        return pipeline
    stages: list[StageSpec] = []
    waiting = 0
    for stage in pipeline.stages:
        devices = tuple(device for device in stage.devices if device not in lost)
        if devices:
            kept = stage if devices == stage.devices else _on(stage, devices)
            stages.append(replace(kept, layers=(stage.layers[0] - waiting, stage.layers[1])))
            waiting = 0
        elif stages:
            stages[-1] = replace(stages[-1], layers=(stages[-1].layers[0], stage.layers[1]))
        else:
            waiting += stage.layers[1] - stage.layers[0]
    return replace(pipeline, stages=tuple(stages), schedule=None) if stages else None


def _on(stage: StageSpec, devices: tuple[int, ...]) -> StageSpec:
    """A stage on fewer devices, evenly; experts that lay apart still do."""
    return StageSpec(devices, stage.layers, experts=None if stage.experts is None else (1,) * len(devices))
