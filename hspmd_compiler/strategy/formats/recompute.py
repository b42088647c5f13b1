"""Which blocks a pipeline computes again in backward, as HSPMD's generators take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from .. import strategy
from .format_values import is_integer
from .launch_values import LaunchValues

GRANULARITIES = ("selective", "full")
METHODS = ("uniform", "block")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class PublishedRecompute:
    """Per pipeline: granularity, method, its number of layers, and blocks named outright."""

    granularity: tuple[str | None, ...]
    method: tuple[str | None, ...]
    num_layers: tuple[int | None, ...]
    blocks: tuple[tuple[int, ...], ...]

    def is_recomputed(self, pipeline: int, block: int, first: int) -> bool:
        """Whether a block is; first: the first block of its stage. Named blocks override the method."""
        if self.granularity[pipeline] is None:
            return False
        if self.blocks[pipeline]:
            return block in self.blocks[pipeline]
        if self.method[pipeline] == "block":
            return block - first < (self.num_layers[pipeline] or 0)
        return self.method[pipeline] == "uniform"

    def is_output_recomputed(self, pipeline: int, block: int) -> bool:
        """Whether a block's output is too: with `uniform`, all but the last of each run of layers."""
        if self.granularity[pipeline] is None or self.blocks[pipeline]:
            return False
        every = self.num_layers[pipeline]
        return self.method[pipeline] == "uniform" and every is not None and (block + 1) % every != 0

    def ranges(self, pipeline: int, stages: Sequence[strategy.StageSpec]) -> tuple[strategy.Recompute, ...]:
        """The same in a Strategy: runs of blocks in each stage, `uniform` ones in groups of num_layers."""
        word = self.granularity[pipeline]
        if word is None:
            return ()
        every = self.num_layers[pipeline] or 1
        found: list[strategy.Recompute] = []
        for stage in stages:
            blocks = [
                block
                for block in range(*stage.layers)
                if self.is_recomputed(pipeline, block, stage.layers[0])
            ]
            for low, high in _runs(blocks):
                grouped = any(self.is_output_recomputed(pipeline, block) for block in range(low, high))
                for ends in _groups(low, high, every) if grouped else [(low, high, 1)]:
                    found.append(strategy.Recompute(ends[:2], strategy.RecomputeKind(word), ends[2]))
        return tuple(found)

    def applied(self, pipelines: Sequence[strategy.PipelineSpec]) -> tuple[strategy.PipelineSpec, ...]:
        """The pipelines with what they recompute."""
        return tuple(
            replace(spec, recompute=self.ranges(index, spec.stages)) for index, spec in enumerate(pipelines)
        )


def _runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as half-open runs."""
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block:
            runs[-1] = (runs[-1][0], block + 1)
        else:
            runs.append((block, block + 1))
    return runs


def _groups(low: int, high: int, every: int) -> list[tuple[int, int, int]]:
    """(low, high, every) such that groups end at the multiples of `every`, as the source counts them."""
    aligned = min(high, low + -low % every)
    head = [(low, aligned, every)] if aligned > low else []
    return [*head, (aligned, high, every)] if high > aligned else head


def read_recompute(values: LaunchValues, pipelines: int) -> PublishedRecompute | None:
    """The recompute keys of a launch script, one value per pipeline or one for all."""
    granularity = _words(values, "RECOMPUTE_GRANULARITY", GRANULARITIES)
    method = _words(values, "RECOMPUTE_METHOD", METHODS)
    layers = _numbers(values, "RECOMPUTE_NUM_LAYERS")
    blocks = _blocks(values)
    if not any((*granularity, *method, *layers, *blocks)):
        return None
    recompute = PublishedRecompute(
        granularity=_spread(values, "RECOMPUTE_GRANULARITY", granularity, None, pipelines),
        method=_spread(values, "RECOMPUTE_METHOD", method, None, pipelines),
        num_layers=_spread(values, "RECOMPUTE_NUM_LAYERS", layers, None, pipelines),
        blocks=_spread(values, "RECOMPUTE_LAYER_IDXS_LIST", blocks, (), pipelines),
    )
    rows = zip(recompute.granularity, recompute.method, recompute.num_layers, strict=True)
    for word, name, count in dict.fromkeys(rows):
        if word == "selective" and name is not None:
            values.bad("RECOMPUTE_METHOD", f"{name!r}: a method needs the granularity 'full'")
        if name is not None and count is None:
            values.bad("RECOMPUTE_NUM_LAYERS", f"missing: the method {name!r} needs a number of layers")
    return recompute


def _list(found: object) -> list[object]:
    return list(found) if isinstance(found, list | tuple) else [found]


def _words(values: LaunchValues, key: str, known: tuple[str, ...]) -> list[str | None]:
    words = _list(values.of(key))
    for word in words:
        if word is not None and word not in known:
            values.bad(key, f"{word!r}: one of {', '.join(known)}, or null")
    return [word if isinstance(word, str) else None for word in words]


def _numbers(values: LaunchValues, key: str) -> list[int | None]:
    numbers = _list(values.of(key))
    for number in numbers:
        if number is not None and not (is_integer(number) and number >= 1):
            values.bad(key, f"{number!r}: an integer of at least 1, or null")
    return [number if isinstance(number, int) else None for number in numbers]


def _blocks(values: LaunchValues) -> list[tuple[int, ...]]:
    """RECOMPUTE_LAYER_IDXS_LIST, or RECOMPUTE_LAYER_IDXS for all pipelines alike."""
    key = "RECOMPUTE_LAYER_IDXS_LIST"
    lists: list[object] = [()] if values.of(key) is None else _list(values.of(key))
    if values.of("RECOMPUTE_LAYER_IDXS") is not None:
        key, lists = "RECOMPUTE_LAYER_IDXS", [values.of("RECOMPUTE_LAYER_IDXS")]
    read = []
    for index, blocks in enumerate(lists):
        named = blocks if isinstance(blocks, list | tuple) else [None]
        numbers = tuple(block for block in named if is_integer(block) and block >= 0)
        if len(numbers) != len(named):
            values.bad(f"{key}[{index}]", f"{blocks!r}: a list of block numbers")
        read.append(numbers)
    return read


def _spread(
    values: LaunchValues, key: str, items: Sequence[Value], none: Value, pipelines: int
) -> tuple[Value, ...]:
    """One item per pipeline; one alone stands for all."""
    if not pipelines:
        return ()
    if len(items) not in (1, pipelines):
        values.bad(key, f"{len(items)} entries: one for all pipelines, or one for each of {pipelines}")
        return (none,) * pipelines
    return tuple(items) * pipelines if len(items) == 1 else tuple(items)
