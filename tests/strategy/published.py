"""Every strategy of the reference folder and the model that it is published for; a small twin of both."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.models.builtin_models import BUILTIN, GptSize, LlamaSize
from hspmd_compiler.strategy.formats.expanded import Choices, Expanded
from hspmd_compiler.strategy.formats.read import read_entries, text_entries
from hspmd_compiler.strategy.strategy import PipelineSpec, Strategy
from hspmd_compiler.trace.init_record import build_fake

Size = LlamaSize | GptSize

DEGREES = math.lcm(*range(1, 9), 16)
"""A length and its remainder by this are cut alike by every tensor-parallel degree that is published."""
HEAD_DIM, LENGTH = 2, 4
MOST_BETWEEN = 2
"""Layers of the twin between two ends of stages, any pipeline's."""
DEPTHS, BATCH = (4, 8, 16), 16
"""Layers and samples of a twin, where these are enough."""
BY_LAYERS = {32: "llama-7b", 40: "llama-13b", 60: "llama-32b", 80: "llama-70b"}
HEXISCALE = '--hetero_configs "[[1,2,1]]" --layer_partitions "[[1,2,1]]" --devices_id "[[[0],[0,0],[0]]]"'
FLAGSCALE: dict[str, Size] = {
    "conf__train__dp2dp4_shared_embedding": GptSize(8, 512, 8, vocab=151851),
    "conf__train__tp2dp1pp1_tp2dp2pp1_tp1dp2pp1": LlamaSize(8, 512, 8, 1408, vocab=151851),
    "conf__train__tp2pp1_tp4pp1_tp2pp1": LlamaSize(8, 512, 8, 1408, vocab=151851),
    "examples__aquila__conf__train__hetero": LlamaSize(12, 768, 12, 2048, vocab=100008),
    "examples__llama3__conf__train__8b_hetero": LlamaSize(32, 4096, 32, 14336, kv_heads=8, vocab=128256),
}


@dataclass(frozen=True, slots=True)
class Published:
    """One published strategy, and its model."""

    name: str
    expanded: Expanded
    size: Size


def published(reference: Path) -> Iterator[Published]:
    """All of them, also those that only `expand` and `show` take."""
    for file in ("hetero_cluster", "hetu_misc", "elastic_inferred", "mixed_length", "hotspa"):
        yield from _of_file(reference / "hspmd" / f"strategies_{file}.json")
    yield from _of_file(reference / "hspmd" / "strategies_hotspa_quick_8xA100.json", layers=32)
    yield from _of_pools(reference / "hydraulis" / "strategies.json")
    yield from _of_hexiscale(reference / "planners" / "hexiscale" / "all_hetero_configs.json")
    for name, size in FLAGSCALE.items():
        _, (entry,) = read_entries(reference / "planners" / "flagscale" / f"{name}.yaml", Choices())
        yield Published(f"flagscale/{name}", entry.expand(), size)


def _of_file(path: Path, layers: int | None = None) -> Iterator[Published]:
    for entry in read_entries(path, Choices(num_layers=layers))[1]:
        yield _with_model(f"{path.stem.removeprefix('strategies_')}/{entry.id}", entry.expand())


def _of_hexiscale(path: Path) -> Iterator[Published]:
    texts = {"all_hetero_configs": path.read_text(), "README": HEXISCALE}
    for name, text in texts.items():
        (entry,) = text_entries(text, Choices())[1]
        yield _with_model(f"hexiscale/{name}", entry.expand())


def _of_pools(path: Path) -> Iterator[Published]:
    """Pools name their model's size; the tuples don't say its layers."""
    content = json.loads(path.read_text())
    layers = {name: number for number, name in BY_LAYERS.items()}
    for pool, held in content.items():
        if isinstance(held, dict):
            text = json.dumps({"note": content["note"], pool: held})
            depth = layers[f"llama-{held.get('model', '32b')}"]
            for entry in text_entries(text, Choices(num_layers=depth))[1]:
                yield _with_model(f"hydraulis/{entry.id}", entry.expand())


def _with_model(name: str, expanded: Expanded) -> Published:
    """The built-in size of so many layers; a shorter model is a cut Llama 7B, as in the launch scripts."""
    layers = expanded.strategy.num_layers
    size = BUILTIN[BY_LAYERS.get(layers, "llama-7b")]
    assert isinstance(size, LlamaSize)
    return Published(name, expanded, replace(size, layers=layers))


def twin(one: Published) -> tuple[Size, Strategy]:
    """A small model and strategy in which the same things meet.

    Heads stay; other lengths stay by their remainders under every tensor-parallel degree. Layers
    between two ends of stages and micro-batches are cut, to numbers that few traced models serve.
    """
    strategy = _small(one.expanded.strategy)
    size, layers = one.size, strategy.num_layers
    small = replace(size, layers=layers, hidden=size.heads * HEAD_DIM, vocab=_cut(size.vocab), seq=LENGTH)
    return (replace(small, ffn=_cut(small.ffn)) if isinstance(small, LlamaSize) else small), strategy


def _cut(length: int) -> int:
    return length % DEGREES or DEGREES


def _small(strategy: Strategy) -> Strategy:
    """Few layers and micro-batches; the very first one is as large as makes BATCH samples."""
    first, *others = shortened(strategy).pipelines
    more = max(0, BATCH - first.batch_size - sum(one.batch_size for one in others))
    size, *sizes = first.micro_batches
    first = replace(first, micro_batches=(size + more, *sizes))
    return replace(strategy, pipelines=(first, *others))


def shortened(strategy: Strategy) -> Strategy:
    """The strategy with few layers and micro-batches."""
    places = _places(strategy)
    return replace(strategy, pipelines=tuple(_moved(one, places) for one in strategy.pipelines))


def _places(strategy: Strategy) -> dict[int, int]:
    """Ends of stages and of ranges of recomputation, any pipeline's: at first, and in the twin."""
    ends = {0}
    for pipeline in strategy.pipelines:
        ranges = [stage.layers for stage in pipeline.stages] + [one.layers for one in pipeline.recompute]
        ends |= {end for layers in ranges for end in layers}
    bounds = sorted(ends)
    places = {0: 0}
    for low, high in pairwise(bounds):
        places[high] = places[low] + min(MOST_BETWEEN, high - low)
    last = bounds[-1]
    places[last] = next((depth for depth in DEPTHS if depth >= places[last]), places[last])
    return places


def _moved(pipeline: PipelineSpec, places: dict[int, int]) -> PipelineSpec:
    """The pipeline with its layers renumbered, and one micro-batch more than stages, or fewer."""

    def ends(layers: tuple[int, int]) -> tuple[int, int]:
        return places[layers[0]], places[layers[1]]

    return replace(
        pipeline,
        stages=tuple(replace(stage, layers=ends(stage.layers)) for stage in pipeline.stages),
        recompute=tuple(replace(one, layers=ends(one.layers)) for one in pipeline.recompute),
        micro_batches=pipeline.micro_batches[: len(pipeline.stages) + 1],
    )


@lru_cache(maxsize=4)
def traced(size: Size, batch: int) -> LogicalGraph:
    """The training step of a model, traced once for all strategies that share it."""
    model, inputs = build_fake(size.build)
    return trace_graph(model, inputs, batch).graph
