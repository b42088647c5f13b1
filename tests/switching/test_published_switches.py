"""Switches of a 32B model between published strategies, as compiled, beside HSPMD's volumes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.compiler import lower_graph
from hspmd_compiler.models.builtin_models import BUILTIN, LlamaSize
from hspmd_compiler.program.program import RankProgram
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.switching.links import links_of_nodes
from hspmd_compiler.switching.plan import plan_switch
from hspmd_compiler.switching.totals import totals

from ..strategy.published import traced
from ..training.test_golden_weight_boxes import SAMPLES, with_few_samples
from .test_sender_rules import given

__all__ = ["given"]
NODES, SIZE = 8, 8


@cache
def programs(strategy: Strategy) -> dict[int, RankProgram]:
    """By device; weights only, since the published volumes count no buffers."""
    size = BUILTIN["llama-32b"]
    assert isinstance(size, LlamaSize)
    graph = traced(replace(size, seq=4), SAMPLES)
    ranks = lower_graph(graph, with_few_samples(strategy), DeviceKind.CPU).program.ranks
    return {
        rank.device: replace(rank, shards=[shard for shard in rank.shards if not shard.is_buffer])
        for rank in ranks
    }


@pytest.mark.slow
def test_weights_move_as_published(reference: Path, given: Any) -> None:
    """As many elements move and stay, and as many cross nodes at least, though weights are not fused here."""
    file = reference / "hspmd" / "golden_bsr_plans_stats.json"
    seen = 0
    for transition in given.transitions_of(file):
        before, after = (programs_of(given, file, transition, side) for side in (0, 1))
        before = {device: own for device, own in before.items() if device not in transition.failed}
        links = links_of_nodes([device // SIZE for device in range(NODES * SIZE)])
        found = totals(plan_switch(before, after, links), links)
        expected = transition.expected["NEW_GREEDY/fused"]
        assert found.local.elements == expected["local_reuse_numel"], transition.name
        assert found.intra_node.elements + found.inter_node.elements == expected["moved_numel"]
        assert found.inter_node.bytes == found.inter_node_bound_bytes
        assert found.inter_node.elements == given.our_volumes(transition)["bound_numel"]
        seen += 1
    assert seen


def programs_of(given: Any, file: Path, transition: Any, side: int) -> dict[int, RankProgram]:
    """Of the strategy before or after, on the devices that the transition numbers."""
    case, shift = given.cases_of(transition.name)[side]
    made = programs(given.KnownCases(file.parent).strategy(case))
    return {given.shifted(device, shift): program for device, program in made.items()}
