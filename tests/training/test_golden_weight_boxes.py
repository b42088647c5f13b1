"""Which rows of which weights each rank holds, beside HSPMD's rules; skipped without the reference data.

HSPMD fuses q|k|v and gate|up and stores weights as [out, in] split on dim 0, also those whose input is
split; HF keeps them apart, so that `dense` and `4h_to_h` are split on dim 1 here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path

import pytest

from hspmd_compiler.annotations.split import even_lengths
from hspmd_compiler.base.comm_plan import Box
from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.compiler import lower_graph
from hspmd_compiler.models.builtin_models import BUILTIN, LlamaSize
from hspmd_compiler.program.program import Shard
from hspmd_compiler.strategy.formats.expanded import Choices
from hspmd_compiler.strategy.formats.read import pick, read_entries
from hspmd_compiler.strategy.strategy import Strategy
from tests.strategy.published import traced

SAMPLES = 12
SPLIT: Mapping[str, tuple[str, int]] = {
    "wte": ("model.embed_tokens", 0),
    "rmsnorm1": ("input_layernorm", 0),
    "dense": ("self_attn.o_proj", 1),
    "rmsnorm2": ("post_attention_layernorm", 0),
    "4h_to_h": ("mlp.down_proj", 1),
    "rmsnorm_final": ("model.norm", 0),
    "lm_head": ("lm_head", 0),
}
"""HSPMD's module: HF's, and the dim of HF's weight that HSPMD's rows are."""
FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "h_to_4h": ("mlp.gate_proj", "mlp.up_proj"),
}

Rows = list[list[int]]
Layouts = dict[str, dict[str, Rows]]


@cache
def cases(reference: Path) -> dict[str, dict[str, Layouts]]:
    """Case, module, layout, device: half-open ranges of rows."""
    content = json.loads((reference / "hspmd" / "golden_param_layout.json").read_text())
    found: dict[str, dict[str, Layouts]] = content["cases"]
    return found


@cache
def shards(reference: Path, case: str, zero: int) -> dict[int, dict[str, Shard]]:
    """What each device of a case holds of the 32B model, by name."""
    _, entries = read_entries(reference / "hspmd" / "strategies_hetero_cluster.json", Choices())
    size = BUILTIN["llama-32b"]
    assert isinstance(size, LlamaSize)
    strategy = replace(with_few_samples(pick(entries, case).expand().strategy), zero=zero)
    graph = traced(replace(size, seq=4), SAMPLES)
    ranks = lower_graph(graph, strategy, DeviceKind.CPU).program.ranks
    return {rank.device: {shard.name: shard for shard in rank.shards} for rank in ranks}


def with_few_samples(strategy: Strategy) -> Strategy:
    """One micro-batch per pipeline: layouts don't depend on samples, and one traced model serves all."""
    sizes = even_lengths(SAMPLES, len(strategy.pipelines))
    pipelines = tuple(
        replace(one, micro_batches=(size,)) for one, size in zip(strategy.pipelines, sizes, strict=True)
    )
    return replace(strategy, pipelines=pipelines)


def modules(reference: Path) -> Iterator[tuple[str, str, list[str], Layouts]]:
    """Case, HSPMD's kind of module, HF's weights for it, and its layouts."""
    for case, layouts in cases(reference).items():
        for name, layout in layouts.items():
            block, _, kind = name.rpartition(".")
            start = f"model.layers.{block.removeprefix('block')}." if block else ""
            parts = FUSED[kind] if kind in FUSED else (SPLIT[kind][0],)
            yield case, kind, [f"{start}{part}.weight" for part in parts], layout


def rows(shard: Shard, dim: int) -> Rows:
    """The ranges of one dim that a shard holds; it holds all of the other dims."""
    boxes = [whole for whole, _ in shard.boxes]
    assert all(whole_elsewhere(box, shard.whole_view, dim) for box in boxes)
    return sorted([low, high] for low, high in (box[dim] for box in boxes))


def whole_elsewhere(box: Box, shape: tuple[int, ...], dim: int) -> bool:
    return all(ends == (0, size) for at, (ends, size) in enumerate(zip(box, shape, strict=True)) if at != dim)


def count(ranges: Rows) -> int:
    return sum(high - low for low, high in ranges)


def test_compute_layout_is_hspmd_s(reference: Path) -> None:
    """Same holders, and the same rows of all but the fused weights; of those as many."""
    seen = set()
    for case, kind, names, layout in modules(reference):
        held = shards(reference, case, 0)
        for name in names:
            assert {device for device, own in held.items() if name in own} == set(map(int, layout["nozero"]))
        for device, wanted in layout["nozero"].items():
            found = [rows(held[int(device)][name], SPLIT[kind][1] if kind in SPLIT else 0) for name in names]
            if kind in FUSED:
                assert sum(map(count, found)) == count(wanted), (case, names, device)
            else:
                assert found == [wanted], (case, names, device)
            seen.add(kind)
    assert seen


Owned = dict[tuple[tuple[int, ...], int], int]
"""Elements by the devices that hold them and the one that stores them."""


@pytest.mark.slow
def test_zero_stores_what_hspmd_s_does_of_each_weight(reference: Path) -> None:
    """Of the elements that the same devices hold, each of these stores as many of each weight. Which elements
    differs: HSPMD cuts whole rows, and no norm; ours are cut anywhere, up to the norms beside a weight. Of a
    weight that HSPMD does not cut there are no rows."""
    size = BUILTIN["llama-32b"]
    assert isinstance(size, LlamaSize)
    norms = 2 * size.hidden
    for case, kind, names, layout in modules(reference):
        if not isinstance(layout["zero"], dict):
            continue
        held = shards(reference, case, 1)
        found: Owned = {}
        for name in names:
            own = {device: kept[name] for device, kept in held.items() if name in kept}
            dim = SPLIT[kind][1] if kind in SPLIT else 0
            add(found, ranges(own, dim), {d: [box for box, _ in s.owned] for d, s in own.items()}, dim)
        wanted: Owned = {}
        others = prod(next(iter(own.values())).whole_shape) // next(iter(own.values())).whole_shape[dim]
        nozero = {int(device): rows for device, rows in layout["nozero"].items()}
        zero = {int(d): [((a, b), (0, others)) for a, b in rows] for d, rows in layout["zero"].items()}
        add(wanted, nozero, zero, 0)
        assert found.keys() == wanted.keys(), (case, names)
        for key, count in wanted.items():
            assert found[key] == pytest.approx(count, abs=norms), (case, names, key)


def ranges(own: Mapping[int, Shard], dim: int) -> dict[int, Rows]:
    return {device: rows(shard, dim) for device, shard in own.items()}


def add(to: Owned, holders: Mapping[int, Rows], owned: Mapping[int, list[Box]], dim: int) -> None:
    """Count elements of stored boxes, cut where the holders change along a dim."""
    ends = sorted({end for held in holders.values() for interval in held for end in interval})
    for low, high in pairwise(ends):
        among = tuple(
            sorted(d for d, held in holders.items() if any(a <= low and high <= b for a, b in held))
        )
        for device, boxes in owned.items():
            cut = [
                (*box[:dim], (max(box[dim][0], low), min(box[dim][1], high)), *box[dim + 1 :])
                for box in boxes
            ]
            count = sum(elements(box) for box in cut if box[dim][0] < box[dim][1])
            if count:
                to[among, device] = to.get((among, device), 0) + count


def elements(box: Box) -> int:
    return prod(high - low for low, high in box)
