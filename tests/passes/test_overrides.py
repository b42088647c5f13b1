"""Splits written by hand: any dim of any parameter, own degrees, shares, annotations; eager's numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import nn

from hspmd_compiler.errors import HspmdError
from hspmd_compiler.ir.graph import LogicalGraph, ParamInfo
from hspmd_compiler.layout.layout import Coordinate
from hspmd_compiler.passes.annotate import annotate
from hspmd_compiler.strategy.strategy import Override, StageSpec, Strategy
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S

from ..quick import quick_are
from ..training.equal_to_eager import Case

HIDDEN, HEADS, WIDE, VOCAB = 24, 6, 20, 40
SAMPLES, TOKENS, IGNORE = 3, 5, -100
Choice = Callable[[ParamInfo, Strategy], Override]


def llama() -> nn.Module:
    """Two layers, grouped-query attention, biases."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=HIDDEN,
            intermediate_size=WIDE,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=3,
            vocab_size=VOCAB,
            max_position_embeddings=TOKENS,
            attention_bias=True,
            mlp_bias=True,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def gpt2() -> nn.Module:
    """Two layers, fused c_attn, tied embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=HIDDEN,
        n_layer=2,
        n_head=HEADS,
        vocab_size=VOCAB,
        n_positions=TOKENS,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    config.loss_type = "ForCausalLM"
    return GPT2LMHeadModel(config)


MODELS = {"llama": llama, "gpt2": gpt2}


@cache
def case_of(model: str) -> Case:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCAB, (SAMPLES, TOKENS), generator=generator)
    labels = ids.clone()
    for row in range(SAMPLES):
        labels[row, TOKENS - 1 - row :] = IGNORE
    return Case.of(MODELS[model], {"input_ids": ids, "labels": labels})


FOUR = Strategy((P((S((0, 1, 2, 3), (0, 2)),), (2, 1)),))
PAIRS = Strategy((P((S((0, 1), (0, 2)),), (2,)), P((S((2, 3), (0, 2)),), (1,))))
TOKENWISE = replace(FOUR, sequence_parallel=True)
SIX = Strategy((P((S((0, 1, 2, 3, 4, 5), (0, 2)),), (2, 1)),))
UNEQUAL = Strategy(
    (P((S((0, 1, 2), (0, 1)), S((3,), (1, 2))), (2,)), P((S((5, 4), (0, 2)),), (1,))),
    sequence_parallel=True,
)
STRATEGIES = {"four": FOUR, "pairs": PAIRS, "tokens": TOKENWISE}
ZERO_SHARES = {1: (1,), 2: (0, 1), 3: (2, 0, 1), 4: (3, 0, 1, 2)}


def last(info: ParamInfo) -> int:
    return len(info.shape) - 1


def stages(strategy: Strategy) -> list[StageSpec]:
    return [stage for pipeline in strategy.pipelines for stage in pipeline.stages]


def width(strategy: Strategy) -> int:
    return max(stage.tp for stage in stages(strategy))


def annotated(info: ParamInfo, strategy: Strategy, states: Callable[[int, int], str]) -> Override:
    """An annotation with one subgroup per stage. states: from the number of the stage and its width."""
    groups = [",".join(map(str, sorted(stage.devices))) for stage in stages(strategy)]
    parts = [states(i, stage.tp) if stage.tp > 1 else "R" for i, stage in enumerate(stages(strategy))]
    relation = "  hetero=dup" if len(groups) > 1 else ""
    text = f"[{' | '.join(groups)}]  <{' | '.join(parts)}>{relation}"
    return Override(info.name, annotation=text)


def with_copies(info: ParamInfo, strategy: Strategy) -> Override:
    """Pieces that overlap by two, the first one empty."""
    size = info.shape[0]

    def states(_: int, ranks: int) -> str:
        bounds = [size * rank // (ranks - 1) for rank in range(ranks)]
        spans = [f"{max(0, low - 2)}:{high}" for low, high in pairwise(bounds)]
        return f"S0(0:0,{','.join(spans)})"

    return annotated(info, strategy, states)


def in_blocks(info: ParamInfo, strategy: Strategy) -> Override:
    """Each half of the last dim cut evenly, as for fused projections."""
    size = info.shape[-1]
    return annotated(
        info, strategy, lambda _, ranks: f"S{last(info)}x{ranks}{{{size // 2},{size - size // 2}}}"
    )


def by_stage(info: ParamInfo, strategy: Strategy) -> Override:
    """The first dim in one stage, the last one in the next, copies in the third."""
    kinds = ("S0", f"S{last(info)}", "D")
    return annotated(info, strategy, lambda number, ranks: f"{kinds[number % 3]}x{ranks}")


KINDS: dict[str, Choice] = {
    "first dim": lambda info, _: Override(info.name, split=0),
    "last dim": lambda info, _: Override(info.name, split=last(info)),
    "duplicate": lambda info, _: Override(info.name, duplicate=True),
    "own degree": lambda info, _: Override(info.name, tp=2),
    "last dim in copies": lambda info, _: Override(info.name, split=last(info), tp=2),
    "shares": lambda info, strategy: Override(info.name, shares=ZERO_SHARES[width(strategy)]),
    "first dim by shares": lambda info, strategy: Override(
        info.name, split=0, shares=ZERO_SHARES[width(strategy)]
    ),
    "pieces with copies": with_copies,
    "blocks": in_blocks,
    "by stage": by_stage,
}


def parameters(graph: LogicalGraph) -> list[ParamInfo]:
    return [info for info in graph.params.values() if not info.is_buffer]


CASES = [
    pytest.param(
        model,
        strategy,
        kind,
        marks=() if (i + j + k) % 3 == 0 and (i + k) % 2 == 0 else pytest.mark.slow,
        id=f"{model} {strategy} {kind}",
    )
    for i, model in enumerate(MODELS)
    for j, strategy in enumerate(STRATEGIES)
    for k, kind in enumerate(KINDS)
]
"""Everything with everything; the quick run has each kind with one model, under one strategy."""


@pytest.mark.parametrize(("model", "strategy", "kind"), CASES)
def test_every_parameter(model: str, strategy: str, kind: str) -> None:
    case, base = case_of(model), STRATEGIES[strategy]
    overrides = tuple(KINDS[kind](info, base) for info in parameters(case.graph))
    case.check(replace(base, overrides=overrides))


@pytest.mark.parametrize("seed", quick_are(range(6), range(3)))
def test_some_parameters(seed: int) -> None:
    """Neighbours that are split in unlike ways."""
    rng = random.Random(seed)
    model, base = rng.choice(list(MODELS)), rng.choice([*STRATEGIES.values(), UNEQUAL])
    kinds = [KINDS[kind] for kind in ("first dim", "last dim", "duplicate", *list(KINDS)[-3:])]
    case = case_of(model)
    chosen = [info for info in parameters(case.graph) if rng.random() < (0.2, 0.6)[seed % 2]]
    case.check(replace(base, overrides=tuple(rng.choice(kinds)(info, base) for info in chosen)))


@pytest.mark.parametrize("degree", quick_are((1, 2, 3), (2,)))
def test_own_degree_in_a_stage_of_six(degree: int) -> None:
    layer = Override("layers.1", tp=degree)
    program = case_of("llama").check(replace(SIX, overrides=(layer,)))
    shapes = [
        next(shard.shape for shard in own.shards if shard.name.endswith("layers.1.mlp.up_proj.weight"))
        for own in program.ranks
    ]
    assert sum(rows for rows, _ in shapes) == WIDE * 6 // degree


def test_columns_beside_tokens() -> None:
    """A split that makes an operator read a slice of saved statistics, which kernels read as if dense."""
    override = Override("transformer.h.1.mlp.c_proj.weight", split=1)
    case_of("gpt2").check(replace(TOKENWISE, overrides=(override,)))


def test_the_last_override_counts_by_any_name() -> None:
    """The tied weight has two names."""
    graph = case_of("gpt2").graph
    for overrides, held in (
        ((Override("wte", split=1), Override("lm_head", duplicate=True)), (VOCAB, HIDDEN)),
        ((Override("lm_head", duplicate=True), Override("wte", split=1)), (VOCAB, HIDDEN // 4)),
    ):
        layouts, _ = annotate(graph, replace(FOUR, overrides=overrides))
        layout = layouts.layout(0, "transformer.wte.weight", 0)
        assert layout.local_shape(Coordinate(0, 0)) == held


REFUSED = {
    "unmatched": (
        FOUR,
        (Override("layers.7", tp=2), Override("q_proj", split=0), Override("*v_project", split=1)),
    ),
    "buffer": (FOUR, (Override("rotary_emb", split=0),)),
    "no_such_dim": (FOUR, (Override("norm", split=1),)),
    "other_devices": (PAIRS, (Override("q_proj.weight", annotation="[0,1] <S0x2>"),)),
    "not_covered": (PAIRS, (Override("q_proj.weight", annotation="[0,1,2,3] <S0x4>"),)),
    "hetero_split": (PAIRS, (Override("q_proj.weight", annotation="[0,1 | 2,3] <S1x2 | S1x2> hetero=0"),)),
    "pending_sum": (FOUR, (Override("q_proj.weight", annotation="[0,1,2,3] <Px4>"),)),
    "wrong_length": (FOUR, (Override("q_proj.weight", annotation="[0,1,2,3] <S0(0:1,1:3,3:6,6:10)>"),)),
    "unreadable": (FOUR, (Override("q_proj.weight", annotation="[0,1,2,3] <0x4>"),)),
    "shares_of_other_stages": (UNEQUAL, (Override("q_proj.weight", shares=(1, 2)),)),
    "degree": (UNEQUAL, (Override("q_proj.weight", tp=2),)),
    "no_share": (FOUR, (Override("q_proj.weight", shares=(0, 0, 0, 0)),)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, expect: Callable[[str, str], None]) -> None:
    base, overrides = REFUSED[name]
    graph = case_of("llama").graph
    strategy = replace(base, overrides=overrides)
    with pytest.raises(HspmdError) as caught:
        layouts, _ = annotate(graph, strategy)
        for number, pipeline in enumerate(strategy.pipelines):
            for stage in range(len(pipeline.stages)):
                for info in parameters(graph):
                    layouts.layout(number, info.name, stage)
    expect(f"overrides/{name}", str(caught.value))
