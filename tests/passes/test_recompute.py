"""Recomputation keeps less for backward, and changes no bit of any number."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from hspmd_compiler.program.program import Op, Program
from hspmd_compiler.strategy.strategy import PipelineSpec, Recompute, RecomputeKind, StageSpec, Strategy
from hspmd_compiler.verify.values import Simulation, simulate
from hspmd_compiler.verify.widen import widen_program
from tests.fit import check_fit
from tests.training.test_end_to_end import ADAMW, EXACT, LocalOptimizers, batches, compare, reference, start
from tests.training.training_cases import (
    ALL,
    BATCH,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    SEQ,
    STRATEGIES,
    WIDE,
    graph_of,
    llama,
    program_for,
    tokens,
    traced,
)

NONE, SELECTIVE, FULL = RecomputeKind
FLOAT = 4
Ranges = tuple[Recompute, ...]


def everywhere(strategy: Strategy, ranges: Ranges) -> Strategy:
    """The strategy with the same ranges in every pipeline."""
    return replace(strategy, pipelines=tuple(replace(p, recompute=ranges) for p in strategy.pipelines))


def all_layers(name: str, kind: RecomputeKind, every: int = 1) -> Program:
    ranges = (Recompute(ALL, kind, every),)
    return program_for(graph_of("llama"), everywhere(STRATEGIES[name], ranges))


def trained(program: Program, subject: str = "llama", wide: bool = True) -> Simulation:
    whole = widen_program(program) if wide else program
    return simulate(whole, start(subject, wide), batches(subject, wide), LocalOptimizers(ADAMW))


@pytest.mark.parametrize(
    ("subject", "strategy", "kind"),
    [
        ("mlp-ce", "micro", FULL),
        pytest.param("gpt2", "sp", FULL, marks=pytest.mark.slow),
        pytest.param("gpt2", "mixed", SELECTIVE, marks=pytest.mark.slow),
        ("llama-kv1", "tp32", FULL),
    ],
)
def test_training_is_exact(subject: str, strategy: str, kind: RecomputeKind) -> None:
    ranges = (Recompute(ALL, kind),)
    program = program_for(graph_of(subject), everywhere(STRATEGIES[strategy], ranges))
    check_fit(program)
    compare(trained(program, subject), reference(subject, True), EXACT, ADAMW.lr)


@pytest.mark.parametrize(("kind", "every"), [(SELECTIVE, 1), (FULL, 1), (FULL, 2)])
def test_no_bit_changes(kind: RecomputeKind, every: int) -> None:
    """In float32, after five steps on unequal pipelines."""
    kept = trained(all_layers("mixed", NONE), wide=False)
    remade = trained(all_layers("mixed", kind, every), wide=False)
    assert kept.losses == remade.losses
    assert all(kept.params[name].equal(value) for name, value in remade.params.items())


def test_less_is_kept_for_backward() -> None:
    """FULL keeps the layers' inputs, groups of two layers one input less. SELECTIVE keeps beside them, for
    each token, what the products before the last one of a layer make, and attention's output with its
    log-sum-exp per head."""
    saved = [
        max(rank.saved[0] for rank in all_layers("one", kind, every).ranks)
        for kind, every in ((NONE, 1), (SELECTIVE, 1), (FULL, 1), (FULL, 2))
    ]
    tokens = BATCH * SEQ * FLOAT
    kv_heads = HEADS // 2
    products = HIDDEN + 2 * kv_heads * HEAD_DIM + HIDDEN + 2 * WIDE
    attention = HIDDEN + HEADS
    assert saved == sorted(saved, reverse=True)
    assert saved[2] - saved[3] == tokens * HIDDEN
    assert saved[1] - saved[2] == tokens * LAYERS * (products + attention)
    assert saved[1] < 0.55 * saved[0]


def test_selective_runs_costly_operators_once() -> None:
    """Products with weights and fused attention of the forward pass are not in the backward pass again."""
    kept, remade = (_operators(all_layers("one", kind)) for kind in (NONE, SELECTIVE))
    for op in ("hspmd.attention", "aten.mm.default"):
        assert remade[op] == kept[op] > 0
    assert _operators(all_layers("one", FULL))["hspmd.attention"] == 2 * kept["hspmd.attention"]


def test_selective_drops_the_weights_of_written_out_attention() -> None:
    """Dropout inside attention writes it out: a value per pair of tokens, made again with the same masks."""
    graph = graph_of("gpt2-dropout")
    kept, remade = (
        program_for(graph, everywhere(STRATEGIES["one"], (Recompute(ALL, kind),)))
        for kind in (NONE, SELECTIVE)
    )
    pairs = BATCH * HEADS * SEQ * SEQ
    dropped = kept.ranks[0].saved[0] - remade.ranks[0].saved[0]
    assert dropped > LAYERS * pairs * FLOAT
    assert _operators(remade)["aten._softmax.default"] == 2 * _operators(kept)["aten._softmax.default"]


def _operators(program: Program) -> Counter[str]:
    return Counter(row.op for shared in program.classes.values() for s in shared.segments for row in s.rows)


def test_peak_memory_falls() -> None:
    """By shape, over a whole step of several micro-batches in flight."""
    before, after = (max(check_fit(all_layers("pp", kind)).peak) for kind in (NONE, FULL))
    assert after < before


def test_pipelines_and_layers_choose_for_themselves() -> None:
    """What one pipeline keeps is its own choice, by layer."""
    first, second = STRATEGIES["dp32"].pipelines
    mixed = Strategy((replace(first, recompute=(Recompute((1, LAYERS), FULL),)), second))
    program = program_for(graph_of("llama"), mixed)
    compare(trained(program), reference("llama", True), EXACT, ADAMW.lr)
    plain = program_for(graph_of("llama"), STRATEGIES["dp32"])
    assert program.ranks[0].saved[0] < plain.ranks[0].saved[0]
    assert program.ranks[1].saved == plain.ranks[1].saved


def test_communication_is_repeated_where_backward_needs_it() -> None:
    """FULL repeats the sum after attention of each layer, not the one at the layer's end; SELECTIVE none."""
    counts = [len(check_fit(all_layers("tp3", kind)).events) for kind in (NONE, SELECTIVE, FULL)]
    assert counts[1] == counts[0]
    assert counts[2] - counts[0] == 2 * LAYERS


def test_work_grows_with_layers_only() -> None:
    """Copied rows per layer are the same number at 2 and at 3 layers."""
    rows = []
    for layers in (LAYERS, LAYERS + 1):
        stage = StageSpec((0,), (0, layers))
        graph = graph_of("llama") if layers == LAYERS else traced(llama(3, layers), tokens(0), BATCH)
        plain = Strategy((PipelineSpec((stage,), (BATCH,)),))
        programs = [program_for(graph, everywhere(plain, (Recompute((0, layers), k),))) for k in (NONE, FULL)]
        rows.append([_backward_rows(program) for program in programs])
    (plain, full), (plain_more, full_more) = rows
    assert LAYERS * (full_more - plain_more) == (LAYERS + 1) * (full - plain) > 0


def _backward_rows(program: Program) -> int:
    own = program.ranks[0]
    segments = program.classes[own.class_name].segments
    return sum(len(segments[i.segment].rows) for i in own.instructions if i.op is Op.BACKWARD)
